//! Modules: what an image of kernels becomes.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrotron_cuda_sys::{self as sys, CUfunction, CUmodule, CUresult, code};

use crate::driver::put;
use crate::image::{Image, Refusal};
use crate::world::{Object, answer, emulator, lock};

/// Shared memory that a kernel may use without asking, and the most that it may ask for (H100).
const FREE_SHARED: usize = 48 << 10;
pub const MOST_SHARED: usize = 227 << 10;
/// What all kernels were compiled for at first.
const PTX_CHIP: c_int = 80;

/// Takes a fatbin, machine code or PTX. Faults may be asked for by form: `module:fatbin`, `module:cubin`, `module:ptx`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> CUresult {
    answer("cuModuleLoadDataEx", |w| {
        let device = w.current()?;
        if image.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller's image, which states its length.
        let taken = unsafe { Image::at(image.cast()) }.and_then(|image| {
            let site = format!("module:{}", image.form());
            if let Some(code) = w.devices[device].faults().visit(&site) {
                return Err(Refusal { code, why: format!("{site} is refused on purpose") });
            }
            emulator().map_err(|e| Refusal { code: code::INVALID_IMAGE, why: e.to_string() })?;
            image.load(w.chip.load(Ordering::Relaxed), w.version.load(Ordering::Relaxed).unsigned_abs())
        });
        match taken {
            // SAFETY: out-parameter.
            Ok(loaded) => unsafe { put(module, w.add(Object::Module(Arc::new(loaded))) as *mut c_void) },
            Err(Refusal { code, why }) => {
                // SAFETY: the caller's options, their values and the buffer among them.
                unsafe { log(&why, count, options, values) };
                Err(code)
            }
        }
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
        let Object::Module(loaded) = w.get(module as usize)? else { return Err(code::INVALID_HANDLE) };
        // SAFETY: the caller gives a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let kernel = emulator().ok().and_then(|e| e.kernels().iter().find(|k| k.name == name));
        if kernel.is_none() || !loaded.kernels.contains(&name) {
            return Err(code::NOT_FOUND);
        }
        let object = Object::Function { name, shared: FREE_SHARED, chip: loaded.chip };
        // SAFETY: out-parameter.
        unsafe { put(function, w.add(object) as *mut c_void) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction) -> CUresult {
    answer("cuFuncGetAttribute", |w| {
        let Object::Function { shared, chip, .. } = w.get(function as usize)? else { return Err(code::INVALID_HANDLE) };
        let fact = match attribute {
            sys::CU_FUNC_ATTRIBUTE_PTX_VERSION => PTX_CHIP,
            sys::CU_FUNC_ATTRIBUTE_BINARY_VERSION => chip as c_int,
            sys::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => shared as c_int,
            _ => return Err(code::INVALID_VALUE),
        };
        // SAFETY: out-parameter.
        unsafe { put(value, fact) }
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
