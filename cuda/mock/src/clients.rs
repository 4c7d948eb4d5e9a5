//! Functions of the driver that our device does not call, but other clients do: `../clients/cudarc`.

use std::ffi::{c_uint, c_void};

use ferrotron_cuda_sys::{CUdeviceptr, CUevent, CUmodule, CUresult, CUstream, code};

use crate::driver::{calls, ended, put};
use crate::memory::cuMemAlloc_v2;
use crate::module::cuModuleLoadDataEx;
use crate::world::Object;

/// As `cuModuleLoadDataEx` without options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    // SAFETY: the caller's arguments, no options.
    unsafe { cuModuleLoadDataEx(module, image, 0, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// Memory at once: stream order allows that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(at: *mut CUdeviceptr, bytes: usize, _stream: CUstream) -> CUresult {
    // SAFETY: the caller's out-parameter.
    unsafe { cuMemAlloc_v2(at, bytes) }
}

calls! {
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) |w| {
        let device = w.current()?;
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        let id = w.devices[device].stream().map_err(|_| code::OUT_OF_MEMORY)?;
        // SAFETY: out-parameter.
        unsafe { put(stream, w.add(Object::Stream { device, id }) as *mut c_void) }
    }
    // after the stream's work, for which it waits: a later call may not use the memory anyhow
    fn cuMemFreeAsync(at: CUdeviceptr, stream: CUstream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        ended(engine.synchronize(id, None))?;
        engine.free(at as usize).map_err(|_| code::INVALID_VALUE)
    }
    fn cuEventSynchronize(event: CUevent) |w| {
        let engine = w.engine()?;
        match w.get(event as usize)? {
            Object::Event { collected: Some(mark), .. } => Err(w.ask_collected(engine, &mark)),
            Object::Event { mark: Some(mark), .. } => match engine.wait_on_host(&mark, None) {
                Some(Err(f)) => Err(f.code),
                _ => Ok(()),
            },
            Object::Event { .. } => Ok(()),
            _ => Err(code::INVALID_HANDLE),
        }
    }
    fn cuCtxSynchronize() |w| {
        let device = w.current()?;
        let streams: Vec<_> = crate::world::lock(&w.objects).values().filter_map(|o| match o {
            Object::Stream { device: d, id } if *d == device => Some(*id),
            _ => None,
        }).collect();
        for id in streams {
            if let Some(Err(f)) = ended(w.devices[device].synchronize(id, None))? {
                return Err(f.code);
            }
        }
        Ok(())
    }
    fn cuCtxSetFlags(_flags: c_uint) |w| {
        w.current().map(drop)
    }
}
