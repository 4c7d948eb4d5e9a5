//! An Ascend device.

use std::ffi::c_void;
use std::sync::Arc;

use ferrotron_acl_sys as acl;
use ferrotron_device::error::expect;
use ferrotron_device::{DType, DevPtr, Device, DeviceInfo, Ops, Region, Result, Stream, StreamRole, Tensor};

use crate::Cann;
use crate::memory::{AscendRegion, info};
use crate::shared::{Omit, Shared};
use crate::stream::{AscendStream, Core};

/// One rank's Ascend device.
pub struct AscendDevice {
    info: DeviceInfo,
    shared: Arc<Shared>,
    ops: AscendOps,
}

/// The kernels. Implementations stand with their families in `ops`.
pub struct AscendOps;

impl AscendDevice {
    /// Opens a device. With `omit` it leaves something undone: for tests that show that it would be missed.
    pub fn open(cann: Arc<Cann>, ordinal: usize, omit: Option<Omit>) -> Result<AscendDevice> {
        let shared = Arc::new(Shared::open(cann, ordinal, omit)?);
        let version = shared.cann.version.clone().unwrap_or_else(|| "of unknown version".into());
        let model = format!("{} (CANN {version})", shared.cann.chip());
        let info = DeviceInfo { name: shared.name.clone(), model, memory: info(&shared).0, computes: true };
        Ok(AscendDevice { info, shared, ops: AscendOps })
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
        core.copy(dst.0, src.0, bytes, acl::ACL_MEMCPY_DEVICE_TO_DEVICE)
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
        AscendStream::of(s)?.upload(src, dst.ptr().0)
    }

    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> Result<()> {
        expect("download", "bytes", src.bytes(), dst.len())?;
        AscendStream::of(s)?.download(src.ptr().0, dst)
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
