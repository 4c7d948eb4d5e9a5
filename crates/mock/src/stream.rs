//! Queues of tasks, each served by a thread that is late by seeded chance.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrotron_base::philox::mix;

use crate::clock::Clock;
use crate::faults::{Fault, Faults};
use crate::race::Access;

/// A stream of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(crate) usize);

/// Work of a stream: a kernel, a copy, a collective.
pub struct Task {
    /// Name for reports and faults.
    pub name: Arc<str>,
    /// All memory that it touches.
    pub accesses: Vec<Access>,
    /// The work.
    pub run: Box<dyn FnOnce() -> Result<(), Fault> + Send>,
    /// Ends the work's waits, when the stream is aborted.
    pub interrupt: Option<Interrupt>,
}

/// What ends the waits of a task that runs.
pub type Interrupt = Arc<dyn Fn() + Send + Sync>;

impl Task {
    /// A task.
    pub fn new(
        name: impl Into<Arc<str>>,
        accesses: Vec<Access>,
        run: impl FnOnce() -> Result<(), Fault> + Send + 'static,
    ) -> Task {
        Task { name: name.into(), accesses, run: Box::new(run), interrupt: None }
    }

    /// The same, with what ends its waits.
    pub fn interrupted_by(self, interrupt: Interrupt) -> Task {
        Task { interrupt: Some(interrupt), ..self }
    }
}

/// A point in a stream: what an event records.
#[derive(Clone)]
pub struct Mark {
    pub(crate) reached: Arc<Flag>,
    pub(crate) clock: Clock,
}

impl Mark {
    /// True when the stream has passed it.
    pub fn is_reached(&self) -> bool {
        self.reached.outcome().is_some()
    }
}

/// Set once, when a stream passes a mark; with the stream's error, if it has one.
#[derive(Default)]
pub(crate) struct Flag {
    state: Mutex<Option<(Option<Fault>, Instant)>>,
    set: Condvar,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flag {
    fn raise(&self, fault: Option<Fault>) {
        *lock(&self.state) = Some((fault, Instant::now()));
        self.set.notify_all();
    }

    fn outcome(&self) -> Option<Option<Fault>> {
        lock(&self.state).as_ref().map(|(f, _)| f.clone())
    }

    /// When it was set.
    pub(crate) fn when(&self) -> Option<Instant> {
        lock(&self.state).as_ref().map(|(_, t)| *t)
    }

    /// Waits until it is set; `None` when that takes longer than `patience`.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> Option<Option<Fault>> {
        let end = patience.map(|p| Instant::now() + p);
        let mut state = lock(&self.state);
        loop {
            if let Some((fault, _)) = &*state {
                return Some(fault.clone());
            }
            let left = end.map_or(Duration::from_secs(3600), |e| e.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            state = self.set.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

pub(crate) enum Job {
    Task(Task),
    Mark(Arc<Flag>),
    Wait(Arc<Flag>),
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

/// The queue that a stream's thread serves.
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    filled: Condvar,
    fault: Mutex<Option<Fault>>,
    running: Mutex<Option<Interrupt>>,
    left: AtomicUsize,
    busy: AtomicBool,
    faults: Arc<Faults>,
    late: bool,
}

impl Queue {
    pub(crate) fn new(faults: Arc<Faults>, late: bool) -> Queue {
        let (jobs, fault, running) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (left, busy) = (AtomicUsize::new(0), AtomicBool::new(false));
        Queue { jobs, filled: Condvar::new(), fault, running, left, busy, faults, late }
    }

    /// Tasks that are queued or run, and will be: after a fault none.
    pub(crate) fn tasks_left(&self) -> usize {
        if self.fault().is_some() { 0 } else { self.left.load(Ordering::Acquire) }
    }

    /// The queue's tasks are left out from now on; one that runs is told to end, and waited for.
    pub(crate) fn abort(&self, fault: Fault) {
        self.fail(fault);
        if let Some(interrupt) = &*lock(&self.running) {
            interrupt();
        }
        while self.busy.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub(crate) fn push(&self, job: Job) {
        if matches!(job, Job::Task(_)) {
            self.left.fetch_add(1, Ordering::AcqRel);
        }
        lock(&self.jobs).waiting.push_back(job);
        self.filled.notify_one();
    }

    /// No more jobs come; `abandon` drops those that wait, but for marks, which are passed.
    pub(crate) fn close(&self, abandon: bool) {
        let mut jobs = lock(&self.jobs);
        jobs.closed = true;
        if abandon {
            jobs.waiting.retain(|j| matches!(j, Job::Mark(_)));
        }
        drop(jobs);
        self.filled.notify_one();
    }

    /// The stream's first error: every later call reports it.
    pub(crate) fn fault(&self) -> Option<Fault> {
        lock(&self.fault).clone()
    }

    pub(crate) fn fail(&self, fault: Fault) {
        lock(&self.fault).get_or_insert(fault);
    }

    fn pop(&self) -> Option<Job> {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.closed {
                return None;
            }
            jobs = self.filled.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Body of the stream's thread. After a fault tasks are left out; marks and waits go on, or others would hang.
    pub(crate) fn serve(&self, seed: u64) {
        let mut turn = 0;
        while let Some(job) = self.pop() {
            turn += 1;
            if self.late {
                delay(mix(seed, turn));
            }
            match job {
                Job::Mark(flag) => flag.raise(self.fault()),
                Job::Wait(flag) => {
                    // A stream that waits for one which failed has failed too.
                    if let Some(Some(fault)) = flag.wait(None) {
                        self.fail(fault);
                    }
                }
                Job::Task(task) => {
                    // Under the lock an abort comes before the task or interrupts it.
                    {
                        let mut running = lock(&self.running);
                        *running = task.interrupt;
                        self.busy.store(true, Ordering::Release);
                    }
                    if self.fault().is_none() {
                        let injected = self.faults.visit(&format!("task:{}", task.name));
                        let result = match injected {
                            Some(code) => Err(Fault { code, text: format!("{} was made to fail", task.name) }),
                            None => (task.run)(),
                        };
                        if let Err(fault) = result {
                            self.fail(fault);
                        }
                    }
                    *lock(&self.running) = None;
                    self.busy.store(false, Ordering::Release);
                    self.left.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }
}

/// Late by chance: mostly not at all, sometimes by a fraction of a millisecond, now and then by two.
fn delay(chance: u64) {
    match chance % 64 {
        0 => std::thread::sleep(Duration::from_micros(2000)),
        1..=7 => std::thread::sleep(Duration::from_micros((chance >> 8) % 300)),
        8..=15 => std::thread::yield_now(),
        _ => {}
    }
}
