//! Streams of the CPU device.
//!
//! *Inline*: work runs at once on the thread that enqueues it; nothing is boxed. *Chaos*: every stream has its own
//! thread and waits for seeded random times between jobs, so that a forgotten event or a buffer freed too early is a
//! wrong number on a laptop and not only on an accelerator.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use ferrotron_base::philox::mix;
use ferrotron_device::stream::{EventImpl, HostJob, StreamImpl};
use ferrotron_device::{Error, Event, Result, Stream};

use crate::team::panic_text;

/// How streams of a device run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StreamMode {
    /// At once, on the calling thread.
    #[default]
    Inline,
    /// Each on its own thread, with random delays drawn from this seed.
    Chaos {
        /// Seed of the delays.
        seed: u64,
    },
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs under these locks.
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// First error of a stream; every later call reports it.
struct Sticky {
    device: Arc<str>,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Sticky {
    fn new(device: Arc<str>) -> Sticky {
        Sticky { device, failed: AtomicBool::new(false), error: Mutex::new(None) }
    }

    fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        lock(&self.error).clone().map_or(Ok(()), Err)
    }

    fn set(&self, e: Error) {
        lock(&self.error).get_or_insert(e);
        self.failed.store(true, Ordering::Release);
    }

    /// Runs a job unless an earlier one failed; keeps its error, or its panic as one.
    fn run(&self, job: impl FnOnce() -> Result<()>) -> Result<()> {
        self.check()?;
        let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|why| {
            let what = format!("a kernel or host job panicked: {}", panic_text(&*why));
            Err(Error::Device { device: self.device.to_string(), what })
        });
        if let Err(e) = &result {
            self.set(e.clone());
        }
        result
    }
}

/// A stream of the CPU device.
pub struct CpuStream {
    core: Core,
}

enum Core {
    Inline(Sticky),
    Chaos(Arc<Queue>, Option<JoinHandle<()>>),
}

impl CpuStream {
    pub(crate) fn inline(device: Arc<str>) -> CpuStream {
        CpuStream { core: Core::Inline(Sticky::new(device)) }
    }

    pub(crate) fn chaos(device: Arc<str>, seed: u64, streams: &Streams) -> Result<CpuStream> {
        let queue =
            Arc::new(Queue { jobs: Mutex::default(), filled: Condvar::new(), sticky: Sticky::new(device.clone()) });
        let theirs = queue.clone();
        let name = format!("{device} stream");
        let thread = std::thread::Builder::new().name(name).spawn(move || theirs.serve(seed)).map_err(|e| {
            Error::Device { device: device.to_string(), what: format!("cannot start a stream's thread: {e}") }
        })?;
        streams.add(&queue, thread.thread().id());
        Ok(CpuStream { core: Core::Chaos(queue, Some(thread)) })
    }

    /// The CPU stream behind `s`.
    pub fn of(s: &Stream) -> Result<&CpuStream> {
        let wrong = || Error::Device { device: "cpu".into(), what: "the stream is of another device".into() };
        s.downcast().ok_or_else(wrong)
    }

    /// Runs `job` when the stream reaches it: now, and without boxing it, on an inline stream. The job captures raw
    /// views ([`crate::view`]), never tensors.
    pub fn run(&self, job: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        match &self.core {
            Core::Inline(sticky) => sticky.run(job),
            Core::Chaos(queue, _) => queue.push(Job::Work(Box::new(job))),
        }
    }
}

impl StreamImpl for CpuStream {
    fn record(&self) -> Event {
        match &self.core {
            Core::Inline(_) => Event::done(),
            Core::Chaos(queue, _) => {
                let flag = Arc::<Flag>::default();
                queue.push_always(Job::Record(flag.clone()));
                Event::new(Arc::new(ChaosEvent(flag)))
            }
        }
    }

    fn wait(&self, e: &Event) {
        match (&self.core, e.downcast::<ChaosEvent>()) {
            // Another kind of event, or a chaos event on an inline stream: nothing is asynchronous here but its work.
            (Core::Inline(sticky), Some(event)) => {
                if let Err(e) = event.0.wait() {
                    sticky.set(e);
                }
            }
            (Core::Inline(_), None) => poll(e),
            (Core::Chaos(queue, _), Some(event)) => queue.push_always(Job::Wait(event.0.clone())),
            (Core::Chaos(queue, _), None) => queue.push_always(Job::Poll(e.clone())),
        }
    }

    fn synchronize(&self) -> Result<()> {
        match &self.core {
            Core::Inline(sticky) => sticky.check(),
            Core::Chaos(queue, _) => queue.synchronize(),
        }
    }

