//! Pinned host memory that host bytes pass through.

use std::ffi::c_void;

use ferrotron_device::Result;
use ferrotron_device::stream::EventImpl;

use crate::shared::{Omit, Shared};
use crate::stream::CudaEvent;

/// A pinned block and the mark after which it is free.
struct Block {
    at: usize,
    bytes: usize,
    busy: Option<CudaEvent>,
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
        let fits = (0..self.blocks.len()).filter(|&i| free(&self.blocks[i])).min_by_key(|&i| self.blocks[i].bytes);
        if let Some(index) = fits {
            return Ok(Staged { index, at: self.blocks[index].at });
        }
        let bytes = bytes.max(4096).next_power_of_two();
        let mut at = std::ptr::null_mut();
        // SAFETY: an out-parameter; a context is current.
        shared.check("cuMemHostAlloc", unsafe { (shared.cuda.driver.cuMemHostAlloc)(&mut at, bytes, 0) })?;
        self.blocks.push(Block { at: at as usize, bytes, busy: None });
        Ok(Staged { index: self.blocks.len() - 1, at: at as usize })
    }

    /// The block is in use until the event.
    pub fn busy(&mut self, block: Staged, until: CudaEvent) {
        if let Some(b) = self.blocks.get_mut(block.index) {
            b.busy = Some(until);
        }
    }

    /// Frees everything. The stream must be idle.
    pub fn free(&mut self, shared: &Shared) {
        for b in self.blocks.drain(..) {
            // SAFETY: ours, and no copy works on it.
            unsafe { (shared.cuda.driver.cuMemFreeHost)(b.at as *mut c_void) };
        }
    }
}
