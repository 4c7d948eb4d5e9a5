//! Streams and events.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use ferrotron_acl_sys as acl;
use ferrotron_device::launches::Launches;
use ferrotron_device::staging::Staging;
use ferrotron_device::stream::{EventImpl, HostJob, HostWork, StreamImpl};
use ferrotron_device::{Error, Event, Result, Stream, StreamRole};

use crate::memory::{Slab, malloc};
use crate::shared::{Omit, Shared, lock};

/// Operators remembered for error messages.
const KEPT: usize = 32;
/// A wait for a stream looks up so often whether it is still wanted.
const LOOK_UP_MS: i32 = 50;

/// A stream with what belongs to it: scratch, staging, and the operators launched last.
pub struct Core {
    pub shared: Arc<Shared>,
    handle: usize,
    error: Arc<Mutex<Option<Error>>>,
    /// For error messages.
    pub launches: Launches,
    held: Mutex<Held>,
    pub slab: Mutex<Slab>,
    /// Pinned memory that only work of the stream touches.
    pub pinned: Mutex<Slab>,
    pub staging: Mutex<Staging<AscendEvent>>,
    /// Device memory that holds 0, 1, 2, ... in float32; longer ones come later.
    pub positions: Mutex<Vec<Constant>>,
    /// The triangle that stands for every causal mask.
    pub triangle: Mutex<Vec<Constant>>,
}

/// Device memory that is written once: address and bytes.
pub type Constant = (usize, usize);

impl Core {
    pub fn new(shared: Arc<Shared>, role: StreamRole) -> Result<Arc<Core>> {
        shared.enter()?;
        let mut handle = std::ptr::null_mut();
        let flags = acl::ACL_STREAM_FAST_LAUNCH | acl::ACL_STREAM_FAST_SYNC;
        // SAFETY: an out-parameter; a context is current.
        let status = unsafe { (shared.cann.acl.aclrtCreateStreamWithConfig)(&mut handle, 0, flags) };
        shared.check("aclrtCreateStreamWithConfig", status)?;
        if let Some(set) = shared.cann.acl.aclrtSetStreamFailureMode {
            // SAFETY: the stream was just made.
            shared.check("aclrtSetStreamFailureMode", unsafe { set(handle, acl::ACL_STOP_ON_FAILURE) })?;
        }
        let core = Arc::new(Core {
            shared: shared.clone(),
            handle: handle as usize,
            error: Arc::default(),
            launches: Launches::new(role, KEPT),
            held: Mutex::default(),
            slab: Mutex::new(Slab::device()),
            pinned: Mutex::new(Slab::pinned()),
            staging: Mutex::default(),
            positions: Mutex::default(),
            triangle: Mutex::default(),
        });
        shared.streams.add(&core);
        Ok(core)
    }

    pub fn handle(&self) -> acl::aclrtStream {
        self.handle as acl::aclrtStream
    }

    /// The stream's first error, and the device's context made current.
    pub fn begin(&self) -> Result<()> {
        if let Some(e) = self.shared.ending.abandoned() {
            return Err(e);
        }
        if let Some(e) = lock(&self.error).clone() {
            return Err(e);
        }
        self.shared.enter()
    }

    /// A call's status; a failure is the stream's from now on.
    pub fn check(&self, call: &str, status: acl::aclError) -> Result<()> {
        if status == acl::code::OK {
            return Ok(());
        }
        let e = self.shared.failed_at(self.shared.in_words(call, status), self);
        Err(lock(&self.error).get_or_insert(e).clone())
    }

    /// Notes an operator for error messages.
    pub fn note(&self, what: String) {
        self.launches.note(what);
    }

    pub fn synchronize(&self) -> Result<()> {
        self.begin()?;
        let status = self.idle()?;
        if status != acl::code::OK
            && let Some(cause) = self.shared.ending.cause()
        {
            return Err(cause);
        }
        self.check("aclrtSynchronizeStream", status)?;
        *lock(&self.held) = Held::default();
        self.launches.is_idle_now();
        // a host job's error came through no call of the runtime
        self.begin()
    }

    /// Blocks until the stream is idle or has failed, or the device is abandoned: a stream that waits for a rank that is
    /// gone would be waited for as long as HCCL's own time-out.
    fn idle(&self) -> Result<acl::aclError> {
        let acl = &self.shared.cann.acl;
        let Some(within) = acl.aclrtSynchronizeStreamWithTimeout else {
            // SAFETY: the stream lives as long as this.
            return Ok(unsafe { (acl.aclrtSynchronizeStream)(self.handle()) });
        };
        loop {
            // SAFETY: as above.
            match unsafe { within(self.handle(), LOOK_UP_MS) } {
                acl::code::STREAM_SYNC_TIMEOUT => self.begin()?,
                status => return Ok(status),
            }
            // its text, which says no more than the code
            drop(self.shared.cann.take_error());
        }
    }

