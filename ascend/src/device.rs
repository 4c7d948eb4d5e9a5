//! An Ascend device.

use std::ffi::c_void;
use std::sync::Arc;

use ferrotron_acl_sys as acl;
use ferrotron_device::error::expect;
use ferrotron_device::{DType, DevPtr, Device, DeviceInfo, Ops, Region, Result, Stream, StreamRole, Tensor};

use crate::Cann;
use crate::made::describe;
use crate::memory::{AscendRegion, info};
use crate::shared::{Omit, Options, Shared, lock};
use crate::stream::{AscendStream, Core};

/// One rank's Ascend device.
pub struct AscendDevice {
    info: DeviceInfo,
    /// Bytes of memory, the part that others use included.
    total: usize,
    shared: Arc<Shared>,
    ops: AscendOps,
}

/// The kernels. Implementations stand with their families in `ops`.
pub struct AscendOps {
    bf16: bool,
}

/// The first 910 (A) and the inference chips of its time have no bf16.
fn has_bf16(chip: &str) -> bool {
    let first = chip.strip_prefix("Ascend910").is_some_and(|rest| !rest.starts_with(['B', '_']));
    !first && !chip.starts_with("Ascend310")
}

impl AscendDevice {
    /// Opens a device. With `omit` it leaves something undone: for tests that show that it would be missed.
    pub fn open(cann: Arc<Cann>, ordinal: usize, omit: Option<Omit>) -> Result<AscendDevice> {
        AscendDevice::open_with(cann, ordinal, Options { omit, ..Options::default() })
    }

    /// Opens a device.
    pub fn open_with(cann: Arc<Cann>, ordinal: usize, options: Options) -> Result<AscendDevice> {
        let shared = Arc::new(Shared::open(cann, ordinal, options)?);
        let version = shared.cann.version.clone().unwrap_or_else(|| "of unknown version".into());
        let model = format!("{} (CANN {version})", shared.cann.chip());
        let (free, total) = info(&shared);
        let info = DeviceInfo { name: shared.name.clone(), model, memory: free, computes: true };
        let ops = AscendOps { bf16: has_bf16(&shared.cann.chip()) };
        Ok(AscendDevice { info, total, shared, ops })
    }

    /// Operators sum in a fixed order.
    pub fn deterministic(&self) -> bool {
        self.shared.options.deterministic
    }

    /// Ops of the contract with the operators that they were made of so far.
    pub fn used(&self) -> Vec<(&'static str, &'static str)> {
        lock(&self.shared.used).iter().copied().collect()
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

    fn describe(&self) -> Vec<String> {
        describe(&self.shared, &self.info, self.total)
    }

    fn ops(&self) -> &dyn Ops {
        &self.ops
    }

    fn stream(&self, role: StreamRole) -> Result<Stream> {
        Ok(Stream::new(Arc::new(AscendStream(Core::new(self.shared.clone(), role)?))))
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
        matches!(dtype, DType::F32 | DType::F16) || (dtype == DType::BF16 && self.bf16)
    }
}
