//! Scratch memory of kernels: fixed slabs, handed out as aligned slices.

use std::sync::Arc;

use ferrotron_base::round_up;
use ferrotron_device::{Error, Result};

/// Alignment of scratch slices: a cache line, and a zmm register.
const ALIGN: usize = 64;

/// Memory from `mmap`: pages that are never touched cost nothing.
pub(crate) struct Slab {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a slab owns its memory.
unsafe impl Send for Slab {}

impl Slab {
    pub(crate) fn new(device: &Arc<str>, bytes: usize) -> Result<Slab> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other memory.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            let (device, what) = (device.to_string(), "kernel scratch");
            return Err(Error::OutOfMemory { device, what, wanted: bytes, in_use: 0, limit: 0 });
        }
        #[cfg(target_os = "linux")]
        // SAFETY: advice about our own mapping, which may be refused.
        unsafe {
            libc::madvise(p, bytes, libc::MADV_HUGEPAGE);
        }
        Ok(Slab { base: p.cast(), bytes })
    }

    pub(crate) fn ptr(&mut self) -> *mut f32 {
        self.base.cast()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows it any more.
        unsafe {
            libc::munmap(self.base.cast(), self.bytes);
        }
    }
}

/// A thread's scratch, [`crate::team::SCRATCH_BYTES`] long. Contents are undefined at the start of a task.
pub struct Scratch<'s>(&'s mut Slab);

impl<'s> Scratch<'s> {
    pub(crate) fn new(slab: &'s mut Slab) -> Scratch<'s> {
        Scratch(slab)
    }

    /// `N` slices of f32 of these lengths, each at a multiple of 64 bytes.
    ///
    /// # Panics
    /// When they do not fit: kernels work in blocks of bounded size.
    pub fn split<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let mut at = 0;
        lens.map(|len| {
            let start = at;
            at += round_up(len * 4, ALIGN);
            assert!(at <= self.0.bytes, "scratch of {lens:?} floats is more than {} bytes", self.0.bytes);
            // SAFETY: in bounds by the assertion, apart from the other slices, aligned, and any bits are an f32.
            unsafe { std::slice::from_raw_parts_mut(self.0.base.add(start).cast::<f32>(), len) }
        })
    }

    /// One slice of `len` f32.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn f32s(&mut self, len: usize) -> &mut [f32] {
        let [s] = self.split([len]);
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_aligned_and_apart() {
        let mut slab = Slab::new(&"cpu:0".into(), 4096).unwrap();
        let mut s = Scratch::new(&mut slab);
        let [a, b, c] = s.split([3, 17, 5]);
        assert!([a.as_ptr(), b.as_ptr(), c.as_ptr()].iter().all(|p| (*p as usize).is_multiple_of(64)));
        a.fill(1.0);
        b.fill(2.0);
        c.fill(3.0);
        assert_eq!((a[2], b[0], b[16], c[0]), (1.0, 2.0, 2.0, 3.0));
    }
}
