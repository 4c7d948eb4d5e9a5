//! Streams.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrotron_cuda_sys::{self as sys, CUresult, code};
use ferrotron_device::launches::Launches;
use ferrotron_device::staging::{Staged, Staging};
use ferrotron_device::stream::{HostJob, HostWork, StreamImpl};
use ferrotron_device::{Error, Event, Result, Stream, StreamRole};

use crate::event::CudaEvent;
use crate::memory::Workspace;
use crate::shared::{Omit, Shared, lock};

/// Kernels remembered for error messages.
const KEPT: usize = 16;

/// A stream with what belongs to it: workspace, staging, and the kernels launched last.
pub struct Core {
    pub shared: Arc<Shared>,
    handle: usize,
    error: Arc<Mutex<Option<Error>>>,
    /// For error messages.
    pub launches: Launches,
    pub workspace: Mutex<Workspace>,
    pub staging: Mutex<Staging<CudaEvent>>,
}

impl Core {
    /// A stream. Collectives and copies go before kernels: they are short, and others wait for them.
    pub fn new(shared: Arc<Shared>, role: StreamRole) -> Result<Arc<Core>> {
        shared.enter()?;
        let driver = &shared.cuda.driver;
        let (mut least, mut greatest, mut handle) = (0, 0, std::ptr::null_mut());
        // SAFETY: out-parameters; a context is current.
        let status = unsafe { (driver.cuCtxGetStreamPriorityRange)(&mut least, &mut greatest) };
        shared.check("cuCtxGetStreamPriorityRange", status)?;
        let priority = if role == StreamRole::Compute { least } else { greatest };
        // SAFETY: an out-parameter; a context is current.
        let status = unsafe { (driver.cuStreamCreateWithPriority)(&mut handle, sys::CU_STREAM_NON_BLOCKING, priority) };
        shared.check("cuStreamCreateWithPriority", status)?;
        let core = Arc::new(Core {
            shared: shared.clone(),
            handle: handle as usize,
            error: Arc::default(),
            launches: Launches::new(role, KEPT),
            workspace: Mutex::default(),
            staging: Mutex::default(),
        });
        shared.streams.add(&core);
        Ok(core)
    }

    pub fn handle(&self) -> sys::CUstream {
        self.handle as sys::CUstream
    }

    /// The stream's first error; the device's context made current; while a step is collected, the stream takes part.
    pub fn begin(&self) -> Result<()> {
        if let Some(e) = lock(&self.error).clone().or_else(|| self.shared.ending.abandoned()) {
            return Err(e);
        }
        self.shared.enter()?;
        self.shared.graphs.join(self)
    }

    /// A call's status; a failure is the stream's from now on.
    pub fn check(&self, call: &str, status: CUresult) -> Result<()> {
        if status == code::SUCCESS { Ok(()) } else { Err(self.refused(self.shared.in_words(call, status))) }
    }

    /// As [`Core::check`], for a library whose status is in words already.
    pub fn refused(&self, what: String) -> Error {
        self.fail(self.shared.failed_at(what, self))
    }

    fn fail(&self, e: Error) -> Error {
        lock(&self.error).get_or_insert(e).clone()
    }

    /// Notes a kernel for error messages.
    pub fn note(&self, what: String) {
        self.launches.note(what);
    }

    pub fn synchronize(&self) -> Result<()> {
        self.begin()?;
        if self.shared.graphs.is_on() {
            return Err(self.shared.broken("the host waits for the device while a step is collected as a CUDA graph"));
        }
        let status = self.idle()?;
        if status != code::SUCCESS
            && let Some(cause) = self.shared.ending.cause()
        {
            return Err(cause);
        }
        self.check("cuStreamSynchronize", status)?;
        self.launches.is_idle_now();
        // a host job's error came through no call of the driver
        self.begin()
    }

    /// Blocks until the stream is idle or has failed, or the device is abandoned: a stream that waits for a rank that is
    /// gone never ends, and only a host that looks up can be told.
    fn idle(&self) -> Result<CUresult> {
        let driver = &self.shared.cuda.driver;
        if !self.shared.ending.is_watched() {
            // SAFETY: the stream lives as long as this.
            return Ok(unsafe { (driver.cuStreamSynchronize)(self.handle()) });
        }
        let mut pause = Duration::from_micros(5);
        loop {
            // SAFETY: as above.
            match unsafe { (driver.cuStreamQuery)(self.handle()) } {
                // what is idle now was ordered before: the call that says so to the driver returns at once
                // SAFETY: as above.
                code::SUCCESS => return Ok(unsafe { (driver.cuStreamSynchronize)(self.handle()) }),
                code::NOT_READY => self.begin()?,
                status => return Ok(status),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_micros(200));
        }
    }

    /// The error of the stream's work so far, asked for without waiting. It stays the stream's.
    pub fn failure(&self) -> Option<Error> {
        let status = self.query()?;
        let failed = status != code::SUCCESS && status != code::NOT_READY;
        failed.then(|| self.shared.failed_at(self.shared.in_words("cuStreamQuery", status), self))
    }

    /// False when the stream has done all of its work, as far as the driver may be asked.
    pub fn has_work(&self) -> bool {
        self.query().is_none_or(|status| status != code::SUCCESS)
    }

