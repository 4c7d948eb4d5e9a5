//! Streams and events, device-neutral handles over what a backend gives.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Error, Result};

/// Host work that runs when a stream reaches it: collectives of CPU engines, callbacks. It must capture raw device
/// pointers, never tensor handles: a captured handle would hide a missing event by keeping its buffer alive.
pub type HostJob = Box<dyn FnOnce() -> Result<()> + Send>;

/// A host job on its way to a vendor's stream, which calls back when it reaches it.
pub struct HostWork {
    /// What to run.
    pub job: HostJob,
    /// The stream's first error.
    pub error: Arc<Mutex<Option<Error>>>,
    /// The device's name.
    pub device: String,
}

impl HostWork {
    /// Runs the job. Its error, or that it panicked, becomes the stream's if that has none yet: nothing unwinds into the
    /// vendor's thread.
    pub fn run(self) {
        let HostWork { job, error, device } = self;
        let panicked = |_| Err(Error::Device { device, what: "a host job panicked".into() });
        if let Err(e) = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(panicked) {
            error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
        }
    }
}

/// A queue of device work that runs in order. Cloning gives another handle of the same queue.
#[derive(Clone)]
pub struct Stream(Arc<dyn StreamImpl>);

/// What a backend implements behind [`Stream`].
pub trait StreamImpl: Any + Send + Sync {
    /// Marks the work enqueued so far.
    fn record(&self) -> Event;
    /// Makes later work of this stream wait for the event. Does not block the host.
    fn wait(&self, e: &Event);
    /// Blocks the host until all work is done; the stream's first error, if any.
    fn synchronize(&self) -> Result<()>;
    /// Runs `job` on the host when the stream reaches it. Its error becomes the stream's.
    fn enqueue(&self, job: HostJob) -> Result<()>;
}

/// What a backend implements behind [`Event`].
pub trait EventImpl: Any + Send + Sync {
    /// True when the work before the mark is done.
    fn is_done(&self) -> bool;
    /// True when the mark is done, or stands in a graph of work that has begun: inside one the host sees no more.
    fn has_begun(&self) -> bool {
        self.is_done()
    }
}

/// A mark in a stream.
#[derive(Clone)]
pub struct Event(Option<Arc<dyn EventImpl>>);

impl Event {
    /// An event that has already happened.
    pub fn done() -> Event {
        Event(None)
    }

    /// Wraps a backend's event.
    pub fn new(e: Arc<dyn EventImpl>) -> Event {
        Event(Some(e))
    }

    /// True when the work before the mark is done.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|e| e.is_done())
    }

    /// True when the work before the mark is done, as far as the host can see: of a graph ([`crate::Graphs`]) it sees only
    /// that it has begun.
    pub fn has_begun(&self) -> bool {
        self.0.as_ref().is_none_or(|e| e.has_begun())
    }

    /// The backend's event, if it is of type `T`; `None` also for an event that has already happened.
    pub fn downcast<T: EventImpl>(&self) -> Option<&T> {
        let e: &dyn Any = &**self.0.as_ref()?;
        e.downcast_ref()
    }
}

impl Stream {
    /// Wraps a backend's stream.
    pub fn new(s: Arc<dyn StreamImpl>) -> Stream {
        Stream(s)
    }

    /// Marks the work enqueued so far.
    pub fn record(&self) -> Event {
        self.0.record()
    }

    /// Makes later work of this stream wait for the event, which may be of any stream of the same device.
    pub fn wait(&self, e: &Event) {
        if e.0.is_some() {
            self.0.wait(e);
        }
    }

    /// Blocks the host until all work is done. A host sync: one a step is allowed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    /// Runs `job` on the host when the stream reaches it.
    pub fn enqueue(&self, job: HostJob) -> Result<()> {
        self.0.enqueue(job)
    }

    /// The backend's stream, if it is of type `T`.
    pub fn downcast<T: StreamImpl>(&self) -> Option<&T> {
        let s: &dyn Any = &*self.0;
        s.downcast_ref()
    }

    /// True when both are handles of one queue.
    pub fn same(&self, other: &Stream) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}
