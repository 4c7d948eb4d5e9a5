//! A fork-join team of threads: the caller and N-1 workers.
//!
//! Tasks are handed out by an atomic counter, so who runs a task is a matter of chance; results must not depend on
//! it. Work is cut by shape ([`Chunks`]), never by the number of threads. A call allocates nothing.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use ferrotron_device::{Error, Result};

use crate::isa::Isa;
use crate::scratch::{Scratch, Slab};
use crate::view::Parts;

/// Bytes of scratch that each thread of a team has.
pub const SCRATCH_BYTES: usize = 1 << 20;
/// Bytes of scratch that a team shares: the packed panels of a matrix product.
pub const SHARED_BYTES: usize = 24 << 20;

/// Turns of the spin loop (about 20 us) before a waiting thread gives its core away.
const SPINS: usize = 2000;

/// Equal pieces of `n` items, `size` each but for the last. A function of the shape only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    n: usize,
    size: usize,
}

/// Cuts `n` items in pieces of `grain`.
pub fn chunks(n: usize, grain: usize) -> Chunks {
    Chunks { n, size: grain.max(1) }
}

impl Chunks {
    /// How many pieces.
    pub fn count(self) -> usize {
        self.n.div_ceil(self.size)
    }

    /// Items of piece `i`.
    pub fn range(self, i: usize) -> Range<usize> {
        i * self.size..((i + 1) * self.size).min(self.n)
    }
}

/// Rows a task should take so that it moves about 64 KiB: enough to hide the hand-out, few enough to balance.
pub fn row_grain(bytes_per_row: usize) -> usize {
    ((64 << 10) / bytes_per_row.max(1)).max(1)
}

type Task<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

/// The call in progress. Valid while [`Shared::state`] is open or has active workers.
struct Call {
    task: *const Task<'static>,
    tasks: usize,
}

/// `state` = epoch << 32 | OPEN | number of workers inside the call.
const OPEN: u64 = 1 << 31;
const ACTIVE: u64 = OPEN - 1;

struct Shared {
    state: AtomicU64,
    call: UnsafeCell<Call>,
    next: AtomicUsize,
    panicked: Mutex<Option<String>>,
    gate: Mutex<()>,
    /// Workers sleep here when there is nothing to do.
    work: Condvar,
    sleepers: AtomicUsize,
    /// The caller sleeps here until the last worker has left.
    left: Condvar,
    stop: AtomicBool,
}

// SAFETY: `call` is written only by the thread that holds the team's lock, while the state is closed and no worker is
// inside; workers read it only after entering an open state.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `call` is followed only as said above.
unsafe impl Send for Shared {}

/// A team of threads with its scratch.
pub struct Team {
    isa: Isa,
    name: Arc<str>,
    shared: Arc<Shared>,
    /// Held during a call, and by [`Session`] over several: scratch of the caller, and of the team.
    owner: Mutex<(Slab, Slab)>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// `threads` threads, the caller of [`Team::run`] being one of them. `name` is the device's, for messages.
    pub fn new(name: Arc<str>, threads: usize, isa: Isa) -> Result<Team> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            call: UnsafeCell::new(Call {
                task: std::ptr::dangling::<fn(usize, &mut Scratch)>() as *const Task<'static>,
                tasks: 0,
            }),
            next: AtomicUsize::new(0),
            panicked: Mutex::new(None),
            gate: Mutex::new(()),
            work: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            left: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let mut team = Team {
            isa,
            owner: Mutex::new((Slab::new(&name, SCRATCH_BYTES)?, Slab::new(&name, SHARED_BYTES)?)),
            shared,
            workers: Vec::new(),
            name,
        };
        for i in 1..threads.max(1) {
            let mut slab = Slab::new(&team.name, SCRATCH_BYTES)?;
            let shared = team.shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("{} worker {i}", team.name))
                .spawn(move || shared.worker(&mut Scratch::new(&mut slab)))
                .map_err(|e| team.error(format!("cannot start worker thread {i} of {threads}: {e}")))?;
            team.workers.push(worker);
        }
        Ok(team)
    }

    /// Instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads, the caller included. Must not influence any result.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn error(&self, what: String) -> Error {
        Error::Device { device: self.name.to_string(), what }
    }

    /// Takes the team for several calls in a row, with the shared scratch. Other streams wait meanwhile.
    pub fn session(&self) -> Session<'_> {
        // The slabs are plain bytes: a panic leaves nothing broken behind.
        Session { team: self, owner: self.owner.lock().unwrap_or_else(|e| e.into_inner()) }
    }

    /// Runs `task(0..tasks)`, each once, each with the scratch of the thread it runs on. Tasks must not call the team
    /// again. A panic in a task becomes an error; tasks not yet begun are then left out.
    pub fn run(&self, tasks: usize, task: &Task<'_>) -> Result<()> {
        let mut session = self.session();
        session.run(tasks, task)
    }

    /// Runs `body(rows, parts of the outputs, scratch)` over all rows, `grain` of them a task. `out` is one
    /// [`crate::view::Rows`] or a tuple of them; each task gets its own rows of each as `&mut [T]`.
    pub fn rows<P: Parts>(
        &self,
        out: P,
        rows: usize,
        grain: usize,
        body: impl Fn(Range<usize>, P::Part, &mut Scratch) + Sync,
    ) -> Result<()> {
        out.check(rows);
        let pieces = chunks(rows, grain);
        self.run(pieces.count(), &|i, scratch| {
            let r = pieces.range(i);
            // SAFETY: pieces do not overlap and each is run once; `check` has bounded the rows.
            let part = unsafe { out.part(r.clone()) };
            body(r, part, scratch);
        })
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.gate.lock());
        self.shared.work.notify_all();
        for w in self.workers.drain(..) {
            // A worker catches the panics of tasks; it has nothing to report.
            let _ = w.join();
        }
    }
}

