//! The one place where tensors become slices.
//!
//! A kernel is enqueued with raw views ([`In`], [`Out`]): they may not hold tensor handles, which would keep a buffer
//! alive that stream order should keep. In the job the views become slices, and [`rows`] cuts outputs for the tasks:
//!
//! ```text
//! let (x, y) = (In::of(x), Out::of(y));
//! dispatch!(x.dtype(), T => self.run(s, move |team| {
//!     // SAFETY: stream order keeps both tensors until this job is done.
//!     let (x, y) = unsafe { (x.get::<T>(), y.get::<T>()) };
//!     team.rows(rows(y, h), t, row_grain(h * 4), |r, y, scratch| kernel(team.isa(), &x[r.start * h..r.end * h], y))
//! }))
//! ```

use std::marker::PhantomData;
use std::ops::Range;

use ferrotron_device::{DType, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
    impl Sealed for i32 {}
    impl Sealed for u8 {}
}

/// A type that tensors hold.
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + Send + Sync + 'static {
    /// Its dtype.
    const DTYPE: DType;
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

/// A type that weights and activations are stored in. Arithmetic is in f32; stores round to nearest even.
pub trait Storage: Element {
    /// Value as f32, exactly.
    fn to_f32(self) -> f32;
    /// Nearest value, ties to even; NaN stays NaN.
    fn from_f32(v: f32) -> Self;
    /// Converts a slice. Lengths are equal.
    fn load(src: &[Self], dst: &mut [f32]);
    /// Rounds a slice. Lengths are equal.
    fn store(src: &[f32], dst: &mut [Self]);
    /// `src` as f32: itself when it is, else converted into `buf`, which is as long.
    fn as_f32<'a>(src: &'a [Self], buf: &'a mut [f32]) -> &'a [f32] {
        Self::load(src, buf);
        buf
    }
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Storage for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(v: f32) -> f32 {
        v
    }
    #[inline(always)]
    fn load(src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }
    #[inline(always)]
    fn store(src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }
    #[inline(always)]
    fn as_f32<'a>(src: &'a [f32], _: &'a mut [f32]) -> &'a [f32] {
        src
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
}

impl Storage for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    // Without a branch, so that loops over it use wide registers.
    #[inline(always)]
    fn from_f32(v: f32) -> bf16 {
        let u = v.to_bits();
        let rounded = u.wrapping_add(0x7fff + ((u >> 16) & 1));
        let bits = if v.is_nan() { u | 0x0040_0000 } else { rounded };
        bf16::from_bits((bits >> 16) as u16)
    }
    #[inline(always)]
    fn load(src: &[bf16], dst: &mut [f32]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = s.to_f32();
        }
    }
    #[inline(always)]
    fn store(src: &[f32], dst: &mut [bf16]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = <bf16 as Storage>::from_f32(*s);
        }
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
}

// Element by element this is slow without hardware conversions; the slice functions find those at run time.
impl Storage for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> f16 {
        f16::from_f32(v)
    }
    #[inline(always)]
    fn load(src: &[f16], dst: &mut [f32]) {
        src.convert_to_f32_slice(dst);
    }
    #[inline(always)]
    fn store(src: &[f32], dst: &mut [f16]) {
        dst.convert_from_f32_slice(src);
    }
}

/// Runs `$body` with `$T` bound to the storage type of a dtype. Checks of the op have refused all others before.
#[macro_export]
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            ferrotron_device::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            ferrotron_device::DType::F16 => {
                type $T = half::f16;
                $body
            }
            other => {
                assert!(other == ferrotron_device::DType::F32, "{other} is not a storage dtype");
                type $T = f32;
                $body
            }
        }
    };
}

/// A tensor to read, as a job may hold it.
#[derive(Clone, Copy)]
pub struct In {
    ptr: *const u8,
    len: usize,
    dtype: DType,
}

// SAFETY: an address; following it is what `get` makes its caller answer for.
unsafe impl Send for In {}
// SAFETY: as above.
unsafe impl Sync for In {}

impl In {
    /// View of all elements.
    pub fn of(t: &Tensor) -> In {
        In { ptr: t.ptr().0 as *const u8, len: t.numel(), dtype: t.dtype() }
    }

    /// Element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The elements.
    ///
    /// # Safety
    /// The tensor's memory is there and nobody writes it while the slice lives: call this in a job of the stream that
    /// the tensor was made for.
    pub unsafe fn get<'a, T: Element>(self) -> &'a [T] {
        assert!(self.dtype == T::DTYPE, "a tensor of {} read as {}", self.dtype, T::DTYPE);
        // SAFETY: the tensor has `len` elements of this type at `ptr`, aligned as the pool aligns; the rest is the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len) }
    }
}