    /// The error of the stream's work so far, asked for without waiting, if the runtime can tell. It stays the stream's.
    pub fn failure(&self) -> Option<Error> {
        let (told, _) = self.query()?;
        let failed = || self.shared.failed_at(self.shared.in_words("aclrtStreamQuery", told), self);
        (told != acl::code::OK).then(failed)
    }

    /// False when the stream has done all of its work, if the runtime can tell.
    pub fn has_work(&self) -> bool {
        let Some((told, is_done)) = self.query() else { return true };
        if told != acl::code::OK {
            // its text, which is of this stream and not of the one that failed first
            drop(self.shared.cann.take_error());
        }
        !is_done
    }

    /// The runtime's answer about the stream: a status, and whether all is done.
    fn query(&self) -> Option<(acl::aclError, bool)> {
        let query = self.shared.cann.acl.aclrtStreamQuery?;
        self.shared.enter().ok()?;
        let mut status = acl::ACL_STREAM_STATUS_NOT_READY;
        // SAFETY: the stream lives; an out-parameter.
        let told = unsafe { query(self.handle(), &mut status) };
        Some((told, told == acl::code::OK && status == acl::ACL_STREAM_STATUS_COMPLETE))
    }

    /// Ends what the stream does, if the runtime can.
    pub fn abort(&self) {
        if let (Ok(()), Some(abort)) = (self.shared.enter(), self.shared.cann.acl.aclrtStreamAbort) {
            // SAFETY: the stream lives; nobody reads what it was to make.
            unsafe { abort(self.handle()) };
        }
    }

    pub fn record(&self) -> Result<AscendEvent> {
        self.begin()?;
        let acl = &self.shared.cann.acl;
        let progress = acl::ACL_EVENT_CAPTURE_STREAM_PROGRESS;
        let flags = if self.shared.omits(Omit::EventFlag) { progress } else { progress | acl::ACL_EVENT_SYNC };
        let mut handle = std::ptr::null_mut();
        // SAFETY: an out-parameter; a context is current.
        self.check("aclrtCreateEventExWithFlag", unsafe { (acl.aclrtCreateEventExWithFlag)(&mut handle, flags) })?;
        let event = AscendEvent(Arc::new(Handle { shared: self.shared.clone(), at: handle as usize }));
        // SAFETY: both were made in this context and live.
        self.check("aclrtRecordEvent", unsafe { (acl.aclrtRecordEvent)(handle, self.handle()) })?;
        Ok(event)
    }

    fn wait(&self, e: &AscendEvent) -> Result<()> {
        self.begin()?;
        if self.shared.omits(Omit::EventWait) {
            return Ok(());
        }
        // SAFETY: both live.
        let status = unsafe { (self.shared.cann.acl.aclrtStreamWaitEvent)(self.handle(), e.handle()) };
        self.check("aclrtStreamWaitEvent", status)?;
        self.hold(e)
    }

    /// Keeps an event until this stream has passed its wait.
    fn hold(&self, e: &AscendEvent) -> Result<()> {
        if self.shared.omits(Omit::EventHold) {
            return Ok(());
        }
        let mut held = lock(&self.held);
        held.open.push(e.clone());
        if held.open.len() >= HELD {
            let passed = self.record()?;
            let events = std::mem::take(&mut held.open);
            held.closed.push_back((passed, events));
        }
        while held.closed.front().is_some_and(|(passed, _)| passed.is_done()) {
            held.closed.pop_front();
        }
        Ok(())
    }
}

impl Core {
    /// Device memory of at least so many bytes that `fill` wrote: made at the first use, and again when more is needed.
    pub fn constant(
        &self,
        made: &Mutex<Vec<Constant>>,
        bytes: usize,
        what: &'static str,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<u64> {
        let mut made = lock(made);
        if let Some(&(at, _)) = made.iter().find(|(_, has)| *has >= bytes) {
            return Ok(at as u64);
        }
        let mut host = vec![0; bytes.max(1 << 14).next_power_of_two()];
        let at = malloc(&self.shared, host.len(), what)?;
        made.push((at, host.len()));
        fill(&mut host);
        self.upload(&host, at as u64)?;
        Ok(at as u64)
    }

    /// True when the host can take part in the stream's order.
    pub fn has_host_jobs(&self) -> bool {
        self.shared.cann.acl.aclrtLaunchHostFunc.is_some()
    }