/// The team, held for several calls.
pub struct Session<'t> {
    team: &'t Team,
    owner: MutexGuard<'t, (Slab, Slab)>,
}

impl Session<'_> {
    /// Address of the shared scratch, [`SHARED_BYTES`] long. What tasks write to it in one call, tasks of a later
    /// call of this session may read.
    pub fn shared(&mut self) -> *mut f32 {
        self.owner.1.ptr()
    }

    /// As [`Team::run`].
    pub fn run(&mut self, tasks: usize, task: &Task<'_>) -> Result<()> {
        if tasks == 0 {
            return Ok(());
        }
        let shared = &*self.team.shared;
        let mut scratch = Scratch::new(&mut self.owner.0);
        shared.next.store(0, Ordering::Relaxed);
        let fork = tasks > 1 && !self.team.workers.is_empty();
        if fork {
            // SAFETY: closed and empty (see `Shared`); the lifetime is restored below, where this waits for all
            // workers to leave before it returns.
            unsafe {
                *shared.call.get() =
                    Call { task: std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task), tasks };
            }
            let epoch = (shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1);
            shared.state.store(epoch << 32 | OPEN, Ordering::SeqCst);
            if shared.sleepers.load(Ordering::SeqCst) > 0 {
                drop(shared.gate.lock());
                shared.work.notify_all();
            }
        }
        shared.take_tasks(task, tasks, &mut scratch);
        if fork {
            shared.close();
        }
        let mut panicked = shared.panicked.lock().unwrap_or_else(|e| e.into_inner());
        panicked.take().map_or(Ok(()), |why| Err(self.team.error(format!("a kernel panicked: {why}"))))
    }
}

impl Shared {
    fn take_tasks(&self, task: &Task<'_>, tasks: usize, scratch: &mut Scratch) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                return;
            }
            if let Err(why) = catch_unwind(AssertUnwindSafe(|| task(i, scratch))) {
                self.next.store(tasks, Ordering::Relaxed);
                let mut p = self.panicked.lock().unwrap_or_else(|e| e.into_inner());
                p.get_or_insert_with(|| panic_text(&*why));
            }
        }
    }

    /// Lets no more workers in and waits until those inside have left.
    fn close(&self) {
        let mut active = self.state.fetch_and(!OPEN, Ordering::SeqCst) & ACTIVE;
        for _ in 0..SPINS {
            if active == 0 {
                return;
            }
            std::hint::spin_loop();
            active = self.state.load(Ordering::SeqCst) & ACTIVE;
        }
        let mut gate = self.gate.lock().unwrap_or_else(|e| e.into_inner());
        while self.state.load(Ordering::SeqCst) & ACTIVE != 0 {
            gate = self.left.wait(gate).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn worker(&self, scratch: &mut Scratch) {
        let mut seen = 0;
        while let Some(state) = self.wait_for_call(seen) {
            // A failed exchange means that another worker entered or the call closed: look again.
            if self.state.compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                continue;
            }
            seen = state >> 32;
            // SAFETY: the state was open when this worker was counted in, so `call` holds the call, which waits for
            // this worker before its task dies.
            let (task, tasks) = unsafe { (&*(*self.call.get()).task, (*self.call.get()).tasks) };
            self.take_tasks(task, tasks, scratch);
            let before = self.state.fetch_sub(1, Ordering::SeqCst);
            if before & OPEN == 0 && before & ACTIVE == 1 {
                drop(self.gate.lock());
                self.left.notify_all();
            }
        }
    }

    /// The state of an open call of another epoch than `seen`; `None` when the team ends.
    fn wait_for_call(&self, seen: u64) -> Option<u64> {
        let ready = |s: u64| s & OPEN != 0 && s >> 32 != seen;
        for _ in 0..SPINS {
            let s = self.state.load(Ordering::SeqCst);
            if ready(s) {
                return Some(s);
            }
            std::hint::spin_loop();
        }
        let mut gate = self.gate.lock().unwrap_or_else(|e| e.into_inner());
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            let s = self.state.load(Ordering::SeqCst);
            if ready(s) {
                break Some(s);
            }
            gate = self.work.wait(gate).unwrap_or_else(|e| e.into_inner());
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

/// What a panic said.
pub(crate) fn panic_text(why: &(dyn Any + Send)) -> String {
    why.downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| why.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}
