//! The layout of the shared file: a page of bells, then for each (sender, receiver) two lines of counters and the bytes
//! of the ring. A fresh file is zero, which is the state of empty rings.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Words that different processes write are this far apart.
const LINE: usize = 128;
/// Counters before a ring's bytes: what was written and the space bell, what was read.
const COUNTERS: usize = 2 * LINE;

/// Bytes of the file for `n` processes. `None` when no machine has as many.
pub(super) fn bytes(n: usize, ring: usize) -> Option<usize> {
    let rings = n.checked_mul(n)?.checked_mul(ring.checked_add(COUNTERS)?)?;
    rings.checked_add(n.checked_mul(LINE)?).filter(|b| isize::try_from(*b).is_ok())
}

/// Reserves memory for the file.
pub(super) fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::StorageFull)?;
    // SAFETY: a system call on an open file.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

/// The file in memory.
pub(super) struct Map {
    base: *mut u8,
    len: usize,
    pub(super) n: usize,
    /// Bytes of a ring.
    pub(super) ring: usize,
}

// SAFETY: the memory is shared anyway; counters are atomic, and bytes of rings have one writer and one reader each, who
// hand them over through the counters.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn new(file: &File, n: usize, ring: usize) -> io::Result<Map> {
        let len = bytes(n, ring).filter(|b| *b > 0).ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the shared file is shorter than agreed"));
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of an open file, at an address of the kernel's choice.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map { base: p.cast(), len, n, ring })
    }

    /// Bytes of the file that are mapped.
    pub(super) fn bytes(&self) -> usize {
        self.len
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "offset {offset} in a map of {}", self.len);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Rung when something was written for process `i`.
    pub(super) fn bell(&self, i: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned, and only used as an atomic.
        unsafe { AtomicU32::from_ptr(self.at(i * LINE).cast()) }
    }

    fn ring_at(&self, from: usize, to: usize) -> usize {
        self.n * LINE + (from * self.n + to) * (self.ring + COUNTERS)
    }

    /// Bytes written to a ring since the start.
    pub(super) fn written(&self, from: usize, to: usize) -> &AtomicU64 {
        // SAFETY: as `bell`; rings are multiples of a line.
        unsafe { AtomicU64::from_ptr(self.at(self.ring_at(from, to)).cast()) }
    }

    /// Bytes read from a ring since the start.
    pub(super) fn read(&self, from: usize, to: usize) -> &AtomicU64 {
        // SAFETY: as `bell`.
        unsafe { AtomicU64::from_ptr(self.at(self.ring_at(from, to) + LINE).cast()) }
    }

    /// Rung when a ring was read.
    pub(super) fn space(&self, from: usize, to: usize) -> &AtomicU32 {
        // SAFETY: as `bell`.
        unsafe { AtomicU32::from_ptr(self.at(self.ring_at(from, to) + LINE + 8).cast()) }
    }

    /// `len` bytes of a ring that start `start` bytes in; they do not wrap.
    pub(super) fn data(&self, from: usize, to: usize, start: usize, len: usize) -> *mut u8 {
        assert!(start + len <= self.ring, "bytes {start}+{len} of a ring of {}", self.ring);
        self.at(self.ring_at(from, to) + COUNTERS + start)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and all that points into it borrows this.
        unsafe {
            libc::munmap(self.base.cast(), self.len);
        }
    }
}
