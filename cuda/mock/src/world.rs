//! The process's devices and every handle that was given out.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ferrotron_cuda_emulator::{Emulator, build, default_folder, kernels_folder};
use ferrotron_cuda_sys::code;
pub use ferrotron_cuda_sys::code::LAUNCH_FAILED;
use ferrotron_mock::{Access, Engine, Fault, Mark, Options, StreamId, Task};

use crate::blas::{Desc, Layout, Preference};
use crate::graph::{Capture, Collected, Exec, Graph, Work};
use crate::image::Loaded;
use crate::nvrtc::Program;

/// Devices of the mock.
pub const DEVICES: usize = 8;
/// Memory of a device.
const MEMORY: usize = 4 << 30;

/// What a handle stands for.
#[derive(Clone)]
pub enum Object {
    Context {
        device: usize,
    },
    Stream {
        device: usize,
        id: StreamId,
    },
    /// Where it was recorded last: in a stream's work, or in a capture.
    Event {
        mark: Option<Mark>,
        collected: Option<Collected>,
    },
    Graph(Arc<Graph>),
    Exec(Exec),
    Physical {
        device: usize,
        bytes: usize,
    },
    Module(Arc<Loaded>),
    /// A kernel, the shared memory that it may have, and the chip that its code is for.
    Function {
        name: String,
        shared: usize,
        chip: u32,
    },
    Program(Arc<Mutex<Program>>),
    Lt {
        device: usize,
    },
    Desc(Desc),
    Layout(Layout),
    Preference(Preference),
}

/// The process's mock.
pub struct World {
    pub devices: Vec<Engine>,
    pub initialised: AtomicBool,
    /// What the driver says it serves.
    pub version: AtomicI32,
    /// Compute capability of the devices times ten.
    pub chip: AtomicU32,
    pub objects: Mutex<HashMap<usize, Object>>,
    /// Pinned host blocks by address.
    pub pinned: Mutex<HashMap<usize, usize>>,
    /// Mapped ranges that no device may touch yet.
    pub closed: Mutex<BTreeMap<usize, usize>>,
    /// Captures by number; those that have ended are gone.
    pub captures: Mutex<Vec<Option<Capture>>>,
    pub seed: u64,
    pub launches: AtomicUsize,
    /// Tell of every broken rule on standard error at once: for programs that a test starts.
    loud: bool,
    next: AtomicUsize,
    contexts: Mutex<[Option<usize>; DEVICES]>,
}

thread_local! {
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
}

/// A vendor's code.
pub type Answer<T> = Result<T, i32>;

pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one world of the process, as a vendor's library has.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let seed: u64 = std::env::var("FERROTRON_MOCK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
        let bad_access = code::ILLEGAL_ADDRESS;
        let device = |d| Engine::new(Options { seed: seed + d as u64, memory: MEMORY, late: true, bad_access });
        let devices: Vec<Engine> = (0..DEVICES).map(device).collect();
        ferrotron_mock::engine::faults_of_environment(&devices);
        World {
            devices,
            loud: std::env::var_os("FERROTRON_MOCK_LOUD").is_some(),
            initialised: AtomicBool::new(false),
            version: AtomicI32::new(12040),
            chip: AtomicU32::new(90),
            objects: Mutex::default(),
            pinned: Mutex::default(),
            closed: Mutex::default(),
            captures: Mutex::default(),
            seed,
            launches: AtomicUsize::new(0),
            next: AtomicUsize::new(1),
            contexts: Mutex::new([None; DEVICES]),
        }
    })
}

/// The kernels, built on first use; `Err` says why there are none.
pub fn emulator() -> Result<&'static Emulator, &'static str> {
    static EMULATOR: OnceLock<Result<Emulator, String>> = OnceLock::new();
    let made = EMULATOR.get_or_init(|| {
        let folder = default_folder().map_err(|e| e.to_string())?;
        let library = build(&kernels_folder(), &folder).map_err(|e| e.to_string())?;
        Emulator::load(&library)
    });
    made.as_ref().map_err(String::as_str)
}

