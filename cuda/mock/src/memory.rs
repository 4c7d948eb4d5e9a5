//! Memory: blocks, addresses that are backed later, copies.

use std::ffi::{c_int, c_uint, c_void};

use ferrotron_cuda_sys::{
    self as sys, CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult, CUstream,
    code,
};
use ferrotron_mock::Access;
use ferrotron_mock::memory::MemoryError;

use crate::driver::{calls, ended, put};
use crate::world::{Answer, Object, lock};

/// Unit of memory without an address.
const GRANULE: usize = 2 << 20;

fn memory(e: MemoryError) -> i32 {
    match e {
        MemoryError::Full { .. } | MemoryError::Host(_) => code::OUT_OF_MEMORY,
        MemoryError::NoBlock(_) => code::INVALID_VALUE,
    }
}

calls! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |w| {
        let (used, all) = w.engine()?.heap().usage();
        // SAFETY: out-parameters.
        unsafe { put(free, all - used).and(put(total, all)) }
    }
    fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) |w| {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let made = w.engine()?.alloc(bytes).map_err(memory)?;
        // SAFETY: out-parameter.
        unsafe { put(at, made as u64) }
    }
    fn cuMemFree_v2(at: CUdeviceptr) |w| {
        w.engine()?.free(at as usize).map_err(memory)
    }
    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) |w| {
        let made = w.engine()?.alloc(bytes).map_err(memory)?;
        lock(&w.pinned).insert(made, bytes);
        // SAFETY: out-parameter.
        unsafe { put(at, made as *mut c_void) }
    }
    fn cuMemFreeHost(at: *mut c_void) |w| {
        let engine = w.engine()?;
        lock(&w.pinned).remove(&(at as usize)).ok_or(code::INVALID_VALUE)?;
        engine.free(at as usize).map_err(memory)
    }

    fn cuMemGetAllocationGranularity(bytes: *mut usize, _properties: *const CUmemAllocationProp, _option: c_int) |w| {
        w.current()?;
        // SAFETY: out-parameter.
        unsafe { put(bytes, GRANULE) }
    }
    fn cuMemAddressReserve(at: *mut CUdeviceptr, bytes: usize, _align: usize, wish: CUdeviceptr, flags: u64) |w| {
        if wish != 0 || flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(code::INVALID_VALUE);
        }
        let made = w.engine()?.heap().reserve(bytes).map_err(memory)?;
        // SAFETY: out-parameter.
        unsafe { put(at, made as u64) }
    }
    fn cuMemAddressFree(at: CUdeviceptr, _bytes: usize) |w| {
        w.engine()?.heap().release(at as usize).map_err(memory)
    }
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: u64,
    ) |w| {
        let device = w.current()?;
        if properties.is_null() || flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, the caller's properties.
        let p = unsafe { &*properties };
        let right = (sys::CU_MEM_ALLOCATION_TYPE_PINNED, sys::CU_MEM_LOCATION_TYPE_DEVICE, device as i32);
        if (p.type_, p.location.type_, p.location.id) != right {
            return Err(code::INVALID_VALUE);
        }
        let (used, all) = w.devices[device].heap().usage();
        if bytes > all - used {
            return Err(code::OUT_OF_MEMORY);
        }
        // SAFETY: out-parameter.
        unsafe { put(handle, w.add(Object::Physical { device, bytes }) as u64) }
    }
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) |w| {
        w.remove(handle as usize).map(drop)
    }
    fn cuMemMap(at: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, _flags: u64) |w| {
        match w.get(handle as usize)? {
            Object::Physical { device, bytes: has } if has == bytes && offset == 0 => {
                w.devices[device].heap().map(at as usize, bytes).map_err(memory)?;
                lock(&w.closed).insert(at as usize, bytes);
                Ok(())
            }
            _ => Err(code::INVALID_VALUE),
        }
    }
    fn cuMemSetAccess(at: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize) |w| {
        let device = w.current()?;
        // SAFETY: one description at least.
        let a = if count == 1 { unsafe { *access } } else { return Err(code::INVALID_VALUE) };
        if a.location.id != device as i32 || a.flags != sys::CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
            return Err(code::INVALID_VALUE);
        }
        match lock(&w.closed).remove(&(at as usize)) {
            Some(n) if n == bytes => Ok(()),
            _ => Err(code::INVALID_VALUE),
        }
    }
    fn cuMemUnmap(at: CUdeviceptr, _bytes: usize) |w| {
        lock(&w.closed).remove(&(at as usize));
        w.engine()?.unmap(at as usize).map_err(memory)
    }

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) |w| {
        let (d, s) = (to as usize, from as usize);
        copy(w, "cuMemcpyHtoDAsync", stream, (d, s, bytes), vec![Access::write(d, bytes)], Some((s, true)))
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) |w| {
        let (d, s) = (to as usize, from as usize);
        copy(w, "cuMemcpyDtoHAsync", stream, (d, s, bytes), vec![Access::read(s, bytes)], Some((d, false)))
    }
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) |w| {
        let (d, s) = (to as usize, from as usize);
        let accesses = vec![Access::write(d, bytes), Access::read(s, bytes)];
        copy(w, "cuMemcpyDtoDAsync", stream, (d, s, bytes), accesses, None)
    }
    fn cuMemsetD8Async(at: CUdeviceptr, value: u8, bytes: usize, stream: CUstream) |w| {
        let at = at as usize;
        w.enqueue(w.stream(stream as usize)?, "cuMemsetD8Async", vec![Access::write(at, bytes)], move || {
            // SAFETY: checked to be live when it was queued; a free in between keeps the pages.
            unsafe { std::ptr::write_bytes(at as *mut u8, value, bytes) };
            Ok(())
        })
    }
}

/// A copy; `host` is its host side and whether that is read.
fn copy(
    w: &'static crate::world::World,
    name: &str,
    stream: CUstream,
    (to, from, bytes): (usize, usize, usize),
    mut accesses: Vec<Access>,
    host: Option<(usize, bool)>,
) -> Answer<()> {
    let (engine, id) = w.stream(stream as usize)?;
    if to == 0 || from == 0 {
        return Err(code::INVALID_VALUE);
    }
    // pinned memory is known to the engine: its reuse before the copy is a race, its freeing is named
    let pinned = |at: usize| lock(&w.pinned).iter().any(|(&p, &n)| at >= p && at + bytes <= p + n);
    let pageable = host.is_some_and(|(at, _)| !pinned(at));
    if let Some((at, read)) = host.filter(|_| !pageable) {
        accesses.push(if read { Access::read(at, bytes) } else { Access::write(at, bytes) });
    }
    w.enqueue((engine, id), name, accesses, move || {
        // SAFETY: device and pinned sides were checked; for pageable memory the call waits below.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    })?;
    if pageable {
        // as documented: the call may return after the copy; but who relies on that has lost the overlap
        engine.broke(format!("{name} with pageable host memory waits for the copy: use cuMemHostAlloc"));
        if !w.is_captured((engine, id))
            && let Some(Err(f)) = ended(engine.synchronize(id, None))?
        {
            return Err(f.code);
        }
    }
    Ok(())
}
