//! A CUDA device.

use std::ffi::c_void;
use std::sync::Arc;

use ferrotron_device::error::expect;
use ferrotron_device::{DType, DevPtr, Device, DeviceInfo, Graphs, Ops, Region, Result, Stream, StreamRole, Tensor};

use crate::Cuda;
use crate::blas::Blas;
use crate::kernels::{KernelOptions, Kernels};
use crate::memory::{CudaRegion, info};
use crate::shared::{Omit, Shared, lock};
use crate::stream::{Core, CudaStream};

/// One rank's CUDA device.
pub struct CudaDevice {
    info: DeviceInfo,
    ops: CudaOps,
    shared: Arc<Shared>,
}

/// The kernels. Implementations stand with their families in `ops`.
pub struct CudaOps {
    pub(crate) name: String,
    pub(crate) kernels: Kernels,
    pub(crate) blas: Blas,
}

impl CudaDevice {
    /// Opens a device with kernels in any form. With `omit` it leaves something undone: for tests that show that it would be
    /// missed.
    pub fn open(cuda: Arc<Cuda>, ordinal: usize, omit: Option<Omit>) -> Result<CudaDevice> {
        CudaDevice::open_with(cuda, ordinal, omit, &KernelOptions::default())
    }

    /// Opens a device with kernels as these options say.
    pub fn open_with(
        cuda: Arc<Cuda>,
        ordinal: usize,
        omit: Option<Omit>,
        kernels: &KernelOptions,
    ) -> Result<CudaDevice> {
        let shared = Arc::new(Shared::open(cuda, ordinal, omit)?);
        shared.make_current()?;
        let model = shared.cuda.model(ordinal);
        let info = DeviceInfo { name: shared.name.clone(), model, memory: info(&shared).0, computes: true };
        let (kernels, blas) = (Kernels::load(shared.clone(), kernels)?, Blas::new(shared.clone())?);
        Ok(CudaDevice { info, ops: CudaOps { name: shared.name.clone(), kernels, blas }, shared })
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn describe(&self) -> Vec<String> {
        // SAFETY: no arguments.
        let blas = unsafe { (self.shared.cuda.blas.cublasLtGetVersion)() };
        let (major, minor) = (blas / 10_000, blas / 100 % 100);
        let (name, model) = (&self.info.name, &self.info.model);
        let kernels = &self.ops.kernels;
        let what = format!("matrix products by cublasLt {major}.{minor}, all else by kernels of our own");
        let first = format!("{name}: {model}; {what} from {}", kernels.origin());
        let notes = kernels.notes().iter().map(|note| format!("{name}: kernels: {note}"));
        std::iter::once(first).chain(notes).collect()
    }

    fn ops(&self) -> &dyn Ops {
        &self.ops
    }

    fn stream(&self, role: StreamRole) -> Result<Stream> {
        Ok(Stream::new(Arc::new(CudaStream(Core::new(self.shared.clone(), role)?))))
    }

    fn reserve(&self, bytes: usize, what: &'static str) -> Result<Arc<dyn Region>> {
        Ok(Arc::new(CudaRegion::reserve(self.shared.clone(), bytes, what)?))
    }

    fn upload(&self, s: &Stream, src: &[u8], dst: &mut Tensor) -> Result<()> {
        expect("upload", "bytes", dst.bytes(), src.len())?;
        let core = CudaStream::of(s)?;
        core.begin()?;
        if src.is_empty() {
            return Ok(());
        }
        let (n, mut staging) = (src.len(), lock(&core.staging));
        let block = core.stage(&mut staging, n)?;
        let pinned = block.at as *mut u8;
        // SAFETY: the block has at least `n` bytes, and no copy reads it any more.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), pinned, n) };
        let from = if self.shared.omits(Omit::Pinned) { src.as_ptr() } else { pinned.cast_const() };
        core.note(format!("upload of {n} bytes"));
        let stream = self.shared.stream_for(core, Omit::CopyStream);
        // SAFETY: both sides have `n` bytes and live until the copy is done.
        let status = unsafe { (self.shared.cuda.driver.cuMemcpyHtoDAsync_v2)(dst.ptr().0, from.cast(), n, stream) };
        core.check("cuMemcpyHtoDAsync", status)?;
        staging.busy(block, core.record()?);
        Ok(())
    }

    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> Result<()> {
        expect("download", "bytes", src.bytes(), dst.len())?;
        let core = CudaStream::of(s)?;
        core.begin()?;
        if dst.is_empty() {
            return core.synchronize();
        }
        let (n, mut staging) = (dst.len(), lock(&core.staging));
        let block = core.stage(&mut staging, n)?;
        core.note(format!("download of {n} bytes"));
        let stream = self.shared.stream_for(core, Omit::CopyStream);
        let copy = self.shared.cuda.driver.cuMemcpyDtoHAsync_v2;
        // SAFETY: both sides have `n` bytes and live until the copy is done, which is waited for.
        let status = unsafe { copy(block.at as *mut c_void, src.ptr().0, n, stream) };
        core.check("cuMemcpyDtoHAsync", status)?;
        if !self.shared.omits(Omit::DownloadWait) {
            core.synchronize()?;
        }
        // SAFETY: the copy is done.
        unsafe { std::ptr::copy_nonoverlapping(block.at as *const u8, dst.as_mut_ptr(), n) };
        staging.busy(block, core.record()?);
        Ok(())
    }

    fn fill_bytes(&self, s: &Stream, ptr: DevPtr, bytes: usize, value: u8) -> Result<()> {
        let core = CudaStream::of(s)?;
        core.begin()?;
        if bytes == 0 {
            return Ok(());
        }
        core.note(format!("fill of {bytes} bytes"));
        let stream = self.shared.stream_for(core, Omit::CopyStream);
        // SAFETY: the caller names memory of this device, and this runs in stream order.
        let status = unsafe { (self.shared.cuda.driver.cuMemsetD8Async)(ptr.0, value, bytes, stream) };
        core.check("cuMemsetD8Async", status)
    }

    fn start_profiler(&self) -> Result<()> {
        let Some(profiler) = &self.shared.cuda.profiler else { return Ok(()) };
        self.shared.enter()?;
        // SAFETY: no arguments; the context is current.
        self.shared.check("cuProfilerStart", unsafe { (profiler.cuProfilerStart)() })
    }

    fn stop_profiler(&self) -> Result<()> {
        let Some(profiler) = &self.shared.cuda.profiler else { return Ok(()) };
        self.shared.enter()?;
        // SAFETY: no arguments; the context is current.
        self.shared.check("cuProfilerStop", unsafe { (profiler.cuProfilerStop)() })
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        Some(self)
    }
}

impl Graphs for CudaDevice {
    fn collect(&self, home: &Stream) -> Result<()> {
        self.shared.graphs.collect(CudaStream::of(home)?)
    }

    fn launch(&self, home: &Stream) -> Result<()> {
        self.shared.graphs.launch(CudaStream::of(home)?)
    }

    fn discard(&self, home: &Stream) {
        if let Ok(home) = CudaStream::of(home) {
            self.shared.graphs.discard(home);
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let _ = self.shared.enter();
        self.shared.graphs.free(&self.shared);
    }
}

impl Ops for CudaOps {
    fn supports(&self, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
    }
}
