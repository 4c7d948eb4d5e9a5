//! Blocks: slices of any storage dtype, read and written [`BLOCK`] elements at a time as f32.
//!
//! The dtype is looked at once a block, so a kernel is compiled once for each instruction set and not once more for
//! each combination of dtypes.

use std::marker::PhantomData;
use std::ops::Range;

use ferrotron_device::Tensor;
use half::{bf16, f16};

use crate::view::{Element, In, Out, Parts, Rows, Storage, rows};

/// Elements of a block: 4 KiB of f32, so that the few blocks of a kernel stay in the L1 cache.
pub const BLOCK: usize = 1024;
/// Elements that a task of an element-wise op takes.
pub const GRAIN: usize = 16 << 10;

/// A block in f32.
pub type Buffer = [f32; BLOCK];

/// The blocks of `0..n`: start and length.
#[inline(always)]
pub fn blocks(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(BLOCK).map(move |at| (at, BLOCK.min(n - at)))
}

/// Elements to read.
#[derive(Clone, Copy)]
pub enum Src<'a> {
    F32(&'a [f32]),
    BF16(&'a [bf16]),
    F16(&'a [f16]),
}

macro_rules! each {
    ($src:expr, $kind:ident, $x:ident => $body:expr) => {
        match $src {
            $kind::F32($x) => $body,
            $kind::BF16($x) => $body,
            $kind::F16($x) => $body,
        }
    };
}

impl<'a> Src<'a> {
    /// The elements of a view.
    ///
    /// # Safety
    /// As [`In::get`].
    pub unsafe fn of(x: In) -> Src<'a> {
        // SAFETY: the caller's promise, in each arm.
        unsafe {
            match x.dtype() {
                d if d == bf16::DTYPE => Src::BF16(x.get()),
                d if d == f16::DTYPE => Src::F16(x.get()),
                _ => Src::F32(x.get()),
            }
        }
    }

    /// Some of the elements.
    pub fn slice(self, r: Range<usize>) -> Src<'a> {
        match self {
            Src::F32(x) => Src::F32(&x[r]),
            Src::BF16(x) => Src::BF16(&x[r]),
            Src::F16(x) => Src::F16(&x[r]),
        }
    }

    /// Elements `at .. at + n` as f32: in place, or widened into `buf`.
    #[inline(always)]
    pub fn read<'b>(&'b self, at: usize, n: usize, buf: &'b mut Buffer) -> &'b [f32] {
        match self {
            Src::F32(x) => &x[at..at + n],
            Src::BF16(x) => {
                <bf16 as Storage>::load(&x[at..at + n], &mut buf[..n]);
                &buf[..n]
            }
            Src::F16(x) => {
                <f16 as Storage>::load(&x[at..at + n], &mut buf[..n]);
                &buf[..n]
            }
        }
    }
}

/// Elements to write, or to update in place.
pub enum Dst<'a> {
    F32(&'a mut [f32]),
    BF16(&'a mut [bf16]),
    F16(&'a mut [f16]),
}

impl Dst<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, Dst, y => y.len())
    }

    /// Some of the elements.
    pub fn slice_mut(&mut self, r: Range<usize>) -> Dst<'_> {
        match self {
            Dst::F32(y) => Dst::F32(&mut y[r]),
            Dst::BF16(y) => Dst::BF16(&mut y[r]),
            Dst::F16(y) => Dst::F16(&mut y[r]),
        }
    }

    /// Elements `at .. at + n`, widened into `buf`.
    #[inline(always)]
    pub fn load<'b>(&self, at: usize, n: usize, buf: &'b mut Buffer) -> &'b mut [f32] {
        each!(self, Dst, y => Storage::load(&y[at..at + n], &mut buf[..n]));
        &mut buf[..n]
    }

    /// Rounds `values` into elements `at ..`.
    #[inline(always)]
    pub fn store(&mut self, at: usize, values: &[f32]) {
        each!(self, Dst, y => Storage::store(values, &mut y[at..at + values.len()]));
    }

    /// Lets `f` compute elements `at .. at + n`, which it gets with undefined contents: in place, or in `buf` to be
    /// rounded from there.
    #[inline(always)]
    pub fn write(&mut self, at: usize, n: usize, buf: &mut Buffer, f: impl FnOnce(&mut [f32])) {
        // One call of `f`, so that it is inlined and compiled for the caller's instruction set.
        f(match self {
            Dst::F32(y) => &mut y[at..at + n],
            _ => &mut buf[..n],
        });
        if !matches!(self, Dst::F32(_)) {
            self.store(at, &buf[..n]);
        }
    }
}