impl World {
    /// A handle that was never given out before.
    pub fn add(&self, o: Object) -> usize {
        let h = 0x4355_0000_0000 + self.next.fetch_add(1, Ordering::Relaxed) * 16;
        lock(&self.objects).insert(h, o);
        h
    }

    pub fn get(&self, handle: usize) -> Answer<Object> {
        lock(&self.objects).get(&handle).cloned().ok_or(code::INVALID_HANDLE)
    }

    pub fn remove(&self, handle: usize) -> Answer<Object> {
        lock(&self.objects).remove(&handle).ok_or(code::INVALID_HANDLE)
    }

    /// The own context of a device.
    pub fn primary(&self, device: usize) -> usize {
        let mut contexts = lock(&self.contexts);
        *contexts[device].get_or_insert_with(|| self.add(Object::Context { device }))
    }

    pub fn device(&self, number: i32) -> Answer<usize> {
        usize::try_from(number).ok().filter(|&d| d < DEVICES).ok_or(code::INVALID_DEVICE)
    }

    /// This thread's device.
    pub fn current(&self) -> Answer<usize> {
        if !self.initialised.load(Ordering::Acquire) {
            return Err(code::NOT_INITIALIZED);
        }
        match self.get(CONTEXT.get()) {
            Ok(Object::Context { device }) => Ok(device),
            _ => Err(code::INVALID_CONTEXT),
        }
    }

    /// This thread's device's engine.
    pub fn engine(&self) -> Answer<&Engine> {
        Ok(&self.devices[self.current()?])
    }

    /// A stream of the current context.
    pub fn stream(&self, handle: usize) -> Answer<(&Engine, StreamId)> {
        let current = self.current()?;
        match self.get(handle)? {
            Object::Stream { device, id } if device == current => Ok((&self.devices[device], id)),
            _ => Err(code::INVALID_HANDLE),
        }
    }

    /// Queues work, or adds it to the graph when the stream is captured: the one door by which work reaches a stream.
    pub fn enqueue(
        &self,
        at: (&Engine, StreamId),
        name: &str,
        accesses: Vec<Access>,
        run: impl Fn() -> Result<(), Fault> + Send + Sync + 'static,
    ) -> Answer<()> {
        self.put(at, Work { name: name.into(), accesses, run: Arc::new(run) })
    }

    /// Queues work. Memory that is mapped but not opened to the device is none.
    pub fn start(&self, (engine, id): (&Engine, StreamId), work: Work) -> Answer<()> {
        let Work { name, accesses, run } = work;
        let closed = lock(&self.closed);
        let shut = |a: &Access| closed.iter().any(|(&at, &n)| a.at < at + n && at < a.at + a.bytes);
        let task = if accesses.iter().any(shut) {
            engine.broke(format!("{name} touches mapped memory that cuMemSetAccess has not opened"));
            let text = "memory without access rights".to_string();
            Task::new(name, vec![], || Err(Fault { code: code::ILLEGAL_ADDRESS, text }))
        } else {
            Task::new(name, accesses, move || run())
        };
        engine.enqueue(id, task).map_err(|_| code::INVALID_HANDLE)
    }
}

pub fn set_context(context: usize) {
    CONTEXT.set(context);
}

pub fn context() -> usize {
    CONTEXT.get()
}

/// Runs a call. Faults may be asked for by name.
pub fn answer(name: &str, body: impl FnOnce(&'static World) -> Answer<()>) -> i32 {
    let w = world();
    let device = w.current().unwrap_or(0);
    let result = match w.devices[device].faults().visit(name) {
        Some(code) => code,
        None => body(w).err().unwrap_or(code::SUCCESS),
    };
    if w.loud {
        w.devices[device].take_violations().iter().for_each(|v| eprintln!("mock: device {device}: {v}"));
    }
    result
}
