//! The driver's functions, but for memory and kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use ferrotron_cuda_sys::{self as sys, CUcontext, CUdevice, CUevent, CUhostFn, CUresult, CUstream, code};

use crate::module::MOST_SHARED;
use crate::world::*;

/// Writes an out-parameter.
///
/// # Safety
/// Null, or a place for a T.
pub unsafe fn put<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller's pointer is not null and by the interface points to a T.
    unsafe { to.write(value) };
    Ok(())
}

/// A result of the engine.
pub fn ended<T>(r: Result<T, ferrotron_mock::engine::NoStream>) -> Answer<T> {
    r.map_err(|_| code::INVALID_HANDLE)
}

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$w:ident| $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            $crate::world::answer(stringify!($name), |$w| $body)
        }
    )*};
}
pub(crate) use calls;

/// Some names of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    let Some((name, _)) = code::NAMES.iter().find(|(_, code)| *code == error) else { return code::INVALID_VALUE };
    // SAFETY: out-parameter.
    unsafe { put(text, name.as_ptr()) }.err().unwrap_or(code::SUCCESS)
}

/// The mock has no texts beside names.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(_error: CUresult, _text: *mut *const c_char) -> CUresult {
    code::INVALID_VALUE
}

calls! {
    fn cuInit(flags: c_uint) |w| {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        w.initialised.store(true, Ordering::Release);
        Ok(())
    }
    fn cuDriverGetVersion(version: *mut c_int) |w| {
        // SAFETY: out-parameter.
        unsafe { put(version, w.version.load(Ordering::Relaxed)) }
    }
    fn cuDeviceGetCount(count: *mut c_int) |w| {
        if !w.initialised.load(Ordering::Acquire) {
            return Err(code::NOT_INITIALIZED);
        }
        // SAFETY: out-parameter.
        unsafe { put(count, DEVICES as c_int) }
    }
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) |w| {
        w.device(ordinal)?;
        // SAFETY: out-parameter.
        unsafe { put(device, ordinal) }
    }
    fn cuDeviceGetName(name: *mut c_char, size: c_int, device: CUdevice) |w| {
        w.device(device)?;
        let text = c"NVIDIA H100 (mock)";
        if (size as usize) <= text.count_bytes() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the buffer is large enough.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name, text.count_bytes() + 1) };
        Ok(())
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) |w| {
        w.device(device)?;
        let fact = match attribute {
            sys::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            sys::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
            sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => (w.chip.load(Ordering::Relaxed) / 10) as c_int,
            sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => (w.chip.load(Ordering::Relaxed) % 10) as c_int,
            sys::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => MOST_SHARED as c_int,
            sys::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => 1,
            _ => return Err(code::INVALID_VALUE),
        };
        // SAFETY: out-parameter.
        unsafe { put(value, fact) }
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) |w| {
        // SAFETY: out-parameter.
        unsafe { put(bytes, w.devices[w.device(device)?].heap().usage().1) }
    }
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) |w| {
        let device = w.device(device)?;
        // SAFETY: out-parameter.
        unsafe { put(context, w.primary(device) as *mut c_void) }
    }
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) |w| {
        w.device(device).map(drop)
    }
    fn cuCtxSetCurrent(context: CUcontext) |w| {
        if !context.is_null() && !matches!(w.get(context as usize)?, Object::Context { .. }) {
            return Err(code::INVALID_CONTEXT);
        }
        set_context(context as usize);
        Ok(())
    }
    fn cuCtxGetCurrent(out: *mut CUcontext) |_w| {
        // SAFETY: out-parameter.
        unsafe { put(out, context() as *mut c_void) }
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |w| {
        w.current()?;
        // SAFETY: out-parameters.
        unsafe { put(least, 0).and(put(greatest, -5)) }
    }

    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) |w| {
        let device = w.current()?;
        if flags > 1 || !(-5..=0).contains(&priority) {
            return Err(code::INVALID_VALUE);
        }
        let id = w.devices[device].stream().map_err(|_| code::OUT_OF_MEMORY)?;
        // SAFETY: out-parameter.
        unsafe { put(stream, w.add(Object::Stream { device, id }) as *mut c_void) }
    }
    fn cuStreamDestroy_v2(stream: CUstream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        w.not_captured((engine, id))?;
        w.remove(stream as usize)?;
        ended(engine.end_stream(id, false))
    }
    fn cuStreamSynchronize(stream: CUstream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        w.not_captured((engine, id))?;
        match ended(engine.synchronize(id, None))? {
            Some(Err(f)) => Err(f.code),
            _ => Ok(()),
        }
    }
    fn cuStreamQuery(stream: CUstream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        w.not_captured((engine, id))?;
        if let Some(f) = ended(engine.fault(id))? {
            return Err(f.code);
        }
        // who asks learns nothing of what is ordered: a thread that only watches must not hide a wait that is missing
        if ended(engine.tasks_left(id))? > 0 { Err(code::NOT_READY) } else { Ok(()) }
    }
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        match w.get(event as usize)? {
            Object::Event { collected: Some(mark), .. } => w.wait_collected((engine, id), &mark, flags),
            Object::Event { mark: Some(mark), .. } => match w.wait_outer((engine, id), event as usize, flags)? {
                true => Ok(()),
                false => ended(engine.wait(id, &mark)),
            },
            Object::Event { .. } => {
                engine.broke("a stream waits for an event that was never recorded: no wait at all");
                Ok(())
            }
            _ => Err(code::INVALID_HANDLE),
        }
    }
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) |w| {
        let data = data as usize;
        w.enqueue(w.stream(stream as usize)?, "host function", vec![], move || {
            // SAFETY: the caller gave the two together.
            unsafe { function(data as *mut c_void) };
            Ok(())
        })
    }

    fn cuEventCreate(event: *mut CUevent, _flags: c_uint) |w| {
        w.current()?;
        // SAFETY: out-parameter.
        unsafe { put(event, w.add(Object::Event { mark: None, collected: None }) as *mut c_void) }
    }
    fn cuEventDestroy_v2(event: CUevent) |w| {
        w.current()?;
        w.remove(event as usize).map(drop)
    }
    fn cuEventRecord(event: CUevent, stream: CUstream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let made = match w.mark((engine, id)) {
            Some(mark) => (None, Some(mark)),
            None => (Some(ended(engine.record(id))?), None),
        };
        match lock(&w.objects).get_mut(&(event as usize)) {
            Some(Object::Event { mark, collected }) => (*mark, *collected) = made,
            _ => return Err(code::INVALID_HANDLE),
        }
        Ok(())
    }
    fn cuEventQuery(event: CUevent) |w| {
        let engine = w.engine()?;
        match w.get(event as usize)? {
            Object::Event { collected: Some(mark), .. } => Err(w.ask_collected(engine, &mark)),
            Object::Event { mark, .. } if mark.as_ref().is_none_or(|m| engine.query(m)) => Ok(()),
            Object::Event { .. } => Err(code::NOT_READY),
            _ => Err(code::INVALID_HANDLE),
        }
    }
}
