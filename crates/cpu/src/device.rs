//! The CPU as a device.

use std::sync::Arc;

use ferrotron_base::philox::mix;
use ferrotron_device::error::expect;
use ferrotron_device::{
    Backend, DType, DevPtr, Device, DeviceInfo, Error, Ops, ProbeError, Region, Result, Stream, StreamRole, Tensor,
};

use crate::isa::Isa;
use crate::memory::{CpuRegion, available_memory};
use crate::stream::{CpuStream, StreamMode, Streams};
use crate::team::Team;

/// How a CPU device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads of the team, at least 1. Never changes a result.
    pub threads: usize,
    /// How streams run.
    pub streams: StreamMode,
}

impl Default for CpuConfig {
    /// One thread a core, inline streams.
    fn default() -> CpuConfig {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        CpuConfig { threads, streams: StreamMode::Inline }
    }
}

/// The backend `cpu`: one device, always there.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend {
    /// How its devices run.
    pub config: CpuConfig,
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn probe(&self) -> std::result::Result<Vec<DeviceInfo>, ProbeError> {
        Ok(vec![info(Isa::detect())])
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        if ordinal != 0 {
            let what = "the CPU is one device, cpu:0, which any number of ranks may open".into();
            return Err(Error::Device { device: format!("cpu:{ordinal}"), what });
        }
        Ok(Arc::new(CpuDevice::new(self.config)?))
    }
}

fn info(isa: Isa) -> DeviceInfo {
    let model = format!("{} ({})", std::env::consts::ARCH, isa.name());
    DeviceInfo { name: "cpu:0".into(), model, memory: available_memory(), computes: true }
}

/// One rank's CPU device: a team of threads, and the streams that use it.
pub struct CpuDevice {
    info: DeviceInfo,
    name: Arc<str>,
    mode: StreamMode,
    streams: Arc<Streams>,
    ops: CpuOps,
}

impl CpuDevice {
    /// A device on the best instruction set that this processor has.
    pub fn new(config: CpuConfig) -> Result<CpuDevice> {
        CpuDevice::with_isa(config, Isa::detect())
    }

    /// A device on a given instruction set, to compare them.
    pub fn with_isa(config: CpuConfig, isa: Isa) -> Result<CpuDevice> {
        let info = info(isa);
        let name: Arc<str> = info.name.as_str().into();
        if !Isa::available().contains(&isa) {
            let what = format!("this processor has no {}; it has {:?}", isa.name(), Isa::available());
            return Err(Error::Device { device: info.name, what });
        }
        let team = Arc::new(Team::new(name.clone(), config.threads, isa)?);
        Ok(CpuDevice { info, name, mode: config.streams, streams: Arc::default(), ops: CpuOps { team } })
    }

    /// The team that kernels run on.
    pub fn team(&self) -> &Arc<Team> {
        &self.ops.team
    }
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn ops(&self) -> &dyn Ops {
        &self.ops
    }

    fn stream(&self, _: StreamRole) -> Result<Stream> {
        let stream = match self.mode {
            StreamMode::Inline => CpuStream::inline(self.name.clone()),
            StreamMode::Chaos { seed } => {
                CpuStream::chaos(self.name.clone(), mix(seed, self.streams.next()), &self.streams)?
            }
        };
        Ok(Stream::new(Arc::new(stream)))
    }

    fn reserve(&self, bytes: usize, what: &'static str) -> Result<Arc<dyn Region>> {
        let (name, limit) = (self.name.clone(), self.info.memory);
        Ok(Arc::new(CpuRegion::reserve(bytes, what, name, limit, self.streams.clone())?))
    }

    fn upload(&self, s: &Stream, src: &[u8], dst: &mut Tensor) -> Result<()> {
        expect("upload", "bytes", dst.bytes(), src.len())?;
        let to = Address(dst.ptr());
        let stream = CpuStream::of(s)?;
        // SAFETY: `dst` has as many bytes, apart from host memory, and the job runs in stream order.
        let copy = move |src: &[u8]| unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), to.get(), src.len()) };
        match self.mode {
            StreamMode::Inline => {
                s.synchronize()?;
                copy(src);
                Ok(())
            }
            StreamMode::Chaos { .. } => {
                let src = src.to_vec();
                stream.run(move || {
                    copy(&src);
                    Ok(())
                })
            }
        }
    }

    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> Result<()> {
        expect("download", "bytes", src.bytes(), dst.len())?;
        s.synchronize()?;
        // SAFETY: the stream is idle, and `src` has as many bytes, apart from host memory.
        unsafe { std::ptr::copy_nonoverlapping(Address(src.ptr()).get(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    fn fill_bytes(&self, s: &Stream, ptr: DevPtr, bytes: usize, value: u8) -> Result<()> {
        let to = Address(ptr);
        CpuStream::of(s)?.run(move || {
            // SAFETY: the caller names memory of this device, and this runs in stream order.
            unsafe { std::ptr::write_bytes(to.get(), value, bytes) };
            Ok(())
        })
    }
}

/// A device address that jobs may hold.
#[derive(Clone, Copy)]
struct Address(DevPtr);

impl Address {
    fn get(self) -> *mut u8 {
        self.0.0 as *mut u8
    }
}

/// The kernels. Implementations stand with their families: [`crate::gemm`], [`crate::attention`], [`crate::kernels`].
pub struct CpuOps {
    team: Arc<Team>,
}

impl CpuOps {
    /// Runs `job` with the team when the stream reaches it.
    pub(crate) fn run(&self, s: &Stream, job: impl FnOnce(&Team) -> Result<()> + Send + 'static) -> Result<()> {
        let team = self.team.clone();
        CpuStream::of(s)?.run(move || job(&team))
    }
}

impl Ops for CpuOps {
    fn supports(&self, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
    }
}
