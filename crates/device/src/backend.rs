//! Backends find devices; devices give memory, streams and kernels.

use std::fmt;
use std::sync::Arc;

use crate::{DevPtr, Error, Ops, Result, Stream, Tensor};

/// Why a backend has no device here: never a panic, always enough to act on.
#[derive(Clone, Debug)]
pub struct ProbeError {
    /// Backend name, as `--device` takes it.
    pub backend: &'static str,
    /// What is missing.
    pub reason: String,
    /// Libraries or files searched, in order.
    pub searched: Vec<String>,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} device: {}", self.backend, self.reason)?;
        for s in &self.searched {
            write!(f, "\n  searched {s}")?;
        }
        write!(f, "\n  to do: {}", self.remedy)
    }
}

impl std::error::Error for ProbeError {}

/// A kind of device: `cpu`, `npu`, `cuda`, `dry`.
pub trait Backend: Send + Sync {
    /// The name that `--device` takes.
    fn name(&self) -> &'static str;
    /// The devices that are here, or why there are none. Never panics.
    fn probe(&self) -> std::result::Result<Vec<DeviceInfo>, ProbeError>;
    /// Opens device `ordinal` of those that [`Backend::probe`] lists.
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>>;
}

/// Facts about a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Name for messages: `cpu:0`.
    pub name: String,
    /// Model in the vendor's words, with the instruction set where it decides the bits of results.
    pub model: String,
    /// Bytes of memory that training may use.
    pub memory: usize,
    /// Kernels do arithmetic: false for the dry device only.
    pub computes: bool,
}

/// What a stream is for. A device may give each role its own priority or hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamRole {
    /// Forward, backward, optimizer: the home stream of the pool.
    Compute,
    /// Collectives of one group.
    Comm,
    /// Host-device copies.
    Copy,
}

impl StreamRole {
    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            StreamRole::Compute => "compute",
            StreamRole::Comm => "collectives",
            StreamRole::Copy => "copies",
        }
    }
}

/// A reserved range of device addresses of which a prefix is backed by memory.
pub trait Region: Send + Sync {
    /// First address.
    fn base(&self) -> DevPtr;
    /// Bytes reserved.
    fn reserved(&self) -> usize;
    /// Backs at least the first `bytes` bytes; what is backed stays. A no-op when that much is backed already.
    fn commit(&self, bytes: usize) -> Result<()>;
}

/// A device that can take the work of a whole step as one graph: the host makes its calls as always, the device collects
/// them, and starts them all at once. It saves the pauses between kernels, and gives the same bits.
///
/// While work is collected the host must not wait for the device: such calls are errors that say so.
pub trait Graphs: Send + Sync {
    /// From here on work for any stream of the device is collected.
    fn collect(&self, home: &Stream) -> Result<()>;
    /// Starts what was collected, behind all that was put on the streams before, and before all that comes after.
    fn launch(&self, home: &Stream) -> Result<()>;
    /// Gives up what was collected: nothing of it has run, and nothing will.
    fn discard(&self, home: &Stream);
}

impl dyn Graphs + '_ {
    /// Collects what `work` puts on streams, and starts it when that is done. When it fails nothing of it runs.
    pub fn of<T, E: From<Error>>(&self, home: &Stream, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.collect(home)?;
        let done = work().inspect_err(|_| self.discard(home))?;
        self.launch(home)?;
        Ok(done)
    }
}

/// One device, as one rank sees it.
pub trait Device: Send + Sync {
    /// Facts.
    fn info(&self) -> &DeviceInfo;
    /// Lines for the log at start: what the device is, and of what its ops are made where that is not its own kernels.
    fn describe(&self) -> Vec<String> {
        vec![]
    }
    /// Kernels.
    fn ops(&self) -> &dyn Ops;
    /// A new stream.
    fn stream(&self, role: StreamRole) -> Result<Stream>;
    /// Reserves addresses; memory comes with [`Region::commit`]. `what` is named when it fails.
    fn reserve(&self, bytes: usize, what: &'static str) -> Result<Arc<dyn Region>>;
    /// Copies host bytes into `dst` in stream order. `src` may be reused when this returns.
    fn upload(&self, s: &Stream, src: &[u8], dst: &mut Tensor) -> Result<()>;
    /// Copies `src` to the host; returns when the bytes are there (a host sync).
    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> Result<()>;
    /// Sets `bytes` bytes at `ptr` to `value` in stream order: poison and zero fills.
    fn fill_bytes(&self, s: &Stream, ptr: DevPtr, bytes: usize, value: u8) -> Result<()>;
    /// Tells the vendor's profiler that it is to capture from here on, where there is a call for that.
    fn start_profiler(&self) -> Result<()> {
        Ok(())
    }
    /// Tells it to capture no more.
    fn stop_profiler(&self) -> Result<()> {
        Ok(())
    }
    /// Graphs of work, where the device has them.
    fn graphs(&self) -> Option<&dyn Graphs> {
        None
    }
}