    /// How the stream is doing; `None` while a step is collected.
    fn query(&self) -> Option<CUresult> {
        let _not_collecting = self.shared.graphs.kept_off()?;
        self.shared.enter().ok()?;
        // SAFETY: the stream lives.
        Some(unsafe { (self.shared.cuda.driver.cuStreamQuery)(self.handle()) })
    }

    /// A pinned block of the stream's staging memory.
    pub fn stage(&self, staging: &mut Staging<CudaEvent>, bytes: usize) -> Result<Staged> {
        staging.take(bytes, self.shared.omits(Omit::StagingWait), |n| {
            let mut at = std::ptr::null_mut();
            // SAFETY: an out-parameter; a context is current.
            let status = unsafe { (self.shared.cuda.driver.cuMemHostAlloc)(&mut at, n, 0) };
            self.shared.check("cuMemHostAlloc", status)?;
            Ok(at as usize)
        })
    }

    pub fn record(&self) -> Result<CudaEvent> {
        self.begin()?;
        let graphs = &self.shared.graphs;
        let event = self.mark(graphs.is_on())?;
        graphs.marked(&event);
        Ok(event)
    }

    /// As [`Core::record`], without the stream's first error; of a step that is collected, if so.
    pub fn mark(&self, collected: bool) -> Result<CudaEvent> {
        self.mark_on(self.handle(), collected)
    }

    /// The same on another stream of the device.
    pub fn mark_on(&self, stream: sys::CUstream, collected: bool) -> Result<CudaEvent> {
        let driver = &self.shared.cuda.driver;
        let mut handle = std::ptr::null_mut();
        // SAFETY: an out-parameter; a context is current.
        self.check("cuEventCreate", unsafe { (driver.cuEventCreate)(&mut handle, sys::CU_EVENT_DISABLE_TIMING) })?;
        let event = CudaEvent::new(self.shared.clone(), handle as usize, collected);
        // SAFETY: both were made in this context and live.
        self.check("cuEventRecord", unsafe { (driver.cuEventRecord)(handle, stream) })?;
        Ok(event)
    }

    fn wait(&self, e: &CudaEvent) -> Result<()> {
        self.begin()?;
        if self.shared.omits(Omit::EventWait) {
            return Ok(());
        }
        let outer = self.shared.graphs.waits_for(e);
        self.wait_for(e, if outer { sys::CU_EVENT_WAIT_EXTERNAL } else { 0 })
    }

    /// The stream waits for an event.
    pub fn wait_for(&self, e: &CudaEvent, flags: u32) -> Result<()> {
        self.wait_on(self.handle(), e, flags)
    }

    /// Another stream of the device waits for an event.
    pub fn wait_on(&self, stream: sys::CUstream, e: &CudaEvent, flags: u32) -> Result<()> {
        // SAFETY: both live.
        let status = unsafe { (self.shared.cuda.driver.cuStreamWaitEvent)(stream, e.handle(), flags) };
        self.check("cuStreamWaitEvent", status)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Workspace and staging go next, and freeing need not wait. After an error nothing more can be done than to give
        // the handles back.
        if !self.shared.omits(Omit::WaitBeforeFree) {
            let _ = self.synchronize();
        }
        let _ = self.shared.enter();
        lock(&self.workspace).free(&self.shared);
        for at in lock(&self.staging).drain() {
            // SAFETY: ours, and no copy works on it.
            unsafe { (self.shared.cuda.driver.cuMemFreeHost)(at as *mut c_void) };
        }
        // SAFETY: the stream is ours, and this is its last use.
        unsafe { (self.shared.cuda.driver.cuStreamDestroy_v2)(self.handle()) };
    }
}

/// The stream behind a handle of the contract.
pub struct CudaStream(pub Arc<Core>);

impl CudaStream {
    /// The CUDA stream behind `s`.
    pub fn of(s: &Stream) -> Result<&Arc<Core>> {
        let wrong = || Error::Device { device: "cuda".into(), what: "the stream is of another device".into() };
        s.downcast::<CudaStream>().map(|s| &s.0).ok_or_else(wrong)
    }
}

impl StreamImpl for CudaStream {
    fn record(&self) -> Event {
        // An error is kept: the stream's next call reports it.
        self.0.record().map_or_else(|_| Event::done(), |e| Event::new(Arc::new(e)))
    }

    fn wait(&self, e: &Event) {
        match e.downcast::<CudaEvent>() {
            Some(event) => drop(self.0.wait(event)),
            // an event of another device: the host waits for it
            None => {
                while !e.is_done() {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            }
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    fn enqueue(&self, job: HostJob) -> Result<()> {
        self.0.begin()?;
        let work = Box::new(HostWork { job, error: self.0.error.clone(), device: self.0.shared.name.clone() });
        self.0.note("host job".into());
        let launch = self.0.shared.cuda.driver.cuLaunchHostFunc;
        // SAFETY: the stream lives; `run` takes the box back, once. (A stream that fails first never runs it: it leaks.)
        let status = unsafe { launch(self.0.handle(), run, Box::into_raw(work).cast()) };
        self.0.check("cuLaunchHostFunc", status)
    }
}

unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: `data` is the box that `enqueue` gave away.
    let work = unsafe { Box::from_raw(data.cast::<HostWork>()) };
    work.run();
}
