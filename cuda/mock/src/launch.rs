//! Modules and kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use ferrotron_cuda_emulator::Kernel;
use ferrotron_cuda_sys::{self as sys, CUfunction, CUmodule, CUresult, CUstream, code};
use ferrotron_mock::{Access, Fault};

use crate::driver::put;
use crate::world::{Answer, LAUNCH_FAILED, Object, answer, emulator, lock, world};

/// Shared memory that a kernel may use without asking, and the most that it may ask for (H100).
const FREE_SHARED: usize = 48 << 10;
pub const MOST_SHARED: usize = 227 << 10;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> CUresult {
    answer("cuModuleLoadDataEx", |w| {
        w.current()?;
        if image.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the mock takes PTX only, which is a C string.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        let why = if !text.contains(".version") {
            "the mock takes PTX only".to_string()
        } else {
            emulator().err().map_or(String::new(), |e| e.to_string())
        };
        if !why.is_empty() {
            // SAFETY: the caller's options, their values and the buffer among them.
            unsafe { log(&why, count, options, values) };
            return Err(code::INVALID_IMAGE);
        }
        // SAFETY: out-parameter.
        unsafe { put(module, w.add(Object::Module) as *mut c_void) }
    })
}

/// Writes the compiler's words where the options say.
///
/// # Safety
/// `count` options and values, a buffer of the size stated among them.
unsafe fn log(text: &str, count: c_uint, options: *const c_int, values: *const *mut c_void) {
    let (mut at, mut size) = (std::ptr::null_mut::<u8>(), 0);
    for i in 0..count as usize {
        // SAFETY: the caller gives `count` of each.
        let (option, value) = unsafe { (*options.add(i), *values.add(i)) };
        match option {
            sys::CU_JIT_ERROR_LOG_BUFFER => at = value.cast(),
            sys::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => size = value as usize,
            _ => {}
        }
    }
    if !at.is_null() && size > 0 {
        let n = text.len().min(size - 1);
        // SAFETY: at most `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), at, n);
            *at.add(n) = 0;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    answer("cuModuleUnload", |w| {
        w.current()?;
        w.remove(module as usize).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    answer("cuModuleGetFunction", |w| {
        w.current()?;
        let Object::Module = w.get(module as usize)? else { return Err(code::INVALID_HANDLE) };
        // SAFETY: the caller gives a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let kernel = emulator().ok().and_then(|e| e.kernels().iter().find(|k| k.name == name));
        if kernel.is_none() {
            return Err(code::NOT_FOUND);
        }
        // SAFETY: out-parameter.
        unsafe { put(function, w.add(Object::Function { name, shared: FREE_SHARED }) as *mut c_void) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> CUresult {
    answer("cuFuncSetAttribute", |w| {
        w.current()?;
        let wanted = usize::try_from(value).unwrap_or(usize::MAX);
        if attribute != sys::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || wanted > MOST_SHARED {
            return Err(code::INVALID_VALUE);
        }
        match lock(&w.objects).get_mut(&(function as usize)) {
            Some(Object::Function { shared, .. }) => *shared = wanted,
            _ => return Err(code::INVALID_HANDLE),
        }
        Ok(())
    })
}

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
        let Object::Function { name, shared } = w.get(function as usize)? else { return Err(code::INVALID_HANDLE) };
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
                Fault { code: LAUNCH_FAILED, text }
            })
        })
    })
}