    fn enqueue(&self, job: HostJob) -> Result<()> {
        match &self.core {
            Core::Inline(sticky) => sticky.run(job),
            Core::Chaos(queue, _) => queue.push(Job::Work(job)),
        }
    }
}

impl Drop for CpuStream {
    fn drop(&mut self) {
        let Core::Chaos(queue, thread) = &mut self.core else { return };
        lock(&queue.jobs).closed = true;
        queue.filled.notify_all();
        if let Some(thread) = thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // Jobs point into memory that may go next. Their panics were caught.
            let _ = thread.join();
        }
    }
}

/// Blocks until an event of an unknown kind has happened.
fn poll(e: &Event) {
    while !e.is_done() {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Happens once, with or without an error.
#[derive(Default)]
struct Flag {
    state: Mutex<Option<Result<()>>>,
    set: Condvar,
}

impl Flag {
    fn raise(&self, r: Result<()>) {
        *lock(&self.state) = Some(r);
        self.set.notify_all();
    }

    fn wait(&self) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            if let Some(r) = &*state {
                return r.clone();
            }
            state = self.set.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// Mark in a chaos stream.
struct ChaosEvent(Arc<Flag>);

impl EventImpl for ChaosEvent {
    fn is_done(&self) -> bool {
        lock(&self.0.state).is_some()
    }
}

enum Job {
    Work(HostJob),
    Record(Arc<Flag>),
    Wait(Arc<Flag>),
    Poll(Event),
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// The stream's handle is gone: the thread ends when nothing waits.
    closed: bool,
    /// The thread takes no more jobs.
    ended: bool,
}

/// Queue of a chaos stream.
struct Queue {
    jobs: Mutex<Jobs>,
    filled: Condvar,
    sticky: Sticky,
}

impl Queue {
    fn push(&self, job: Job) -> Result<()> {
        self.sticky.check()?;
        self.push_always(job);
        Ok(())
    }

    /// Events pass a stream that has failed: whoever waits for them must wake up.
    fn push_always(&self, job: Job) {
        lock(&self.jobs).waiting.push_back(job);
        self.filled.notify_one();
    }

    /// Waits until what was enqueued so far is done, also on a stream whose handle is gone.
    fn drain(&self) {
        let flag = Arc::<Flag>::default();
        let mut jobs = lock(&self.jobs);
        if jobs.ended {
            return;
        }
        jobs.waiting.push_back(Job::Record(flag.clone()));
        drop(jobs);
        self.filled.notify_one();
        // The error, if any, is the stream's; here only the end of its work matters.
        let _ = flag.wait();
    }

    fn synchronize(&self) -> Result<()> {
        let flag = Arc::<Flag>::default();
        self.push_always(Job::Record(flag.clone()));
        flag.wait()
    }

    fn pop(&self) -> Option<Job> {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.closed {
                jobs.ended = true;
                return None;
            }
            jobs = self.filled.wait(jobs).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Body of the stream's thread.
    fn serve(&self, seed: u64) {
        let mut turn = 0;
        while let Some(job) = self.pop() {
            turn += 1;
            delay(mix(seed, turn));
            match job {
                // The error is kept; later jobs are left out.
                Job::Work(job) => drop(self.sticky.run(job)),
                Job::Record(flag) => flag.raise(self.sticky.check()),
                Job::Wait(flag) => {
                    if let Err(e) = flag.wait() {
                        self.sticky.set(e);
                    }
                }
                Job::Poll(e) => poll(&e),
            }
        }
    }
}

/// Half of all jobs start at once, the others up to 250 us late.
fn delay(random: u64) {
    if random & 1 == 1 {
        std::thread::sleep(Duration::from_micros((random >> 1) % 250));
    }
}

/// The chaos streams of a device.
#[derive(Default)]
pub(crate) struct Streams {
    all: Mutex<Vec<(Weak<Queue>, ThreadId)>>,
    made: AtomicU64,
}

impl Streams {
    /// Number of the next stream, for its seed.
    pub(crate) fn next(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    fn add(&self, queue: &Arc<Queue>, thread: ThreadId) {
        let mut all = lock(&self.all);
        all.retain(|(q, _)| q.strong_count() > 0);
        all.push((Arc::downgrade(queue), thread));
    }

    /// Waits until what was enqueued so far is done, whatever came of it. A stream's own thread does not wait for
    /// itself.
    pub(crate) fn drain(&self) {
        let me = std::thread::current().id();
        let queues: Vec<_> =
            lock(&self.all).iter().filter(|(_, t)| *t != me).filter_map(|(q, _)| q.upgrade()).collect();
        for q in queues {
            q.drain();
        }
    }
}