/// An input that may be the output itself: then `None`, and the output is the one slice of that memory.
pub fn apart(x: &Tensor, y: &Tensor) -> Option<In> {
    (!x.same_memory(y)).then(|| In::of(x))
}

/// Elements `at .. at + n` of such an input.
#[inline(always)]
pub fn read_or<'b>(x: &'b Option<Src<'_>>, y: &Dst<'_>, at: usize, n: usize, buf: &'b mut Buffer) -> &'b [f32] {
    match x {
        Some(x) => x.read(at, n, buf),
        None => y.load(at, n, buf),
    }
}

/// An output of any storage dtype, cut by rows for the team.
pub enum DstRows<'a> {
    F32(Rows<'a, f32>),
    BF16(Rows<'a, bf16>),
    F16(Rows<'a, f16>),
}

impl<'a> DstRows<'a> {
    /// The elements of a view in rows of `cols`.
    ///
    /// # Safety
    /// As [`Out::get`].
    pub unsafe fn of(y: Out, cols: usize) -> DstRows<'a> {
        // SAFETY: the caller's promise, in each arm.
        unsafe {
            match y.dtype() {
                d if d == bf16::DTYPE => DstRows::BF16(rows(y.get(), cols)),
                d if d == f16::DTYPE => DstRows::F16(rows(y.get(), cols)),
                _ => DstRows::F32(rows(y.get(), cols)),
            }
        }
    }
}

impl<'a> Parts for DstRows<'a> {
    type Part = Dst<'a>;
    fn check(&self, n: usize) {
        each!(self, DstRows, y => y.check(n));
    }
    unsafe fn part(&self, r: Range<usize>) -> Dst<'a> {
        // SAFETY: the caller's promise, in each arm.
        unsafe {
            match self {
                DstRows::F32(y) => Dst::F32(y.part(r)),
                DstRows::BF16(y) => Dst::BF16(y.part(r)),
                DstRows::F16(y) => Dst::F16(y.part(r)),
            }
        }
    }
}

/// An output that may not be there.
impl<P: Parts> Parts for Option<P> {
    type Part = Option<P::Part>;
    fn check(&self, n: usize) {
        if let Some(p) = self {
            p.check(n);
        }
    }
    unsafe fn part(&self, r: Range<usize>) -> Option<P::Part> {
        // SAFETY: the caller's promise.
        self.as_ref().map(|p| unsafe { p.part(r) })
    }
}

/// A matrix cut by columns for the team: for sums over rows that must keep the rows' order.
pub struct Columns<'a> {
    ptr: *mut f32,
    len: usize,
    cols: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: stands for a `&mut [f32]`, of which tasks get parts that do not overlap.
unsafe impl Sync for Columns<'_> {}

/// `slice` as a matrix with rows of `cols`.
pub fn columns(slice: &mut [f32], cols: usize) -> Columns<'_> {
    Columns { ptr: slice.as_mut_ptr(), len: slice.len(), cols, slice: PhantomData }
}

/// Some columns of all rows.
pub struct ColumnRange<'a> {
    of: Columns<'a>,
    range: Range<usize>,
}

impl<'a> Parts for Columns<'a> {
    type Part = ColumnRange<'a>;
    fn check(&self, n: usize) {
        assert!(n == self.cols && self.len.is_multiple_of(n.max(1)), "{n} of {} columns", self.cols);
    }
    unsafe fn part(&self, range: Range<usize>) -> ColumnRange<'a> {
        ColumnRange { of: Columns { slice: PhantomData, ..*self }, range }
    }
}

impl ColumnRange<'_> {
    /// These columns of one row.
    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        let at = row * self.of.cols + self.range.start;
        assert!(at + self.range.len() <= self.of.len, "row {row} of {}", self.of.len / self.of.cols);
        // SAFETY: in bounds by the assertion; `Parts::part` gave these columns to nobody else, and the borrow of
        // self ends before another row is asked for.
        unsafe { std::slice::from_raw_parts_mut(self.of.ptr.add(at), self.range.len()) }
    }
}
