//! What a test calls beside the vendor's functions.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

use crate::world::{emulator, world};

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

/// Writes a text with its NUL into a buffer, cut where that ends.
///
/// # Safety
/// The buffer has `size` bytes.
unsafe fn write(text: &str, to: *mut c_char, size: usize) {
    if to.is_null() || size == 0 {
        return;
    }
    let bytes = &text.as_bytes()[..text.len().min(size - 1)];
    // SAFETY: at most `size` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
        *to.add(bytes.len()) = 0;
    }
}

/// What was done wrong on a device since the last call, a line each: at most `size` bytes with the final NUL. Gives the
/// number of lines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockReport(device: u32, text: *mut c_char, size: usize) -> i32 {
    let Some(engine) = world().devices.get(device as usize) else { return -1 };
    let lines: Vec<String> = engine.take_violations().iter().map(|v| v.to_string()).collect();
    // SAFETY: the caller's buffer.
    unsafe { write(&lines.join("\n"), text, size) };
    lines.len() as i32
}

/// The communicators of a device, a line each: `ranks=2 rank=0 made=split`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockComms(device: u32, text: *mut c_char, size: usize) -> i32 {
    let lines = crate::nccl::list(device as usize);
    // SAFETY: the caller's buffer.
    unsafe { write(&lines, text, size) };
    lines.lines().count() as i32
}

/// The version that NCCL says it is: 22105 is 2.21.5.
#[unsafe(no_mangle)]
pub extern "C" fn ferrotronMockNcclVersion(version: i32) {
    crate::nccl::version().store(version, Ordering::Relaxed);
}

/// Memory in use on a device, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ferrotronMockMemory(device: u32) -> u64 {
    world().devices.get(device as usize).map_or(0, |e| e.heap().usage().0 as u64)
}

/// The CUDA that the driver says it serves: 12040 is 12.4.
#[unsafe(no_mangle)]
pub extern "C" fn ferrotronMockDriverVersion(version: i32) {
    world().version.store(version, Ordering::Relaxed);
}

/// Compute capability of all devices, times ten: 90 is 9.0.
#[unsafe(no_mangle)]
pub extern "C" fn ferrotronMockChip(chip: u32) {
    world().chip.store(chip, Ordering::Relaxed);
}

/// Leaves a barrier of the kernels out from now on; "" leaves none out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockOmitBarrier(site: *const c_char) {
    // SAFETY: the caller gives a C string.
    let site = unsafe { CStr::from_ptr(site) }.to_string_lossy();
    if let Ok(e) = emulator() {
        e.omit(&site);
    }
}

/// Barriers of the kernels that were reached, a line each. Gives the bytes of the whole text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferrotronMockBarriers(text: *mut c_char, size: usize) -> usize {
    let all = emulator().map_or(String::new(), |e| e.sites().join("\n"));
    // SAFETY: the caller's buffer.
    unsafe { write(&all, text, size) };
    all.len()
}
