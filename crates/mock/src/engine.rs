//! One device: its memory, streams and events, and what was done wrong with them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrotron_base::philox::mix;

use crate::clock::{Clock, Epoch};
use crate::faults::{Fault, Faults};
use crate::memory::{Heap, MemoryError};
use crate::race::{Access, Mode, Shadow};
use crate::stream::{Flag, Job, Mark, Queue, StreamId, Task};

/// The host's place in clocks.
const HOST: usize = 0;
/// Violations kept; a mistake in a loop would fill the memory.
const KEPT: usize = 100;

/// How an engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of the delays.
    pub seed: u64,
    /// Bytes of device memory.
    pub memory: usize,
    /// Streams are late by chance.
    pub late: bool,
    /// Code of a stream whose task would touch memory that is not there.
    pub bad_access: i32,
}

/// Something that happens to work, or may, but is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two accesses that nothing orders.
    Race {
        /// The later one, in host order.
        later: (Arc<str>, Mode),
        /// The earlier one.
        earlier: (Arc<str>, Mode),
        /// First address both touch.
        at: usize,
    },
    /// Memory was freed while queued work may still use it.
    FreedInUse {
        /// First address.
        at: usize,
        /// The work.
        by: Arc<str>,
    },
    /// A task or the host touches memory that is not there.
    BadAccess {
        /// Who.
        by: Arc<str>,
        /// Where, and what is there.
        what: String,
    },
    /// A rule of the vendor was broken.
    Rule(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |m: &Mode| if *m == Mode::Read { "reads" } else { "writes" };
        match self {
            Violation::Race { later, earlier, at } => write!(
                f,
                "race at {at:#x}: {} {} it, {} {} it, and no event or host wait orders them",
                earlier.0,
                verb(&earlier.1),
                later.0,
                verb(&later.1)
            ),
            Violation::FreedInUse { at, by } => {
                write!(f, "memory at {at:#x} is freed while {by} may still use it: nothing has waited for it")
            }
            Violation::BadAccess { by, what } => write!(f, "{by} touches memory that is not there: {what}"),
            Violation::Rule(what) => f.write_str(what),
        }
    }
}

struct StreamState {
    queue: Arc<Queue>,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    host: Clock,
    /// What any thread of the host has learnt by asking.
    asked: Clock,
    shadow: Shadow,
    streams: BTreeMap<usize, StreamState>,
    made: usize,
    violations: Vec<Violation>,
}

thread_local! {
    /// What this thread has learnt by asking whether marks are reached, by engine. Another thread does not know it: one
    /// that only watches must not hide a wait that is missing in one that works.
    static SEEN: RefCell<BTreeMap<usize, Clock>> = RefCell::default();
}

/// One device.
pub struct Engine {
    id: usize,
    options: Options,
    heap: Heap,
    faults: Arc<Faults>,
    state: Mutex<State>,
}

/// No such stream: destroyed, or never made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStream;

impl Engine {
    /// A device.
    pub fn new(options: Options) -> Engine {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Engine { id, options, heap: Heap::new(options.memory), faults: Arc::default(), state: Mutex::default() }
    }

    /// What the host knows on this thread.
    fn host(&self, st: &State) -> Clock {
        let mut clock = st.host.clone();
        SEEN.with_borrow(|seen| {
            if let Some(learnt) = seen.get(&self.id) {
                clock.join(learnt);
            }
        });
        clock
    }

    /// Its memory: for checks and sizes. Allocate and free through the engine.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Faults to make.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new stream with its thread.
    pub fn stream(&self) -> io::Result<StreamId> {
        let mut st = self.state();
        st.made += 1;
        let id = st.made;
        let queue = Arc::new(Queue::new(self.faults.clone(), self.options.late));
        let theirs = queue.clone();
        let seed = mix(self.options.seed, id as u64);
        let thread = std::thread::Builder::new().name(format!("mock stream {id}")).spawn(move || theirs.serve(seed))?;
        let clock = st.host.clone();
        st.streams.insert(id, StreamState { queue, clock, thread: Some(thread) });
        Ok(StreamId(id))
    }

    /// Ends a stream: after its work, or at once.
    pub fn end_stream(&self, s: StreamId, abandon: bool) -> Result<(), NoStream> {
        let mut stream = self.state().streams.remove(&s.0).ok_or(NoStream)?;
        stream.queue.close(abandon);
        if let Some(thread) = stream.thread.take() {
            // A task that panicked was a mistake in a kernel of the mock; it ends the thread only.
            let _ = thread.join();
        }
        self.state().host.join(&stream.clock);
        Ok(())
    }