/// A tensor to write, as a job may hold it.
#[derive(Clone, Copy)]
pub struct Out {
    ptr: *mut u8,
    len: usize,
    dtype: DType,
}

// SAFETY: an address; following it is what `get` makes its caller answer for.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Out {
    /// View of all elements.
    pub fn of(t: &mut Tensor) -> Out {
        Out { ptr: t.ptr().0 as *mut u8, len: t.numel(), dtype: t.dtype() }
    }

    /// Element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// True when this and `x` are the same bytes: an op in place.
    pub fn same(self, x: In) -> bool {
        std::ptr::eq(self.ptr, x.ptr) && self.len * self.dtype.size() == x.len * x.dtype.size()
    }

    /// The elements, which may be undefined (any bits are a value of every element type).
    ///
    /// # Safety
    /// As [`In::get`], and nobody else reads them while the slice lives. For an op in place make one slice only.
    pub unsafe fn get<'a, T: Element>(self) -> &'a mut [T] {
        assert!(self.dtype == T::DTYPE, "a tensor of {} written as {}", self.dtype, T::DTYPE);
        // SAFETY: as in `In::get`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.len) }
    }
}

/// An output cut by rows for the tasks of [`crate::team::Team::rows`].
pub struct Rows<'a, T> {
    ptr: *mut T,
    len: usize,
    cols: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: stands for a `&mut [T]`.
unsafe impl<T: Send> Send for Rows<'_, T> {}
// SAFETY: `part`, the only access, is unsafe and asks for rows that do not overlap.
unsafe impl<T: Send> Sync for Rows<'_, T> {}

/// `slice` as rows of `cols` elements.
pub fn rows<T>(slice: &mut [T], cols: usize) -> Rows<'_, T> {
    Rows { ptr: slice.as_mut_ptr(), len: slice.len(), cols, slice: PhantomData }
}

/// An output of which tasks write pieces that do not overlap, where these are not whole rows.
pub struct Disjoint<'a, T>(Rows<'a, T>);

impl<'a, T: Send> Disjoint<'a, T> {
    /// `slice`, to be written in pieces.
    pub fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint(rows(slice, 1))
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// No piece that another task uses overlaps this one, and no live piece of this task does.
    ///
    /// # Panics
    /// Beyond the end.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        self.0.check(start + len);
        // SAFETY: in bounds by the check; the rest is the caller's promise.
        unsafe { self.0.part(start..start + len) }
    }
}

/// One or several outputs that can be cut by the same rows.
pub trait Parts: Sync {
    /// What a task gets.
    type Part;
    /// Panics unless there are `rows` rows.
    fn check(&self, rows: usize);
    /// Elements of some rows.
    ///
    /// # Safety
    /// Rows are in bounds (`check` was called) and no row is ever asked for twice.
    unsafe fn part(&self, rows: Range<usize>) -> Self::Part;
}

impl<'a, T: Send> Parts for Rows<'a, T> {
    type Part = &'a mut [T];
    fn check(&self, rows: usize) {
        assert!(rows * self.cols <= self.len, "{rows} rows of {} in a slice of {}", self.cols, self.len);
    }
    unsafe fn part(&self, r: Range<usize>) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(r.start * self.cols), r.len() * self.cols) }
    }
}

/// For calls without an output by rows.
impl Parts for () {
    type Part = ();
    fn check(&self, _: usize) {}
    unsafe fn part(&self, _: Range<usize>) {}
}

macro_rules! tuple_parts {
    ($($p:ident $i:tt),+) => {
        impl<$($p: Parts),+> Parts for ($($p,)+) {
            type Part = ($($p::Part,)+);
            fn check(&self, rows: usize) {
                $(self.$i.check(rows);)+
            }
            unsafe fn part(&self, r: Range<usize>) -> Self::Part {
                // SAFETY: the caller's promise holds for each.
                unsafe { ($(self.$i.part(r.clone()),)+) }
            }
        }
    };
}

tuple_parts!(A 0, B 1);
tuple_parts!(A 0, B 1, C 2);
tuple_parts!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use super::*;

    /// All 65536 bit patterns survive a round trip, and halves of the last place go to even, against crate `half`.
    #[test]
    fn bf16_rounds_to_nearest_even() {
        for bits in 0..=u16::MAX {
            let v = bf16::from_bits(bits);
            let back = <bf16 as Storage>::from_f32(Storage::to_f32(v));
            assert!(back.to_bits() == bits || v.is_nan() && back.is_nan());
            for low in [0x7fff, 0x8000, 0x8001_u32] {
                let x = f32::from_bits(u32::from(bits) << 16 | low);
                let (ours, theirs) = (<bf16 as Storage>::from_f32(x), bf16::from_f32(x));
                assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{x:?}");
            }
        }
    }
}
