//! What a test calls beside the vendor's functions.

use std::ffi::{CStr, CString, c_char};
use std::sync::Mutex;

use crate::world::{DEVICES, lock, world};

/// Makes faults on a device: see `ferrotron_mock::Faults::add`. Null takes all away. 0 when understood.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockFaults(device: u32, rules: *const c_char) -> i32 {
    let Some(engine) = world().devices.get(device as usize) else { return -1 };
    if rules.is_null() {
        engine.faults().clear();
        return 0;
    }
    // SAFETY: the caller gives a C string.
    let rules = unsafe { CStr::from_ptr(rules) }.to_string_lossy();
    engine.faults().add(&rules).map_or(-1, |()| 0)
}

/// What was done wrong on a device since the last call, a line each, and planned calls that were neither run nor
/// destroyed: at most `size` bytes with the final NUL. Gives the number of lines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockReport(device: u32, text: *mut c_char, size: usize) -> i32 {
    let w = world();
    let device = device as usize;
    if device >= DEVICES || text.is_null() || size == 0 {
        return -1;
    }
    let mut lines: Vec<String> = w.devices[device].take_violations().iter().map(|v| v.to_string()).collect();
    lock(&w.executors).retain(|_, (d, plan)| {
        if *d == device {
            lines.push(format!("the executor of {} was planned and never run: it leaks", plan.name));
        }
        *d != device
    });
    // SAFETY: the caller's buffer has `size` bytes.
    unsafe { write(&lines.join("\n"), text, size) };
    lines.len() as i32
}

/// At most `size` bytes of a text, with a final NUL.
///
/// # Safety
/// `to` has `size` bytes, at least one.
unsafe fn write(text: &str, to: *mut c_char, size: usize) {
    let bytes = &text.as_bytes()[..text.len().min(size - 1)];
    // SAFETY: the contract above.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
        *to.add(bytes.len()) = 0;
    }
}

/// The communicators of a device, a line each: `ranks=2 rank=0 buffer=512 deterministic=unset name=...`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockComms(device: u32, text: *mut c_char, size: usize) -> i32 {
    if device as usize >= DEVICES || text.is_null() || size == 0 {
        return -1;
    }
    let lines = crate::hccl::list(device as usize);
    // SAFETY: the caller's buffer has `size` bytes.
    unsafe { write(&lines, text, size) };
    lines.lines().count() as i32
}

/// Memory in use on a device, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ferrotronMockMemory(device: u32) -> u64 {
    world().devices.get(device as usize).map_or(0, |e| e.heap().usage().0 as u64)
}

/// An option of a device's own context, or -1 when nobody set it.
#[unsafe(no_mangle)]
pub extern "C" fn ferrotronMockOption(device: u32, option: i32) -> i64 {
    let w = world();
    let Ok(device) = w.device(device as i32) else { return -1 };
    let context = w.primary(device);
    lock(&w.options).get(&(context, option)).copied().unwrap_or(-1)
}

/// How long ranks of communicators made from now on wait for each other, in milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn ferrotronMockHcclPatience(ms: u64) {
    crate::hccl::set_patience(ms);
}

static VERSION: Mutex<Option<CString>> = Mutex::new(None);

/// The version that the mock says it is: at most 127 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockVersion(version: *const c_char) {
    // SAFETY: the caller gives a C string.
    let version = unsafe { CStr::from_ptr(version) };
    if version.count_bytes() < 128 {
        *lock(&VERSION) = Some(version.to_owned());
    }
}

pub(crate) fn version() -> CString {
    let asked = || CString::new(std::env::var("FERROTRON_MOCK_CANN").ok()?).ok().filter(|v| v.count_bytes() < 128);
    lock(&VERSION).clone().or_else(asked).unwrap_or_else(|| c"8.5.0".to_owned())
}