    /// Ends what a stream does: tasks in its queue are dropped with this fault, a running one is interrupted.
    pub fn abort_stream(&self, s: StreamId, fault: Fault) -> Result<(), NoStream> {
        let queue = self.state().streams.get(&s.0).ok_or(NoStream)?.queue.clone();
        queue.abort(fault);
        // Nothing of the stream runs any more, and the host knows it.
        let mut st = self.state();
        let st = &mut *st;
        let clock = &st.streams.get(&s.0).ok_or(NoStream)?.clock;
        st.host.join(clock);
        Ok(())
    }

    /// Tasks that a stream has not done.
    pub fn tasks_left(&self, s: StreamId) -> Result<usize, NoStream> {
        Ok(self.state().streams.get(&s.0).ok_or(NoStream)?.queue.tasks_left())
    }

    /// Puts a task in the queue. Its accesses are checked now, in host order.
    pub fn enqueue(&self, s: StreamId, task: Task) -> Result<(), NoStream> {
        let mut st = self.state();
        let st = &mut *st;
        let host = self.host(st);
        let stream = st.streams.get_mut(&s.0).ok_or(NoStream)?;
        stream.clock.join(&host);
        let epoch = stream.clock.tick(s.0);
        let mut bad = None;
        for &a in &task.accesses {
            if let Err(what) = self.heap.check(a.at, a.bytes) {
                bad.get_or_insert_with(|| what.clone());
                note(&mut st.violations, Violation::BadAccess { by: task.name.clone(), what });
            } else if let Some(c) = st.shadow.access(a, epoch, &stream.clock, &task.name) {
                let later = (task.name.clone(), a.mode);
                note(&mut st.violations, Violation::Race { later, earlier: c.earlier, at: c.at });
            }
        }
        let task = match bad {
            None => task,
            Some(what) => {
                let (code, name) = (self.options.bad_access, task.name.clone());
                Task::new(task.name, vec![], move || Err(Fault { code, text: format!("{name}: {what}") }))
            }
        };
        stream.queue.push(Job::Task(task));
        Ok(())
    }

    /// Marks the stream's work so far.
    pub fn record(&self, s: StreamId) -> Result<Mark, NoStream> {
        let mut st = self.state();
        let st = &mut *st;
        let host = self.host(st);
        let stream = st.streams.get_mut(&s.0).ok_or(NoStream)?;
        stream.clock.join(&host);
        let mark = Mark { reached: Arc::<Flag>::default(), clock: stream.clock.clone() };
        stream.queue.push(Job::Mark(mark.reached.clone()));
        Ok(mark)
    }

    /// The stream's later work waits for the mark.
    pub fn wait(&self, s: StreamId, mark: &Mark) -> Result<(), NoStream> {
        self.wait_noted(s, mark).map(|_| ())
    }

    /// As [`Engine::wait`]; the wait as something that the host may come to know of ([`Engine::host_knows`]).
    pub fn wait_noted(&self, s: StreamId, mark: &Mark) -> Result<Epoch, NoStream> {
        let mut st = self.state();
        let stream = st.streams.get_mut(&s.0).ok_or(NoStream)?;
        stream.clock.join(&mark.clock);
        let epoch = stream.clock.tick(s.0);
        stream.queue.push(Job::Wait(mark.reached.clone()));
        Ok(epoch)
    }

    /// True when the host has waited for something that comes after this, or some thread of it has seen it.
    pub fn host_knows(&self, e: Epoch) -> bool {
        let st = self.state();
        st.host.knows(e) || st.asked.knows(e)
    }

    /// The host waits for a mark; `Ok(None)` when it is not reached in time.
    pub fn wait_on_host(&self, mark: &Mark, patience: Option<Duration>) -> Option<Result<(), Fault>> {
        let outcome = mark.reached.wait(patience)?;
        self.state().host.join(&mark.clock);
        Some(outcome.map_or(Ok(()), Err))
    }

    /// Asks about a mark: the thread that sees that it is reached knows what was before it.
    pub fn query(&self, mark: &Mark) -> bool {
        let reached = mark.is_reached();
        if reached {
            SEEN.with_borrow_mut(|seen| seen.entry(self.id).or_default().join(&mark.clock));
            self.state().asked.join(&mark.clock);
        }
        reached
    }

