//! Copies between host and device in stream order, through pinned memory.
//!
//! Two kinds of pinned memory: blocks that the host itself writes or reads wait for the copy that uses them
//! (`staging`); pieces that only work of the stream touches (copies, host functions) are ordered by the stream (`pinned`).

use std::ffi::c_void;

use ferrotron_acl_sys as acl;
use ferrotron_device::Result;

use ferrotron_device::staging::{Staged, Staging};

use crate::memory::malloc_host;
use crate::shared::{Omit, lock};
use crate::stream::{AscendEvent, Core};

impl Core {
    /// Copies host bytes to the device in stream order. `src` may be reused when this returns.
    pub fn upload(&self, src: &[u8], to: u64) -> Result<()> {
        self.begin()?;
        if src.is_empty() {
            return Ok(());
        }
        let (n, mut staging) = (src.len(), lock(&self.staging));
        let block = self.stage(&mut staging, n)?;
        let pinned = block.at as *mut u8;
        // SAFETY: the block has at least `n` bytes, and no copy reads it any more.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), pinned, n) };
        let from = if self.shared.omits(Omit::Pinned) { src.as_ptr() } else { pinned.cast_const() };
        self.copy(to, from as u64, n, acl::ACL_MEMCPY_HOST_TO_DEVICE)?;
        staging.busy(block, self.record()?);
        Ok(())
    }

    fn stage(&self, staging: &mut Staging<AscendEvent>, bytes: usize) -> Result<Staged> {
        staging.take(bytes, self.shared.omits(Omit::StagingWait), |n| malloc_host(&self.shared, n))
    }

    /// Copies device bytes to the host; returns when they are there.
    pub fn download(&self, from: u64, dst: &mut [u8]) -> Result<()> {
        self.begin()?;
        if dst.is_empty() {
            return self.synchronize();
        }
        let (n, mut staging) = (dst.len(), lock(&self.staging));
        let block = self.stage(&mut staging, n)?;
        self.copy(block.at as u64, from, n, acl::ACL_MEMCPY_DEVICE_TO_HOST)?;
        if !self.shared.omits(Omit::DownloadWait) {
            self.synchronize()?;
        }
        // SAFETY: the copy is done.
        unsafe { std::ptr::copy_nonoverlapping(block.at as *const u8, dst.as_mut_ptr(), n) };
        staging.busy(block, self.record()?);
        Ok(())
    }

    /// Queues a copy. Host sides are pinned memory that lives until it is done.
    pub fn copy(&self, to: u64, from: u64, bytes: usize, kind: acl::aclrtMemcpyKind) -> Result<()> {
        let direction = match kind {
            acl::ACL_MEMCPY_HOST_TO_DEVICE => "to the device",
            acl::ACL_MEMCPY_DEVICE_TO_HOST => "to the host",
            _ => "on the device",
        };
        self.note(format!("copy of {bytes} bytes {direction}"));
        let (to, from) = (to as *mut c_void, from as *const c_void);
        // SAFETY: the caller names memory of this size that lives until the copy is done.
        let status = unsafe { (self.shared.cann.acl.aclrtMemcpyAsync)(to, bytes, from, bytes, kind, self.handle()) };
        self.check("aclrtMemcpyAsync", status)
    }
}
