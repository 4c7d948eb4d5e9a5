//! Regions of addresses: reserved at once, backed by memory as they are committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrotron_base::round_up;
use ferrotron_device::{DevPtr, Error, Region, Result};

use crate::stream::Streams;

/// A huge page on x86-64 and (with 4 KiB pages) aarch64. Regions of this size or more start at and grow by it.
const HUGE_PAGE: usize = 2 << 20;
/// The largest page that any supported system has; what small regions are sized in.
const PAGE: usize = 64 << 10;

/// Addresses from `mmap`. Dropping it waits for the device's streams, then unmaps: jobs hold raw pointers.
pub struct CpuRegion {
    /// Start and length of the whole mapping: for `munmap`.
    mapping: (usize, usize),
    base: usize,
    reserved: usize,
    /// Commits end at a multiple of this.
    unit: usize,
    committed: AtomicUsize,
    what: &'static str,
    device: Arc<str>,
    limit: usize,
    streams: Arc<Streams>,
}

impl CpuRegion {
    /// Reserves `bytes` bytes without memory behind them. `limit` is only named in errors.
    pub(crate) fn reserve(
        bytes: usize,
        what: &'static str,
        device: Arc<str>,
        limit: usize,
        streams: Arc<Streams>,
    ) -> Result<CpuRegion> {
        let unit = if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let reserved = round_up(bytes.max(1), unit);
        // Room to begin at a multiple of the unit; addresses cost nothing.
        let len = reserved + unit;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other memory.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(out_of_memory(&device, what, bytes, 0, limit));
        }
        let (mapping, base, committed) = ((p as usize, len), round_up(p as usize, unit), AtomicUsize::new(0));
        Ok(CpuRegion { mapping, base, reserved, unit, committed, what, device, limit, streams })
    }
}

fn out_of_memory(device: &Arc<str>, what: &'static str, wanted: usize, in_use: usize, limit: usize) -> Error {
    Error::OutOfMemory { device: device.to_string(), what, wanted, in_use, limit }
}

impl Region for CpuRegion {
    fn base(&self) -> DevPtr {
        DevPtr(self.base as u64)
    }

    fn reserved(&self) -> usize {
        self.reserved
    }

    fn commit(&self, bytes: usize) -> Result<()> {
        let have = self.committed.load(Ordering::Acquire);
        if bytes <= have {
            return Ok(());
        }
        let to = round_up(bytes, self.unit);
        if to > self.reserved {
            return Err(out_of_memory(&self.device, self.what, bytes, have, self.reserved));
        }
        // Committing the prefix again is harmless, so two commits at once need no lock.
        // SAFETY: the range lies in this mapping; giving access to it takes nothing from anyone.
        let rc = unsafe { libc::mprotect(self.base as *mut _, to, libc::PROT_READ | libc::PROT_WRITE) };
        if rc != 0 {
            return Err(out_of_memory(&self.device, self.what, to - have, have, self.limit));
        }
        #[cfg(target_os = "linux")]
        if self.unit == HUGE_PAGE {
            // SAFETY: advice about our own mapping. It may be refused (no huge pages here): then pages are small.
            unsafe {
                libc::madvise(self.base as *mut _, to, libc::MADV_HUGEPAGE);
            }
        }
        self.committed.fetch_max(to, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for CpuRegion {
    fn drop(&mut self) {
        self.streams.drain();
        // SAFETY: the mapping is ours, and no job that could reach into it is left.
        unsafe {
            libc::munmap(self.mapping.0 as *mut _, self.mapping.1);
        }
    }
}

/// Bytes that the system could give to a new program without swapping, `MemAvailable`; 0 when it does not say.
pub(crate) fn available_memory() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|v| v.trim().trim_end_matches("kB").trim().parse::<usize>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_grows_a_prefix() {
        let r = CpuRegion::reserve(64 << 20, "a test", "cpu:0".into(), 0, Arc::default()).unwrap();
        r.commit(10).unwrap();
        let p = r.base().0 as *mut u8;
        // SAFETY: the first bytes are committed.
        unsafe { p.write(7) };
        r.commit(40 << 20).unwrap();
        // SAFETY: 40 MiB are committed, and the first byte was written.
        unsafe {
            p.add((40 << 20) - 1).write(8);
            assert_eq!(p.read(), 7);
        }
        assert!(matches!(r.commit(65 << 20), Err(Error::OutOfMemory { what: "a test", .. })));
        assert!(available_memory() > 0);
    }

    #[test]
    fn too_much_is_an_error() {
        let r = CpuRegion::reserve(1 << 60, "a test", "cpu:0".into(), 5, Arc::default());
        assert!(matches!(r.err(), Some(Error::OutOfMemory { limit: 5, .. })));
    }
}