    /// Time between two marks that are reached.
    pub fn between(&self, first: &Mark, second: &Mark) -> Option<Duration> {
        let (a, b): (Instant, Instant) = (first.reached.when()?, second.reached.when()?);
        Some(b.saturating_duration_since(a))
    }

    /// The host waits for all work of a stream.
    pub fn synchronize(&self, s: StreamId, patience: Option<Duration>) -> Result<Option<Result<(), Fault>>, NoStream> {
        let mark = self.record(s)?;
        Ok(self.wait_on_host(&mark, patience))
    }

    /// The error that the stream's calls report, if it has failed.
    pub fn fault(&self, s: StreamId) -> Result<Option<Fault>, NoStream> {
        Ok(self.state().streams.get(&s.0).ok_or(NoStream)?.queue.fault())
    }

    /// The host touches memory now, without a stream. `Err`: it is not there.
    pub fn host_access(&self, name: &str, accesses: &[Access]) -> Result<(), String> {
        let mut st = self.state();
        let st = &mut *st;
        let name: Arc<str> = name.into();
        for &a in accesses {
            if let Err(what) = self.heap.check(a.at, a.bytes) {
                note(&mut st.violations, Violation::BadAccess { by: name, what: what.clone() });
                return Err(what);
            }
            let epoch = st.host.tick(HOST);
            let host = self.host(st);
            if let Some(c) = st.shadow.access(a, epoch, &host, &name) {
                let later = (name.clone(), a.mode);
                note(&mut st.violations, Violation::Race { later, earlier: c.earlier, at: c.at });
            }
        }
        Ok(())
    }

    /// A block of undefined contents.
    pub fn alloc(&self, bytes: usize) -> Result<usize, MemoryError> {
        self.heap.alloc(bytes)
    }

    /// Frees a block at once, whoever uses it: what queued work may still use is noted.
    pub fn free(&self, at: usize) -> Result<(), MemoryError> {
        self.end_block(at, Heap::free)
    }

    /// Takes memory away from reserved addresses, as [`Engine::free`].
    pub fn unmap(&self, at: usize) -> Result<(), MemoryError> {
        self.end_block(at, Heap::unmap)
    }

    fn end_block(
        &self,
        at: usize,
        end: fn(&Heap, usize, bool) -> Result<usize, MemoryError>,
    ) -> Result<(), MemoryError> {
        let mut st = self.state();
        let st = &mut *st;
        let mut in_use = false;
        if let Some(bytes) = self.heap.size_of(at) {
            let epoch = st.host.tick(HOST);
            let host = self.host(st);
            if let Some(c) = st.shadow.access(Access::write(at, bytes), epoch, &host, &"free".into()) {
                note(&mut st.violations, Violation::FreedInUse { at, by: c.earlier.0 });
                in_use = true;
            }
        }
        let bytes = end(&self.heap, at, in_use)?;
        st.shadow.forget(at, bytes);
        Ok(())
    }

    /// Notes that a rule was broken.
    pub fn broke(&self, rule: impl Into<String>) {
        note(&mut self.state().violations, Violation::Rule(rule.into()));
    }

    /// What was wrong so far, oldest first, at most 100; the list starts anew.
    pub fn take_violations(&self) -> Vec<Violation> {
        std::mem::take(&mut self.state().violations)
    }

    /// Streams that were never ended.
    pub fn streams_left(&self) -> usize {
        self.state().streams.len()
    }
}

/// Makes the faults that FERROTRON_MOCK_FAULTS asks for, `device:rules` joined by `|`, for programs that a test starts; see
/// [`Faults::add`]. What it does not understand it says on standard error.
pub fn faults_of_environment(devices: &[Engine]) {
    let faults = std::env::var("FERROTRON_MOCK_FAULTS").unwrap_or_default();
    for (device, rules) in faults.split('|').filter_map(|f| f.split_once(':')) {
        match device.trim().parse::<usize>().ok().and_then(|d| devices.get(d)).map(|d| d.faults().add(rules)) {
            Some(Ok(())) => {}
            _ => eprintln!("mock: FERROTRON_MOCK_FAULTS={faults} is not device:site#n=code"),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let left: Vec<StreamId> = self.state().streams.keys().map(|&s| StreamId(s)).collect();
        for s in left {
            // It is there: nobody else has the engine any more.
            let _ = self.end_stream(s, true);
        }
    }
}

fn note(violations: &mut Vec<Violation>, v: Violation) {
    if violations.len() < KEPT {
        violations.push(v);
    }
}
