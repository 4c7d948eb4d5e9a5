//! NCCL between the threads of one process, or the processes of one host: ranks find each other by unique id or split a
//! communicator that they have, communicators are made and finalized in the background, every call is a task of its
//! stream, and calls that differ between ranks are named. There is no time-out: a rank that does not come is waited for
//! until somebody aborts, as with the real library.
//!
//! Stricter than NVIDIA's documentation: a communicator has one stream; when it is finalized its calls are done, for nobody
//! watches them any more, and no graph holds any, for whose end the library waits; and it is finalized before it is
//! destroyed, or else aborted.

mod calls;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use ferrotron_cuda_sys::CUstream;
use ferrotron_mock::{Access, Call, CollectiveError, Delay, Element, Engine, Fault, Kind, Meeting, Meetings, StreamId};
use ferrotron_nccl_sys::{self as sys, ncclComm_t, ncclResult_t, ncclUniqueId};

use crate::world::{LAUNCH_FAILED, lock, world};

/// As good as for ever.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often the end of a stream's work is looked for.
const LOOK: Duration = Duration::from_micros(200);

type Answer<T> = Result<T, ncclResult_t>;

/// How a communicator came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    ById,
    BySplit,
}

/// A communicator of one rank.
struct Comm {
    /// At which its ranks meet.
    number: u64,
    ranks: usize,
    rank: usize,
    device: usize,
    made: Made,
    /// Once the group was reached.
    meeting: OnceLock<Arc<Meeting>>,
    /// [`sys::ncclInProgress`] while something goes on in the background, then what went wrong.
    state: AtomicI32,
    aborted: AtomicBool,
    finalized: AtomicBool,
    /// How often it was split.
    splits: AtomicU64,
    /// Held by its calls that are queued, and by graphs that hold calls.
    calls: Arc<()>,
    /// The stream of the first call: its handle, and the engine's.
    stream: Mutex<Option<(usize, StreamId)>>,
}

/// The communicators of the process, by handle.
fn comms() -> &'static Mutex<HashMap<usize, Arc<Comm>>> {
    static COMMS: OnceLock<Mutex<HashMap<usize, Arc<Comm>>>> = OnceLock::new();
    COMMS.get_or_init(Mutex::default)
}

/// The version that the mock says it is, such as 22105: FERROTRON_MOCK_NCCL, for programs that a test starts.
pub(crate) fn version() -> &'static AtomicI32 {
    static VERSION: LazyLock<AtomicI32> = LazyLock::new(|| {
        let asked = std::env::var("FERROTRON_MOCK_NCCL").ok().and_then(|v| v.parse().ok());
        AtomicI32::new(asked.unwrap_or(22_105))
    });
    &VERSION
}

/// A communicator that was not destroyed or aborted.
fn member(comm: ncclComm_t) -> Answer<Arc<Comm>> {
    lock(comms()).get(&(comm as usize)).cloned().ok_or(sys::ncclInvalidArgument)
}

/// A communicator that takes calls: all ranks have come, and nothing failed or ended.
fn ready(comm: ncclComm_t, call: &str) -> Answer<Arc<Comm>> {
    let c = member(comm)?;
    if c.finalized.load(Ordering::SeqCst) {
        c.engine().broke(format!("{call} after ncclCommFinalize"));
        return Err(sys::ncclInvalidUsage);
    }
    match c.state.load(Ordering::Acquire) {
        sys::ncclSuccess => Ok(c),
        sys::ncclInProgress => {
            c.engine().broke(format!("{call} while another call on the communicator is in progress"));
            Err(sys::ncclInvalidUsage)
        }
        _ => Err(sys::ncclInvalidUsage),
    }
}

/// Gives a communicator a handle, and tells tests how it was made.
fn add(comm: Arc<Comm>) -> usize {
    static MADE: AtomicUsize = AtomicUsize::new(1);
    let handle = 0x4e43_0000_0000 + MADE.fetch_add(1, Ordering::Relaxed) * 16;
    if let Some(path) = std::env::var_os("FERROTRON_MOCK_COMMS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // a test that finds no line fails
        let _ = file.and_then(|mut f| std::io::Write::write_all(&mut f, format!("{}\n", comm.line()).as_bytes()));
    }
    lock(comms()).insert(handle, comm);
    handle
}

/// A device's communicators, one a line.
pub(crate) fn list(device: usize) -> String {
    let all = lock(comms());
    let mut lines: Vec<String> = all.values().filter(|c| c.device == device).map(|c| c.line()).collect();
    lines.sort();
    lines.join("\n")
}

