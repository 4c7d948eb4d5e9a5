//! Device memory as host mappings: guard pages around every block, poison in fresh and freed memory, addresses that
//! are never used twice.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrotron_base::round_up;

/// Bytes of a page of the host: 4096, but 65536 on many aarch64 hosts.
fn page() -> usize {
    // SAFETY: no arguments but a constant.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096).max(4096)
}

/// Blocks begin at multiples of this.
const ALIGN: usize = 64;
/// What undefined memory is filled with: NaN in every float format, -1 in integers.
pub const POISON: u8 = 0xff;

/// Why a call about memory is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// More than there is.
    #[error("out of memory: {wanted} bytes wanted, {used} of {limit} used")]
    Full {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes in use.
        used: usize,
        /// Bytes there are.
        limit: usize,
    },
    /// No block begins there.
    #[error("{0}")]
    NoBlock(String),
    /// The host gives no more.
    #[error("the host's memory: {0}")]
    Host(String),
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: usize,
    number: u64,
    /// The whole mapping, guards included.
    map: (usize, usize),
    /// Mapped by [`Heap::map`]: the addresses stay reserved when it goes.
    mapped: bool,
}

#[derive(Debug, Default)]
struct State {
    live: BTreeMap<usize, Block>,
    freed: BTreeMap<usize, Block>,
    reserved: BTreeMap<usize, usize>,
    used: usize,
    made: u64,
}

/// The memory of one device.
#[derive(Debug)]
pub struct Heap {
    limit: usize,
    state: Mutex<State>,
}

