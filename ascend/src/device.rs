//! An Ascend device.

use std::ffi::c_void;
use std::sync::Arc;

use ferrotron_acl_sys as acl;
use ferrotron_device::error::expect;
use ferrotron_device::{DType, DevPtr, Device, DeviceInfo, Ops, Region, Result, Stream, StreamRole, Tensor};

use crate::Cann;
use crate::memory::{AscendRegion, info};
use crate::shared::{Omit, Shared, lock};
use crate::stream::{AscendStream, Core};

/// One rank's Ascend device.
pub struct AscendDevice {
    info: DeviceInfo,
    shared: Arc<Shared>,
    ops: AscendOps,
}

/// The kernels. Implementations stand with their families in `ops`.
pub struct AscendOps {
    pub(crate) name: String,
}

impl AscendDevice {
    /// Opens a device. With `omit` it leaves something undone: for tests that show that it would be missed.
    pub fn open(cann: Arc<Cann>, ordinal: usize, omit: Option<Omit>) -> Result<AscendDevice> {
        let shared = Arc::new(Shared::open(cann, ordinal, omit)?);
        let version = shared.cann.version.clone().unwrap_or_else(|| "of unknown version".into());
        let model = format!("{} (CANN {version})", shared.cann.chip());
        let info = DeviceInfo { name: shared.name.clone(), model, memory: info(&shared).0, computes: true };
        let ops = AscendOps { name: shared.name.clone() };
        Ok(AscendDevice { info, shared, ops })
    }

    /// Operators that this installation lacks: ops that need them say so when they are called.
    pub fn lacking(&self) -> Vec<&'static str> {
        self.shared.cann.ops.lacking()
    }

    /// Copies within the device in stream order. The copy engine takes only addresses aligned to 64 bytes; other ranges
    /// are for the `copy` op.
    pub fn copy_aligned(&self, s: &Stream, src: DevPtr, dst: DevPtr, bytes: usize) -> Result<()> {
        let core = AscendStream::of(s)?;
        core.begin()?;
        if !self.shared.omits(Omit::CopyAlignment) {
            expect("copy_aligned", "addresses modulo 64", (0, 0), (src.0 % 64, dst.0 % 64))?;
        }
        let (to, from) = (dst.0 as *mut c_void, src.0 as *const c_void);
        let copy = self.shared.cann.acl.aclrtMemcpyAsync;
        core.note(format!("copy of {bytes} bytes"));
        // SAFETY: the caller names memory of this device, and this runs in stream order.
        let status = unsafe { copy(to, bytes, from, bytes, acl::ACL_MEMCPY_DEVICE_TO_DEVICE, core.handle()) };
        core.check("aclrtMemcpyAsync", status)
    }
}

impl Device for AscendDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn ops(&self) -> &dyn Ops {
        &self.ops
    }

    fn stream(&self, _: StreamRole) -> Result<Stream> {
        Ok(Stream::new(Arc::new(AscendStream(Core::new(self.shared.clone())?))))
    }

    fn reserve(&self, bytes: usize, what: &'static str) -> Result<Arc<dyn Region>> {
        Ok(Arc::new(AscendRegion::reserve(self.shared.clone(), bytes, what)?))
    }

    fn upload(&self, s: &Stream, src: &[u8], dst: &mut Tensor) -> Result<()> {
        expect("upload", "bytes", dst.bytes(), src.len())?;
        let core = AscendStream::of(s)?;
        core.begin()?;
        if src.is_empty() {
            return Ok(());
        }
        let (n, mut staging) = (src.len(), lock(&core.staging));
        let block = staging.take(&self.shared, n)?;
        let pinned = block.at as *mut u8;
        // SAFETY: the block has at least `n` bytes, and no copy reads it any more.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), pinned, n) };
        let from = if self.shared.omits(Omit::Pinned) { src.as_ptr() } else { pinned.cast_const() };
        let to = dst.ptr().0 as *mut c_void;
        let copy = self.shared.cann.acl.aclrtMemcpyAsync;
        core.note(format!("upload of {n} bytes"));
        // SAFETY: both sides have `n` bytes and live until the copy is done.
        let status = unsafe { copy(to, n, from.cast(), n, acl::ACL_MEMCPY_HOST_TO_DEVICE, core.handle()) };
        core.check("aclrtMemcpyAsync", status)?;
        staging.busy(block, core.record()?);
        Ok(())
    }

    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> Result<()> {
        expect("download", "bytes", src.bytes(), dst.len())?;
        let core = AscendStream::of(s)?;
        core.begin()?;
        if dst.is_empty() {
            return core.synchronize();
        }
        let (n, mut staging) = (dst.len(), lock(&core.staging));
        let block = staging.take(&self.shared, n)?;
        let from = src.ptr().0 as *const c_void;
        let copy = self.shared.cann.acl.aclrtMemcpyAsync;
        core.note(format!("download of {n} bytes"));
        // SAFETY: both sides have `n` bytes and live until the copy is done, which is waited for.
        let status =
            unsafe { copy(block.at as *mut c_void, n, from, n, acl::ACL_MEMCPY_DEVICE_TO_HOST, core.handle()) };
        core.check("aclrtMemcpyAsync", status)?;
        if !self.shared.omits(Omit::DownloadWait) {
            core.synchronize()?;
        }
        // SAFETY: the copy is done.
        unsafe { std::ptr::copy_nonoverlapping(block.at as *const u8, dst.as_mut_ptr(), n) };
        staging.busy(block, core.record()?);
        Ok(())
    }

    fn fill_bytes(&self, s: &Stream, ptr: DevPtr, bytes: usize, value: u8) -> Result<()> {
        let core = AscendStream::of(s)?;
        core.begin()?;
        if bytes == 0 {
            return Ok(());
        }
        let fill = self.shared.cann.acl.aclrtMemsetAsync;
        core.note(format!("fill of {bytes} bytes"));
        // SAFETY: the caller names memory of this device, and this runs in stream order.
        let status = unsafe { fill(ptr.0 as *mut c_void, bytes, i32::from(value), bytes, core.handle()) };
        core.check("aclrtMemsetAsync", status)
    }
}

impl Ops for AscendOps {
    fn supports(&self, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
    }
}