/// Makes a communicator in the background, as non-blocking ones are.
fn join(id: &ncclUniqueId, ranks: usize, rank: usize) -> Answer<usize> {
    let number = u64::from_ne_bytes(std::array::from_fn(|i| id.internal[i]));
    if number == 0 || rank >= ranks {
        return Err(sys::ncclInvalidArgument);
    }
    let device = world().current().map_err(|_| sys::ncclInvalidUsage)?;
    let comm = Comm::new(number, ranks, rank, device, Made::ById);
    let handle = add(comm.clone());
    std::thread::spawn(move || comm.settle(comm.meet()));
    Ok(handle)
}

/// Splits a communicator in the background. The new one is written to `to` when all ranks have come, shortly after the
/// old one is no longer in progress: callers may rely on neither order.
fn split(parent: Arc<Comm>, color: i32, key: i32, to: *mut ncclComm_t) {
    if let Some(left) = parent.tasks_left() {
        let what =
            format!("ncclCommSplit of a communicator with {left} tasks on its stream: ranks may wait for each other");
        parent.engine().broke(what);
    }
    parent.state.store(sys::ncclInProgress, Ordering::Release);
    let to = to as usize;
    std::thread::spawn(move || match parent.part(color, key) {
        Err(e) => parent.settle(Err(e)),
        Ok(None) => parent.settle(Ok(())),
        Ok(Some(child)) => {
            let handle = add(child.clone());
            parent.settle(Ok(()));
            // late, so that a caller which takes the parent's word for the child's finds nothing
            std::thread::sleep(LOOK);
            // SAFETY: the caller keeps the place until the communicator is there.
            unsafe { (to as *mut ncclComm_t).write_volatile(handle as ncclComm_t) };
            child.settle(child.meet());
        }
    });
}

/// Takes a communicator away.
fn leave(comm: ncclComm_t) -> Answer<Arc<Comm>> {
    lock(comms()).remove(&(comm as usize)).ok_or(sys::ncclInvalidArgument)
}

