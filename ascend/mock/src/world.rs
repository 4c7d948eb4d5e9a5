//! The process's devices and every handle that was given out.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ferrotron_acl_sys::code;
use ferrotron_mock::clock::Epoch;
use ferrotron_mock::{Engine, Mark, Options, StreamId};

use crate::plan::Plan;
use crate::profile::{CHIPS, Chip};
use crate::tensor::Tensor;

/// Devices of the mock.
pub const DEVICES: usize = 8;
/// Memory of a device.
const MEMORY: usize = 4 << 30;

/// What a handle stands for.
#[derive(Clone)]
pub enum Object {
    Context { device: usize },
    Stream { context: usize, device: usize, id: StreamId },
    Event { flags: u32, mark: Option<Mark>, waits: Vec<(usize, Epoch)> },
    Physical { device: usize, bytes: usize },
    Tensor(Arc<Tensor>),
    Scalar(f64),
    IntArray(Arc<[i64]>),
    BoolArray(Arc<[bool]>),
}

/// The process's mock.
pub struct World {
    pub devices: Vec<Engine>,
    pub initialised: AtomicBool,
    pub objects: Mutex<HashMap<usize, Object>>,
    /// Planned calls: by handle, with the device they were planned on.
    pub executors: Mutex<HashMap<usize, (usize, Plan)>>,
    /// Options by context.
    pub options: Mutex<HashMap<(usize, i32), i64>>,
    /// The chip that the mock plays.
    pub chip: Chip,
    pub chip_name: CString,
    /// Pinned host blocks by address.
    pub pinned: Mutex<HashMap<usize, usize>>,
    /// Tell of every broken rule on standard error at once: for programs that a test starts.
    loud: bool,
    next: AtomicUsize,
    primary: Mutex<[Option<usize>; DEVICES]>,
}

thread_local! {
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
    static ERRORS: RefCell<String> = const { RefCell::new(String::new()) };
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why a call is refused: a vendor's code and text.
pub struct Refusal {
    pub code: i32,
    pub text: String,
}

pub type Answer<T> = Result<T, Refusal>;

pub fn refuse<T>(code: i32, text: impl Into<String>) -> Answer<T> {
    Err(Refusal { code, text: text.into() })
}

/// Codes beside those of `ferrotron_acl_sys::code`.
pub const UNINITIALIZE: i32 = 100001;
pub const PARAM_INVALID: i32 = 107000;
pub const INVALID_DEVICE: i32 = 107001;
pub const STREAM_CONTEXT: i32 = 107003;
pub const ADDR_UNALIGNED: i32 = 107008;
pub const INVALID_HANDLE: i32 = 107017;
pub const STREAM_ABORT: i32 = 107023;
pub const TIMEOUT: i32 = 507046;
pub const EVENT_NOT_COMPLETE: i32 = 507006;

pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one world of the process, as a vendor's library has.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let seed = std::env::var("FERROTRON_MOCK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
        let device = |d| Engine::new(Options { seed: seed + d as u64, memory: MEMORY, late: true, bad_access: 507053 });
        let devices: Vec<Engine> = (0..DEVICES).map(device).collect();
        let wanted = std::env::var("FERROTRON_MOCK_SOC").unwrap_or_else(|_| "Ascend910B3".into());
        let chip = CHIPS.into_iter().find(|c| c.name == wanted).unwrap_or_else(|| {
            eprintln!(
                "mock: FERROTRON_MOCK_SOC={wanted} is not a chip that the mock plays; it plays {}",
                CHIPS[2].name
            );
            CHIPS[2]
        });
        ferrotron_mock::engine::faults_of_environment(&devices);
        World {
            devices,
            loud: std::env::var_os("FERROTRON_MOCK_LOUD").is_some(),
            initialised: AtomicBool::new(false),
            objects: Mutex::default(),
            executors: Mutex::default(),
            options: Mutex::default(),
            chip,
            chip_name: CString::new(chip.name).unwrap_or_default(),
            pinned: Mutex::default(),
            next: AtomicUsize::new(1),
            primary: Mutex::new([None; DEVICES]),
        }
    })
}