impl Heap {
    /// Memory of `limit` bytes.
    pub fn new(limit: usize) -> Heap {
        Heap { limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block full of poison whose end touches a page that nobody may touch.
    pub fn alloc(&self, bytes: usize) -> Result<usize, MemoryError> {
        let mut st = self.state();
        self.room(&st, bytes)?;
        let inner = round_up(bytes.max(1), page());
        let start = reserve(inner + 2 * page())?;
        protect(start + page(), inner, true)?;
        let at = start + page() + inner - round_up(bytes.max(1), ALIGN);
        // SAFETY: the pages were just made, and nobody else knows them.
        unsafe { std::ptr::write_bytes((start + page()) as *mut u8, POISON, inner) };
        st.made += 1;
        st.used += bytes;
        let block = Block { bytes, number: st.made, map: (start, inner + 2 * page()), mapped: false };
        st.live.insert(at, block);
        Ok(at)
    }

    /// Frees a block: poisoned, and no longer to be touched. With `keep`, because queued work will touch it all the
    /// same, the poisoned pages stay readable.
    pub fn free(&self, at: usize, keep: bool) -> Result<usize, MemoryError> {
        let mut st = self.state();
        let block = match st.live.get(&at) {
            Some(b) if !b.mapped => *b,
            _ => return Err(MemoryError::NoBlock(describe(&st, at))),
        };
        st.live.remove(&at);
        st.used -= block.bytes;
        st.freed.insert(at, block);
        discard(block.map.0 + page(), block.map.1 - 2 * page(), keep)?;
        Ok(block.bytes)
    }

    /// Addresses without memory.
    pub fn reserve(&self, bytes: usize) -> Result<usize, MemoryError> {
        let bytes = round_up(bytes.max(1), page());
        let start = reserve(bytes + 2 * page())?;
        self.state().reserved.insert(start + page(), bytes);
        Ok(start + page())
    }

    /// Gives reserved addresses back. They must have no memory.
    pub fn release(&self, at: usize) -> Result<(), MemoryError> {
        let mut st = self.state();
        let Some(&bytes) = st.reserved.get(&at) else { return Err(MemoryError::NoBlock(describe(&st, at))) };
        if st.live.range(at..at + bytes).next().is_some() {
            return Err(MemoryError::NoBlock(format!("addresses {at:#x} are still backed by memory")));
        }
        st.reserved.remove(&at);
        Ok(())
    }

    /// Puts memory, full of poison, at reserved addresses.
    pub fn map(&self, at: usize, bytes: usize) -> Result<(), MemoryError> {
        let mut st = self.state();
        self.room(&st, bytes)?;
        let inside = st.reserved.range(..=at).next_back().is_some_and(|(&s, &len)| at + bytes <= s + len);
        let taken = st.live.range(..at + bytes).next_back().is_some_and(|(&s, b)| s + b.bytes > at);
        if !inside || taken || bytes == 0 || !at.is_multiple_of(page()) || !bytes.is_multiple_of(page()) {
            let why = format!("{bytes} bytes at {at:#x} are not reserved, not whole pages, or have memory already");
            return Err(MemoryError::NoBlock(why));
        }
        protect(at, bytes, true)?;
        // SAFETY: the range is reserved, without other memory, and was just made writable.
        unsafe { std::ptr::write_bytes(at as *mut u8, POISON, bytes) };
        st.made += 1;
        st.used += bytes;
        let block = Block { bytes, number: st.made, map: (at, bytes), mapped: true };
        st.live.insert(at, block);
        Ok(())
    }

    /// Takes memory away from reserved addresses; gives its bytes.
    pub fn unmap(&self, at: usize, keep: bool) -> Result<usize, MemoryError> {
        let mut st = self.state();
        let block = match st.live.get(&at) {
            Some(b) if b.mapped => *b,
            _ => return Err(MemoryError::NoBlock(describe(&st, at))),
        };
        st.live.remove(&at);
        st.used -= block.bytes;
        st.freed.insert(at, block);
        discard(at, block.bytes, keep)?;
        Ok(block.bytes)
    }

    fn room(&self, st: &State, wanted: usize) -> Result<(), MemoryError> {
        if wanted > self.limit.saturating_sub(st.used) {
            return Err(MemoryError::Full { wanted, used: st.used, limit: self.limit });
        }
        Ok(())
    }

    /// Bytes of the block that begins at `at`.
    pub fn size_of(&self, at: usize) -> Option<usize> {
        self.state().live.get(&at).map(|b| b.bytes)
    }

    /// `Err` says what is wrong with a range that is not all live memory.
    pub fn check(&self, at: usize, bytes: usize) -> Result<(), String> {
        let st = self.state();
        let (mut next, end) = (at, at.saturating_add(bytes));
        while next < end {
            match st.live.range(..=next).next_back() {
                Some((&start, b)) if start + b.bytes > next => next = start + b.bytes,
                _ => return Err(format!("{bytes} bytes at {at:#x}: {}", describe(&st, next))),
            }
        }
        Ok(())
    }

    /// Bytes in use and in all.
    pub fn usage(&self) -> (usize, usize) {
        (self.state().used, self.limit)
    }

    /// Blocks that were never freed.
    pub fn leaks(&self) -> Vec<String> {
        let st = self.state();
        st.live.iter().map(|(at, b)| format!("block {} of {} bytes at {at:#x}", b.number, b.bytes)).collect()
    }
}

fn describe(st: &State, at: usize) -> String {
    let near = |blocks: &BTreeMap<usize, Block>| {
        let (start, b) = blocks.range(..=at).next_back()?;
        Some((at - start, b.bytes, b.number))
    };
    match (near(&st.live), near(&st.freed)) {
        (Some((off, bytes, number)), _) if off < bytes + page() => {
            format!("{at:#x} is {off} bytes into block {number}, which has {bytes}")
        }
        (_, Some((off, bytes, number))) if off < bytes => format!("{at:#x} is in block {number}, which was freed"),
        _ => format!("{at:#x} is in no block"),
    }
}

fn host_error() -> MemoryError {
    MemoryError::Host(io::Error::last_os_error().to_string())
}

/// Addresses that nobody may touch.
fn reserve(bytes: usize) -> Result<usize, MemoryError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if p == libc::MAP_FAILED { Err(host_error()) } else { Ok(p as usize) }
}

fn protect(at: usize, bytes: usize, open: bool) -> Result<(), MemoryError> {
    let how = if open { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: the range is whole pages of a mapping that this module made and never gives back.
    if unsafe { libc::mprotect(at as *mut _, bytes, how) } == 0 { Ok(()) } else { Err(host_error()) }
}

/// Freed pages: closed and their memory given back to the host, or kept full of poison.
fn discard(at: usize, bytes: usize, keep: bool) -> Result<(), MemoryError> {
    if keep {
        // SAFETY: whole pages of a mapping of this module that are still open.
        unsafe { std::ptr::write_bytes(at as *mut u8, POISON, bytes) };
        return Ok(());
    }
    // SAFETY: as above; nothing is declared to touch them.
    if unsafe { libc::madvise(at as *mut _, bytes, libc::MADV_DONTNEED) } != 0 {
        return Err(host_error());
    }
    protect(at, bytes, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_at_a_guard_and_hold_poison() {
        let h = Heap::new(1 << 20);
        for bytes in [1, 63, 64, 4096, 5000] {
            let at = h.alloc(bytes).unwrap();
            assert!(at.is_multiple_of(64) && (at + bytes).next_multiple_of(64).is_multiple_of(page()), "{bytes}");
            // SAFETY: the block was just made.
            let held = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
            assert!(held.iter().all(|&b| b == POISON));
            assert_eq!(h.check(at, bytes), Ok(()));
            let beyond = h.check(at, bytes + 1).unwrap_err();
            assert!(beyond.contains("bytes into block") && beyond.contains(&format!("has {bytes}")), "{beyond}");
        }
        assert_eq!(h.leaks().len(), 5);
    }

    #[test]
    fn freed_blocks_are_named() {
        let h = Heap::new(1000);
        let at = h.alloc(600).unwrap();
        assert_eq!(h.alloc(600), Err(MemoryError::Full { wanted: 600, used: 600, limit: 1000 }));
        assert_eq!(h.free(at, false), Ok(600));
        assert!(h.check(at, 1).unwrap_err().contains("block 1, which was freed"));
        assert!(h.free(at, false).unwrap_err().to_string().contains("was freed"));
        assert_ne!(h.alloc(600).unwrap(), at);
    }

    #[test]
    fn memory_comes_and_goes_at_reserved_addresses() {
        let h = Heap::new(1 << 20);
        let at = h.reserve(4 * page()).unwrap();
        assert!(h.check(at, 1).is_err());
        h.map(at, page()).unwrap();
        h.map(at + page(), page()).unwrap();
        assert_eq!(h.check(at + 100, 2 * page() - 100), Ok(()));
        assert!(
            h.map(at + page(), page()).is_err()
                && h.map(at + 4 * page(), page()).is_err()
                && h.map(at + 7, page()).is_err()
        );
        assert!(h.release(at).is_err() && h.free(at, false).is_err());
        h.unmap(at, false).unwrap();
        assert!(h.check(at, 1).unwrap_err().contains("was freed"));
        h.unmap(at + page(), false).unwrap();
        h.release(at).unwrap();
        assert_eq!(h.usage(), (0, 1 << 20));
    }
}
