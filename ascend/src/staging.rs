//! Pinned host memory that host bytes pass through.

use std::ffi::c_void;
use std::sync::Arc;

use ferrotron_device::Result;
use ferrotron_device::stream::EventImpl;

use crate::memory::malloc_host;
use crate::shared::{Omit, Shared};
use crate::stream::AscendEvent;

/// A pinned block and the mark after which it is free.
struct Block {
    at: usize,
    bytes: usize,
    busy: Option<Arc<AscendEvent>>,
}

/// A stream's pinned blocks.
#[derive(Default)]
pub struct Staging {
    blocks: Vec<Block>,
}

/// A block taken from [`Staging`].
#[derive(Clone, Copy)]
pub struct Staged {
    index: usize,
    /// Its address.
    pub at: usize,
}

impl Staging {
    /// The smallest block of at least `bytes` bytes whose last copy is done, or a new one.
    pub fn take(&mut self, shared: &Shared, bytes: usize) -> Result<Staged> {
        let careless = shared.omits(Omit::StagingWait);
        let free = |b: &Block| b.bytes >= bytes && (careless || b.busy.as_ref().is_none_or(|e| e.is_done()));
        let mut fits: Vec<usize> = (0..self.blocks.len()).filter(|&i| free(&self.blocks[i])).collect();
        fits.sort_by_key(|&i| self.blocks[i].bytes);
        if let Some(&index) = fits.first() {
            return Ok(Staged { index, at: self.blocks[index].at });
        }
        let bytes = bytes.max(4096).next_power_of_two();
        let at = malloc_host(shared, bytes)?;
        self.blocks.push(Block { at, bytes, busy: None });
        Ok(Staged { index: self.blocks.len() - 1, at })
    }

    /// The block is in use until the event.
    pub fn busy(&mut self, block: Staged, until: AscendEvent) {
        if let Some(b) = self.blocks.get_mut(block.index) {
            b.busy = Some(Arc::new(until));
        }
    }

    /// Frees everything. The stream must be idle.
    pub fn free(&mut self, shared: &Shared) {
        for b in self.blocks.drain(..) {
            // SAFETY: ours, and no copy works on it.
            unsafe { (shared.cann.acl.aclrtFreeHost)(b.at as *mut c_void) };
        }
    }
}