impl World {
    /// A handle that was never given out before.
    pub fn handle(&self) -> usize {
        0x4e50_0000_0000 + self.next.fetch_add(1, Ordering::Relaxed) * 16
    }

    pub fn add(&self, o: Object) -> usize {
        let h = self.handle();
        lock(&self.objects).insert(h, o);
        h
    }

    pub fn get(&self, handle: usize) -> Answer<Object> {
        match lock(&self.objects).get(&handle) {
            Some(o) => Ok(o.clone()),
            None => {
                refuse(INVALID_HANDLE, format!("EE1001: {handle:#x} is no handle, or of something that was destroyed"))
            }
        }
    }

    pub fn remove(&self, handle: usize) -> Answer<Object> {
        match lock(&self.objects).remove(&handle) {
            Some(o) => Ok(o),
            None => refuse(INVALID_HANDLE, format!("EE1001: {handle:#x} is destroyed twice, or was never made")),
        }
    }

    /// The own context of a device.
    pub fn primary(&self, device: usize) -> usize {
        let mut primary = lock(&self.primary);
        *primary[device].get_or_insert_with(|| self.add(Object::Context { device }))
    }

    pub fn device(&self, id: i32) -> Answer<usize> {
        match usize::try_from(id) {
            Ok(d) if d < DEVICES => Ok(d),
            _ => refuse(INVALID_DEVICE, format!("EE1001: device {id} of {DEVICES}")),
        }
    }

    /// This thread's context and its device.
    pub fn current(&self) -> Answer<(usize, usize)> {
        if !self.initialised.load(Ordering::Acquire) {
            return refuse(UNINITIALIZE, "EH0001: aclInit has not been called");
        }
        match CONTEXT.get() {
            0 => refuse(
                code::CONTEXT_NULL,
                "EE1001: no context is current on this thread: call aclrtSetDevice or aclrtSetCurrentContext",
            ),
            context => match self.get(context)? {
                Object::Context { device } => Ok((context, device)),
                _ => refuse(code::CONTEXT_NULL, "EE1001: the current context is no context"),
            },
        }
    }

    /// This thread's device.
    pub fn engine(&self) -> Answer<&Engine> {
        Ok(&self.devices[self.current()?.1])
    }

    /// A stream of the current context.
    pub fn stream(&self, handle: usize) -> Answer<(&Engine, StreamId)> {
        let (current, _) = self.current()?;
        match self.get(handle)? {
            Object::Stream { context, device, id } if context == current => Ok((&self.devices[device], id)),
            Object::Stream { .. } => refuse(STREAM_CONTEXT, "EE1001: the stream is not in the current context"),
            _ => refuse(INVALID_HANDLE, "EE1001: not a stream (the mock has no default stream: pass one)"),
        }
    }
}

pub fn set_context(context: usize) {
    CONTEXT.set(context);
}

pub fn context() -> usize {
    CONTEXT.get()
}

/// Runs a call: its code, with the text kept for `aclGetRecentErrMsg` of this thread. Faults may be asked for by name.
pub fn answer(name: &str, body: impl FnOnce(&'static World) -> Answer<()>) -> i32 {
    let w = world();
    let device = w.current().map_or(0, |(_, d)| d);
    let result = match w.devices[device].faults().visit(name) {
        Some(code) => refuse(code, format!("EE9999: {name} was made to fail")),
        None => body(w),
    };
    if w.loud {
        w.devices[device].take_violations().iter().for_each(|v| eprintln!("mock: device {device}: {v}"));
    }
    match result {
        Ok(()) => 0,
        Err(Refusal { code, text }) => {
            ERRORS.with_borrow_mut(|all| {
                all.push_str(&format!(
                    "{text}\n        TraceBack (most recent call last):\n        {name} returns {code}\n"
                ));
            });
            code
        }
    }
}

/// This thread's errors since the last call, as a C string that lives until the next.
pub fn take_errors() -> *const std::ffi::c_char {
    let text = ERRORS.take();
    if text.is_empty() {
        return std::ptr::null();
    }
    LAST_ERROR.with_borrow_mut(|last| {
        *last = CString::new(text.replace('\0', " ")).unwrap_or_default();
        last.as_ptr()
    })
}
