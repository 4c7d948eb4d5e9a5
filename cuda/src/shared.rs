//! What a device's streams, regions and kernels share: the tables, the context, and errors in words.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrotron_comm::Ending;
use ferrotron_cuda_sys::{self as sys, CUresult, code};
use ferrotron_device::streams::Streams;
use ferrotron_device::{Error, Result, launches};

use crate::Cuda;
use crate::graph::Graphs;
use crate::library::explain;
use crate::stream::Core;

/// Something that the device leaves undone on purpose, so that a test shows that it would be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omit {
    /// The context is not made current.
    Context,
    /// A stream does not wait for an event.
    EventWait,
    /// Kernels run on the first stream, whatever stream they are for.
    KernelStream,
    /// Matrix products run on the first stream, whatever stream they are for.
    ProductStream,
    /// Copies run on the first stream, whatever stream they are for.
    CopyStream,
    /// Staging memory is used again before its copy is done.
    StagingWait,
    /// Uploads go straight from pageable memory.
    Pinned,
    /// A download does not wait for its copy.
    DownloadWait,
    /// Memory is unmapped without waiting for the streams.
    WaitBeforeUnmap,
    /// A stream's workspace is freed without waiting for it.
    WaitBeforeFree,
    /// Mapped memory is not opened to the device.
    Access,
    /// Proposals for matrix products are asked for without a word of the alignment.
    Alignment,
    /// A matrix product gets half the workspace that it needs.
    Workspace,
    /// Large shared memory is not asked for.
    SharedMemory,
    /// A graph does not wait for what a stream that takes part has done before.
    GraphBefore,
    /// Streams that took part do not wait for the graph.
    GraphAfter,
    /// Marks set in a graph are not set again behind it.
    GraphMarks,
}

/// See the module.
pub struct Shared {
    pub cuda: Arc<Cuda>,
    pub name: String,
    pub device: i32,
    context: usize,
    omit: Option<Omit>,
    pub streams: Streams<Core>,
    /// Whether anybody still waits for the device.
    pub ending: Ending,
    pub graphs: Graphs,
}

pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is valid at every point where this crate could panic.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Takes a device and its context.
    pub fn open(cuda: Arc<Cuda>, ordinal: usize, omit: Option<Omit>) -> Result<Shared> {
        let name = format!("cuda:{ordinal}");
        // a number that is too large is one that the driver refuses
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let (streams, ending, graphs) = (Streams::default(), Ending::default(), Graphs::default());
        let mut shared = Shared { cuda, name, device: 0, context: 0, omit, streams, ending, graphs };
        let driver = &shared.cuda.driver;
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: an out-parameter; the driver is initialised.
        shared.check("cuDeviceGet", unsafe { (driver.cuDeviceGet)(&mut device, number) })?;
        let (major, minor) = shared.cuda.capability(device);
        if major < 8 {
            let what = format!("its compute capability is {major}.{minor}; the kernels need 8.0 (A100) or later");
            return Err(Error::Device { device: shared.name.clone(), what });
        }
        // SAFETY: an out-parameter.
        let status = unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut context, device) };
        shared.check("cuDevicePrimaryCtxRetain", status)?;
        (shared.device, shared.context) = (device, context as usize);
        Ok(shared)
    }

    /// Makes the device's context current on this thread: before every call, for threads come and go, and another device
    /// may have been used on this one.
    pub fn enter(&self) -> Result<()> {
        if self.omits(Omit::Context) { Ok(()) } else { self.make_current() }
    }

    /// As [`Shared::enter`], whatever a test wants: while the device is opened.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context is held.
        self.check("cuCtxSetCurrent", unsafe { (self.cuda.driver.cuCtxSetCurrent)(self.context as *mut c_void) })
    }

    /// True when a test wants this left out.
    pub fn omits(&self, what: Omit) -> bool {
        self.omit == Some(what)
    }

    /// A status as a result.
    pub fn check(&self, call: &str, status: CUresult) -> Result<()> {
        if status == code::SUCCESS { Ok(()) } else { Err(self.failed(self.in_words(call, status))) }
    }

    /// A call's status in words.
    pub fn in_words(&self, call: &str, status: CUresult) -> String {
        format!("{call}: {}", explain(&self.cuda.driver, status))
    }

    /// An error of the device.
    pub fn failed(&self, what: String) -> Error {
        Error::Device { device: self.name.clone(), what }
    }

    /// An error that one stream was asked for, with what was launched last on all that have work: a kernel's error shows first
    /// at whichever is asked first.
    pub fn failed_at(&self, mut what: String, asked: &Core) -> Error {
        let streams = self.streams.all();
        let others = streams.iter().filter(|s| !std::ptr::eq(&***s, asked) && s.has_work());
        launches::tell(&mut what, others.map(|s| &s.launches), &asked.launches);
        self.failed(what)
    }

    /// The handle to use for a stream: its own, unless a test wants the first.
    pub fn stream_for(&self, core: &Core, omit: Omit) -> sys::CUstream {
        let first = self.omits(omit).then(|| self.streams.first()).flatten();
        first.map_or(core.handle(), |first| first.handle())
    }

    /// Waits until every stream is idle: before memory is unmapped, which waits for nobody.
    pub fn drain(&self) {
        for s in self.streams.all() {
            // An error is the stream's own and shows at its next call.
            let _ = s.synchronize();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.context != 0 {
            // SAFETY: retained in `open`, and nothing of ours lives in it any more.
            unsafe { (self.cuda.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}
