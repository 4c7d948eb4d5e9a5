//! Launches of kernels.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use ferrotron_cuda_emulator::Kernel;
use ferrotron_cuda_sys::{self as sys, CUfunction, CUresult, CUstream, code};
use ferrotron_mock::{Access, Fault};

use crate::world::{Answer, Object, answer, emulator, world};

/// The arguments as one block, from either form that the interface takes.
///
/// # Safety
/// As `cuLaunchKernel` asks.
unsafe fn packed(k: &Kernel, arguments: *mut *mut c_void, extra: *mut *mut c_void) -> Answer<Vec<u8>> {
    if !arguments.is_null() {
        let mut block = vec![0u8; k.bytes];
        for (i, &(_, at, bytes)) in k.arguments.iter().enumerate() {
            // SAFETY: as many pointers as the kernel has arguments, each to one.
            unsafe { std::ptr::copy_nonoverlapping((*arguments.add(i)).cast::<u8>(), block[at..].as_mut_ptr(), bytes) };
        }
        return Ok(block);
    }
    let (mut at, mut size) = (std::ptr::null::<u8>(), 0);
    for i in (0..).step_by(2) {
        // SAFETY: pairs up to the one that ends the list.
        let (key, value) = unsafe { (*extra.add(i) as usize as c_int, extra.add(i + 1)) };
        match key {
            sys::CU_LAUNCH_PARAM_END_AS_INT => break,
            // SAFETY: the value of that key.
            sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT => at = unsafe { *value }.cast(),
            // SAFETY: likewise, a pointer to a size.
            sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT => size = unsafe { *(*value).cast::<usize>() },
            _ => return Err(code::INVALID_VALUE),
        }
    }
    if at.is_null() || size != k.bytes {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller's buffer of this size.
    Ok(unsafe { std::slice::from_raw_parts(at, size) }.to_vec())
}

/// What a launch touches: operands that are read and written.
fn accesses(k: &Kernel, arguments: &[u8]) -> Vec<Access> {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| arguments[at + i]));
    let operands = k.arguments.iter().filter(|(kind, ..)| *kind != 'v');
    let touched = operands.map(|&(kind, at, _)| {
        let size = match word(at + 16) as u32 {
            4 => 8,
            1 | 2 => 2,
            _ => 4,
        };
        let (at, bytes) = (word(at) as usize, word(at + 8) as usize * size);
        if kind == 'i' { Access::read(at, bytes) } else { Access::write(at, bytes) }
    });
    // writes first: an operand that is both is one access that writes
    let (mut all, reads): (Vec<Access>, Vec<Access>) = touched.partition(|a| a.mode == ferrotron_mock::Mode::Write);
    all.extend(reads);
    all
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    answer("cuLaunchKernel", |w| {
        let at = w.stream(stream as usize)?;
        let device = w.current()?;
        let Object::Function { name, shared, .. } = w.get(function as usize)? else { return Err(code::INVALID_HANDLE) };
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let threads: u64 = block.iter().map(|&b| u64::from(b)).product();
        let grid_fits = grid.iter().all(|&g| g > 0) && grid_x <= i32::MAX as u32 && grid_y <= 65535 && grid_z <= 65535;
        if !grid_fits || threads == 0 || threads > 1024 || shared_bytes as usize > shared {
            return Err(code::INVALID_VALUE);
        }
        let emulator = emulator().map_err(|_| code::INVALID_IMAGE)?;
        let k = emulator.kernels().iter().find(|k| k.name == name).ok_or(code::NOT_FOUND)?;
        // SAFETY: the caller's arguments.
        let arguments = unsafe { packed(k, arguments, extra) }?;
        let touched = accesses(k, &arguments);
        let seed = w.seed.wrapping_mul(1 << 32) + w.launches.fetch_add(1, Ordering::Relaxed) as u64;
        w.enqueue(at, &name.clone(), touched, move || {
            // SAFETY: the engine found every operand live; they are this task's while it runs.
            let done = unsafe { emulator.launch(&name, grid, block, shared_bytes as usize, &arguments, seed) };
            done.map_err(|text| {
                world().devices[device].broke(text.clone());
                Fault { code: code::LAUNCH_FAILED, text }
            })
        })
    })
}