/// A communicator goes after it was finalized.
fn destroy(comm: ncclComm_t) -> Answer<()> {
    let gone = leave(comm)?;
    let (ranks, state) = (gone.ranks, gone.state.load(Ordering::Acquire));
    let wrong = match (gone.finalized.load(Ordering::SeqCst), state) {
        (false, _) => Some("without ncclCommFinalize"),
        (true, sys::ncclInProgress) => Some("before its ncclCommFinalize is done"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        gone.engine().broke(format!("a communicator of {ranks} is destroyed {wrong}"));
    }
    Ok(())
}

impl Comm {
    fn new(number: u64, ranks: usize, rank: usize, device: usize, made: Made) -> Arc<Comm> {
        Arc::new(Comm {
            number,
            ranks,
            rank,
            device,
            made,
            meeting: OnceLock::new(),
            state: AtomicI32::new(sys::ncclInProgress),
            aborted: AtomicBool::new(false),
            finalized: AtomicBool::new(false),
            splits: AtomicU64::new(0),
            calls: Arc::default(),
            stream: Mutex::default(),
        })
    }

    fn line(&self) -> String {
        let made = if self.made == Made::ById { "id" } else { "split" };
        format!("ranks={} rank={} made={made}", self.ranks, self.rank)
    }

    fn engine(&self) -> &'static Engine {
        &world().devices[self.device]
    }

    /// Tasks on its stream, if there are any.
    fn tasks_left(&self) -> Option<usize> {
        let (_, id) = (*lock(&self.stream))?;
        self.engine().tasks_left(id).ok().filter(|n| *n > 0)
    }

    /// Finds the other ranks, and waits until all have come.
    fn meet(&self) -> Answer<()> {
        static MEETINGS: LazyLock<Meetings> = LazyLock::new(|| Meetings::new("nccl"));
        let wanted = || !self.aborted.load(Ordering::SeqCst);
        let met = MEETINGS.join(self.number, self.ranks, self.rank, PATIENCE, &wanted);
        let met = Arc::new(met.map_err(|_| sys::ncclSystemError)?);
        if met.ranks() != self.ranks {
            return Err(sys::ncclInvalidArgument);
        }
        let met = self.meeting.get_or_init(|| met);
        // An abort has found a meeting, or is found here.
        if !wanted() {
            met.interrupt(self.rank);
        }
        self.agreed(met.come(self.rank))
    }

    /// Where its ranks are, once it is ready.
    fn met(&self) -> Answer<&Arc<Meeting>> {
        self.meeting.get().ok_or(sys::ncclInvalidUsage)
    }

    /// What is done in the background is done.
    fn settle(&self, outcome: Answer<()>) {
        self.state.store(outcome.err().unwrap_or(sys::ncclSuccess), Ordering::Release);
    }

    /// A call of all ranks that moves nothing of the user's.
    fn agreed(&self, outcome: Result<(), CollectiveError>) -> Answer<()> {
        outcome.map_err(|e| match e {
            CollectiveError::Aborted(_) => sys::ncclRemoteError,
            e => {
                self.engine().broke(e.to_string());
                sys::ncclInvalidUsage
            }
        })
    }

    /// This rank's new communicator of a split, which all ranks make at once: those that name one color, in the order of
    /// their keys, and then of their ranks.
    fn part(&self, color: i32, key: i32) -> Answer<Option<Arc<Comm>>> {
        let turn = self.splits.fetch_add(1, Ordering::SeqCst);
        let mine = [i64::from(color), i64::from(key)];
        let mut all = vec![0i64; 2 * self.ranks];
        let call = Call { kind: Kind::Split, count: mine.len(), element: Element::I64 };
        let (send, recv) = ((mine.as_ptr() as usize, size_of_val(&mine)), (all.as_mut_ptr() as usize, 16 * self.ranks));
        // SAFETY: both are this call's alone.
        self.agreed(unsafe { self.met()?.call(self.rank, call, send, recv) })?;
        if color == sys::NCCL_SPLIT_NOCOLOR {
            return Ok(None);
        }
        let said = |rank: usize| (all[2 * rank], all[2 * rank + 1]);
        let mut members: Vec<usize> = (0..self.ranks).filter(|r| said(*r).0 == mine[0]).collect();
        members.sort_by_key(|r| said(*r).1);
        let rank = members.iter().position(|r| *r == self.rank).ok_or(sys::ncclInternalError)?;
        let whole = [self.number.to_ne_bytes(), turn.to_ne_bytes(), mine[0].to_ne_bytes()];
        let number = Meetings::number_of(whole.into_iter().flatten());
        Ok(Some(Comm::new(number, members.len(), rank, self.device, Made::BySplit)))
    }

    /// Ends in the background, with all ranks.
    fn finalize(self: &Arc<Comm>) {
        if let Some(left) = self.tasks_left() {
            self.engine()
                .broke(format!("a communicator of {} is finalized with {left} tasks on its stream", self.ranks));
        }
        self.finalized.store(true, Ordering::SeqCst);
        self.state.store(sys::ncclInProgress, Ordering::Release);
        let comm = self.clone();
        std::thread::spawn(move || {
            while comm.tasks_left().is_some() && !comm.aborted.load(Ordering::SeqCst) {
                std::thread::sleep(LOOK);
            }
            comm.settle(comm.met().and_then(|met| comm.agreed(met.come(comm.rank))));
        });
    }

    /// Ends this rank's waits.
    fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        if let Some(met) = self.meeting.get() {
            met.interrupt(self.rank);
        }
    }

    /// How a task ends: with the stream's error, if it has one.
    fn ended(&self, name: &str, outcome: Result<(), CollectiveError>) -> Result<(), Fault> {
        match outcome {
            // the kernel of an aborted communicator ends without an error of the stream; nobody reads what it left
            Err(CollectiveError::Aborted(_)) if self.aborted.load(Ordering::SeqCst) => Ok(()),
            // a rank is gone: the library tells it, and the kernel waits until the communicator is aborted
            Err(CollectiveError::Aborted(_)) => {
                self.state.store(sys::ncclRemoteError, Ordering::Release);
                if let Some(met) = self.meeting.get() {
                    let _ = met.dawdle(self.rank, None);
                }
                Ok(())
            }
            Err(e) => {
                self.state.store(sys::ncclInvalidUsage, Ordering::Release);
                self.engine().broke(format!("{name}: {e}"));
                Err(Fault { code: LAUNCH_FAILED, text: e.to_string() })
            }
            Ok(()) => Ok(()),
        }
    }

    /// Puts a call on its stream, or into the graph that is captured there: the one place where tasks of this library are
    /// queued. A graph may run it again and again.
    fn queue(
        self: &Arc<Comm>,
        name: &'static str,
        stream: CUstream,
        accesses: Vec<Access>,
        work: impl Fn(&Meeting, usize) -> Result<(), CollectiveError> + Send + Sync + 'static,
    ) -> Answer<()> {
        let (w, stream) = (world(), stream as usize);
        let (engine, id) = w.stream(stream).map_err(|_| sys::ncclInvalidArgument)?;
        if !std::ptr::eq(engine, self.engine()) {
            return Err(sys::ncclInvalidArgument);
        }
        // Two streams would run the calls of one communicator in an order of their own.
        let first = *lock(&self.stream).get_or_insert((stream, id));
        if first.0 != stream {
            engine.broke(format!(
                "{name} on another stream than the communicator's first call: ranks may differ in order"
            ));
        }
        let (comm, met, delay) = (self.clone(), self.met()?.clone(), Delay::of(engine.faults(), name));
        let held = comm.calls.clone();
        let task = move || {
            let (rank, _held) = (comm.rank, &held);
            comm.ended(name, met.suffer(rank, delay).and_then(|()| work(&met, rank)))
        };
        w.enqueue((engine, id), name, accesses, task).map_err(|_| sys::ncclInvalidArgument)
    }
}