    /// Runs a job on the host when the stream reaches it. Its error becomes the stream's.
    pub fn enqueue(&self, job: HostJob) -> Result<()> {
        self.begin()?;
        let Some(launch) = self.shared.cann.acl.aclrtLaunchHostFunc else {
            return Err(Error::Unsupported {
                op: "host job",
                device: self.shared.name.clone(),
                why: "this release of CANN has no aclrtLaunchHostFunc".into(),
            });
        };
        let work = Box::new(HostWork { job, error: self.error.clone(), device: self.shared.name.clone() });
        self.note("host job".into());
        // SAFETY: the stream lives; `run` takes the box back, once. (A stream that fails first never runs it: it leaks.)
        let status = unsafe { launch(self.handle(), run, Box::into_raw(work).cast()) };
        self.check("aclrtLaunchHostFunc", status)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Scratch and staging go next, and freeing waits for nobody. After an error nothing more can be done than to
        // give the handles back.
        if !self.shared.omits(Omit::WaitBeforeFree) {
            let _ = self.synchronize();
        }
        let _ = self.shared.enter();
        lock(&self.slab).free(&self.shared);
        lock(&self.pinned).free(&self.shared);
        for (at, _) in lock(&self.positions).drain(..).chain(lock(&self.triangle).drain(..)) {
            // SAFETY: ours, and nobody works on it.
            unsafe { (self.shared.cann.acl.aclrtFree)(at as *mut c_void) };
        }
        for at in lock(&self.staging).drain() {
            // SAFETY: as above.
            unsafe { (self.shared.cann.acl.aclrtFreeHost)(at as *mut c_void) };
        }
        let acl = &self.shared.cann.acl;
        let by_force = acl.aclrtDestroyStreamForce.filter(|_| self.shared.ending.abandoned().is_some());
        // SAFETY: the stream is ours, and this is its last use.
        unsafe { by_force.unwrap_or(acl.aclrtDestroyStream)(self.handle()) };
    }
}

/// The stream behind a handle of the contract.
pub struct AscendStream(pub Arc<Core>);

impl AscendStream {
    /// The Ascend stream behind `s`.
    pub fn of(s: &Stream) -> Result<&Arc<Core>> {
        let wrong = || Error::Device { device: "npu".into(), what: "the stream is of another device".into() };
        s.downcast::<AscendStream>().map(|s| &s.0).ok_or_else(wrong)
    }
}

impl StreamImpl for AscendStream {
    fn record(&self) -> Event {
        // An error is kept: the stream's next call reports it.
        self.0.record().map_or_else(|_| Event::done(), |e| Event::new(Arc::new(e)))
    }

    fn wait(&self, e: &Event) {
        match e.downcast::<AscendEvent>() {
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
        self.0.enqueue(job)
    }
}

unsafe extern "C" fn run(args: *mut c_void) {
    // SAFETY: `args` is the box that `enqueue` gave away.
    let work = unsafe { Box::from_raw(args.cast::<HostWork>()) };
    work.run();
}

/// Events that a stream waits for, kept until it has passed: the runtime forbids to destroy them before.
#[derive(Default)]
pub struct Held {
    open: Vec<AscendEvent>,
    /// Events, and a mark of this stream after its waits for them.
    closed: VecDeque<(AscendEvent, Vec<AscendEvent>)>,
}

/// Events after whose waits a mark is made.
const HELD: usize = 64;

struct Handle {
    shared: Arc<Shared>,
    at: usize,
}

/// A mark in a stream.
#[derive(Clone)]
pub struct AscendEvent(Arc<Handle>);

impl AscendEvent {
    fn handle(&self) -> acl::aclrtEvent {
        self.0.at as acl::aclrtEvent
    }
}

impl EventImpl for AscendEvent {
    fn is_done(&self) -> bool {
        let mut status = acl::ACL_EVENT_RECORDED_STATUS_NOT_READY;
        // an error here is one of the device, which the stream reports; nobody should wait for it any longer
        let shared = &self.0.shared;
        let failed = shared.enter().is_err()
            // SAFETY: the event lives; an out-parameter.
            || unsafe { (shared.cann.acl.aclrtQueryEventStatus)(self.handle(), &mut status) } != 0;
        failed || status == acl::ACL_EVENT_RECORDED_STATUS_COMPLETE
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.shared.enter();
        // SAFETY: the event is ours, and this is its last use: streams that wait for it hold it until they have passed.
        unsafe { (self.shared.cann.acl.aclrtDestroyEvent)(self.at as acl::aclrtEvent) };
    }
}
