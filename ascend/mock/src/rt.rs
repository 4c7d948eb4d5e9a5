//! The runtime's functions.

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrotron_acl_sys::{self as acl, code};
use ferrotron_mock::memory::MemoryError;
use ferrotron_mock::{Access, Engine, Fault, Task};

use crate::world::*;

/// Writes an out-parameter.
unsafe fn put<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return refuse(PARAM_INVALID, "EE1001: an out-parameter is null");
    }
    // SAFETY: the caller's pointer is not null and by the interface points to a T.
    unsafe { to.write(value) };
    Ok(())
}

fn memory(e: MemoryError) -> Refusal {
    let code = match &e {
        MemoryError::Full { .. } | MemoryError::Host(_) => code::MEMORY_ALLOCATION,
        MemoryError::NoBlock(_) => PARAM_INVALID,
    };
    Refusal { code, text: format!("EL0004: {e}") }
}

fn fault(f: Fault) -> Refusal {
    Refusal { code: f.code, text: format!("EZ9999: Inner Error\n        errorStr: {}", f.text) }
}

fn ended<T>(r: Result<T, ferrotron_mock::engine::NoStream>) -> Answer<T> {
    r.or_else(|_| refuse(INVALID_HANDLE, "EE1001: the stream was destroyed"))
}

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$w:ident| $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> acl::aclError {
            answer(stringify!($name), |$w| $body)
        }
    )*};
}

/// This thread's error text, or null.
#[unsafe(no_mangle)]
pub extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    take_errors()
}

/// The chip that the mock plays.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    world().chip_name.as_ptr()
}

calls! {
    fn aclInit(_config: *const c_char) |w| {
        if w.initialised.swap(true, Ordering::AcqRel) {
            return refuse(code::REPEAT_INITIALIZE, "EH0001: aclInit has been called before");
        }
        Ok(())
    }
    fn aclFinalize() |w| {
        w.initialised.store(false, Ordering::Release);
        Ok(())
    }
    fn aclsysGetVersionStr(_package: *mut c_char, version: *mut c_char) |_w| {
        if version.is_null() {
            return refuse(code::NN_NULLPTR, "EH0001: null");
        }
        let text = crate::control::version();
        // SAFETY: the interface asks for a buffer of 128 bytes; versions are shorter.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), version, text.count_bytes() + 1) };
        Ok(())
    }
    fn aclsysGetCANNVersion(_name: i32, version: *mut acl::aclCANNPackageVersion) |_w| {
        let text = crate::control::version();
        let mut parts = [0; 128];
        for (to, from) in parts.iter_mut().zip(text.to_bytes()) {
            *to = *from as c_char;
        }
        let empty = [0; 64];
        let (major, minor, release, patch) = (empty, empty, empty, empty);
        let version_is = acl::aclCANNPackageVersion {
            version: parts, majorVersion: major, minorVersion: minor, releaseVersion: release, patchVersion: patch,
            reserved: [0; 128],
        };
        // SAFETY: out-parameter.
        unsafe { put(version, version_is) }
    }
    fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) |_w| {
        // SAFETY: out-parameters.
        unsafe { put(major, 1).and(put(minor, 17)).and(put(patch, 0)) }
    }
    fn aclrtGetDeviceCount(count: *mut u32) |_w| {
        // SAFETY: out-parameter.
        unsafe { put(count, DEVICES as u32) }
    }
    fn aclrtSetDevice(device: i32) |w| {
        if !w.initialised.load(Ordering::Acquire) {
            return refuse(UNINITIALIZE, "EH0001: aclInit has not been called");
        }
        set_context(w.primary(w.device(device)?));
        Ok(())
    }
    fn aclrtResetDevice(device: i32) |w| {
        w.device(device)?;
        set_context(0);
        Ok(())
    }
    fn aclrtCreateContext(context: *mut acl::aclrtContext, device: i32) |w| {
        let made = w.add(Object::Context { device: w.device(device)? });
        set_context(made);
        // SAFETY: out-parameter.
        unsafe { put(context, made as *mut c_void) }
    }
    fn aclrtDestroyContext(context: acl::aclrtContext) |w| {
        match w.remove(context as usize)? {
            Object::Context { .. } => Ok(()),
            _ => refuse(INVALID_HANDLE, "EE1001: not a context"),
        }
    }
    fn aclrtSetCurrentContext(context: acl::aclrtContext) |w| {
        match w.get(context as usize)? {
            Object::Context { .. } => set_context(context as usize),
            _ => return refuse(INVALID_HANDLE, "EE1001: not a context"),
        }
        Ok(())
    }
    fn aclrtGetCurrentContext(out: *mut acl::aclrtContext) |w| {
        w.current()?;
        // SAFETY: out-parameter.
        unsafe { put(out, context() as *mut c_void) }
    }
    fn aclrtSetSysParamOpt(option: acl::aclSysParamOpt, value: i64) |w| {
        w.current()?;
        if !(0..=3).contains(&option) || !(0..=3).contains(&value) {
            return refuse(PARAM_INVALID, format!("EE1001: option {option} = {value}"));
        }
        Ok(())
    }

    fn aclrtCtxSetSysParamOpt(option: acl::aclSysParamOpt, value: i64) |w| {
        let (context, _) = w.current()?;
        if !(0..=3).contains(&option) || !(0..=3).contains(&value) {
            return refuse(PARAM_INVALID, format!("EE1001: option {option} = {value}"));
        }
        lock(&w.options).insert((context, option), value);
        Ok(())
    }

    fn aclrtCreateStreamWithConfig(stream: *mut acl::aclrtStream, _priority: u32, _flag: u32) |w| {
        let (context, device) = w.current()?;
        let id = w.devices[device].stream().or_else(|e| refuse(207008, format!("EE1001: {e}")))?;
        let made = w.add(Object::Stream { context, device, id });
        // SAFETY: out-parameter.
        unsafe { put(stream, made as *mut c_void) }
    }
    fn aclrtStreamQuery(stream: acl::aclrtStream, status: *mut i32) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        match (ended(engine.fault(id))?, ended(engine.tasks_left(id))?) {
            (Some(f), _) => Err(fault(f)),
            // SAFETY: out-parameter.
            (None, left) => unsafe { put(status, i32::from(left > 0)) },
        }
    }
    fn aclrtStreamAbort(stream: acl::aclrtStream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let fault = Fault { code: STREAM_ABORT, text: "the stream was aborted".into() };
        ended(engine.abort_stream(id, fault))
    }
    fn aclrtDestroyStream(stream: acl::aclrtStream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        w.remove(stream as usize)?;
        ended(engine.end_stream(id, false))
    }
    fn aclrtDestroyStreamForce(stream: acl::aclrtStream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        w.remove(stream as usize)?;
        ended(engine.end_stream(id, true))
    }
    fn aclrtSetStreamFailureMode(stream: acl::aclrtStream, mode: u64) |w| {
        w.stream(stream as usize)?;
        if mode > 1 { refuse(PARAM_INVALID, "EE1001: failure mode") } else { Ok(()) }
    }
    fn aclrtSynchronizeStream(stream: acl::aclrtStream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        match ended(engine.synchronize(id, None))? {
            Some(Err(f)) => Err(fault(f)),
            _ => Ok(()),
        }
    }
    fn aclrtSynchronizeStreamWithTimeout(stream: acl::aclrtStream, timeout_ms: i32) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let patience = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        match ended(engine.synchronize(id, patience))? {
            None => refuse(TIMEOUT, format!("EE1002: the stream is not idle after {timeout_ms} ms")),
            Some(Err(f)) => Err(fault(f)),
            Some(Ok(())) => Ok(()),
        }
    }
    fn aclrtLaunchHostFunc(stream: acl::aclrtStream, function: acl::aclrtHostFunc, args: *mut c_void) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let args = args as usize;
        ended(engine.enqueue(id, Task::new("host function", vec![], move || {
            // SAFETY: the caller gave the two together.
            unsafe { function(args as *mut c_void) };
            Ok(())
        })))
    }

    fn aclrtCreateEventExWithFlag(event: *mut acl::aclrtEvent, flag: u32) |w| {
        w.current()?;
        if flag == 0 || flag & !(0x7f) != 0 {
            return refuse(PARAM_INVALID, format!("EE1001: event flags {flag:#x}"));
        }
        let made = w.add(Object::Event { flags: flag, mark: None, waits: vec![] });
        // SAFETY: out-parameter.
        unsafe { put(event, made as *mut c_void) }
    }
    fn aclrtDestroyEvent(event: acl::aclrtEvent) |w| {
        w.current()?;
        match w.remove(event as usize)? {
            Object::Event { waits, .. } => {
                if waits.iter().any(|(device, wait)| !w.devices[*device].host_knows(*wait)) {
                    w.engine()?.broke("an event is destroyed, and the host does not know that streams have passed their waits");
                }
                Ok(())
            }
            _ => refuse(INVALID_HANDLE, "EE1001: not an event"),
        }
    }
    fn aclrtRecordEvent(event: acl::aclrtEvent, stream: acl::aclrtStream) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let made = ended(engine.record(id))?;
        match lock(&w.objects).get_mut(&(event as usize)) {
            Some(Object::Event { mark, .. }) => *mark = Some(made),
            _ => return refuse(INVALID_HANDLE, "EE1001: not an event"),
        }
        Ok(())
    }
    fn aclrtStreamWaitEvent(stream: acl::aclrtStream, event: acl::aclrtEvent) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        match w.get(event as usize)? {
            Object::Event { flags, .. } if flags & acl::ACL_EVENT_SYNC == 0 => {
                refuse(PARAM_INVALID, "EE1001: a stream may wait only for events with flag ACL_EVENT_SYNC")
            }
            Object::Event { mark: Some(mark), .. } => {
                let wait = ended(engine.wait_noted(id, &mark))?;
                let (_, device) = w.current()?;
                if let Some(Object::Event { waits, .. }) = lock(&w.objects).get_mut(&(event as usize)) {
                    waits.push((device, wait));
                }
                Ok(())
            }
            Object::Event { mark: None, .. } => {
                engine.broke("a stream waits for an event that was never recorded: no wait at all");
                Ok(())
            }
            _ => refuse(INVALID_HANDLE, "EE1001: not an event"),
        }
    }
    fn aclrtQueryEventStatus(event: acl::aclrtEvent, status: *mut i32) |w| {
        let engine = w.engine()?;
        match w.get(event as usize)? {
            // SAFETY: out-parameter.
            Object::Event { mark, .. } => unsafe { put(status, mark.is_none_or(|m| engine.query(&m)) as i32) },
            _ => refuse(INVALID_HANDLE, "EE1001: not an event"),
        }
    }
    fn aclrtSynchronizeEvent(event: acl::aclrtEvent) |w| {
        let engine = w.engine()?;
        match w.get(event as usize)? {
            Object::Event { mark: Some(mark), .. } => match engine.wait_on_host(&mark, None) {
                Some(Err(f)) => Err(fault(f)),
                _ => Ok(()),
            },
            Object::Event { mark: None, .. } => Ok(()),
            _ => refuse(INVALID_HANDLE, "EE1001: not an event"),
        }
    }
    fn aclrtEventElapsedTime(ms: *mut f32, start: acl::aclrtEvent, end: acl::aclrtEvent) |w| {
        let engine = w.engine()?;
        match (w.get(start as usize)?, w.get(end as usize)?) {
            (Object::Event { flags: f, mark: Some(a), .. }, Object::Event { flags: g, mark: Some(b), .. }) => {
                if f & g & acl::ACL_EVENT_TIME_LINE == 0 {
                    return refuse(107006, "EE1001: only events with flag ACL_EVENT_TIME_LINE have a time");
                }
                match engine.between(&a, &b) {
                    // SAFETY: out-parameter.
                    Some(t) => unsafe { put(ms, t.as_secs_f32() * 1e3) },
                    None => refuse(EVENT_NOT_COMPLETE, "EE1001: the events have not happened"),
                }
            }
            _ => refuse(PARAM_INVALID, "EE1001: not two recorded events"),
        }
    }

    fn aclrtMalloc(ptr: *mut *mut c_void, size: usize, policy: acl::aclrtMemMallocPolicy) |w| {
        let engine = w.engine()?;
        if size == 0 || !(0..=7).contains(&(policy & 0xff)) {
            return refuse(PARAM_INVALID, format!("EE1001: aclrtMalloc of {size} bytes, policy {policy}"));
        }
        let at = engine.alloc(size).map_err(memory)?;
        // SAFETY: out-parameter.
        unsafe { put(ptr, at as *mut c_void) }
    }
    fn aclrtFree(ptr: *mut c_void) |w| {
        w.engine()?.free(ptr as usize).map_err(memory)
    }
    fn aclrtMallocHost(ptr: *mut *mut c_void, size: usize) |w| {
        let at = w.engine()?.alloc(size).map_err(memory)?;
        lock(&w.pinned).insert(at, size);
        // SAFETY: out-parameter.
        unsafe { put(ptr, at as *mut c_void) }
    }
    fn aclrtFreeHost(ptr: *mut c_void) |w| {
        let engine = w.engine()?;
        if lock(&w.pinned).remove(&(ptr as usize)).is_none() {
            return refuse(PARAM_INVALID, "EE1001: not a block of aclrtMallocHost");
        }
        engine.free(ptr as usize).map_err(memory)
    }
    fn aclrtGetMemInfo(_attr: acl::aclrtMemAttr, free: *mut usize, total: *mut usize) |w| {
        let (used, all) = w.engine()?.heap().usage();
        // SAFETY: out-parameters.
        unsafe { put(free, all - used).and(put(total, all)) }
    }
    fn aclrtReserveMemAddress(ptr: *mut *mut c_void, size: usize, _align: usize, expected: *mut c_void, flags: u64) |w| {
        if !expected.is_null() || flags > 1 {
            return refuse(PARAM_INVALID, "EE1001: the expected address must be null, flags 0 or 1");
        }
        let at = w.engine()?.heap().reserve(size).map_err(memory)?;
        // SAFETY: out-parameter.
        unsafe { put(ptr, at as *mut c_void) }
    }
    fn aclrtReleaseMemAddress(ptr: *mut c_void) |w| {
        w.engine()?.heap().release(ptr as usize).map_err(memory)
    }
    fn aclrtMemGetAllocationGranularity(
        _properties: *const acl::aclrtPhysicalMemProp, _option: i32, granularity: *mut usize,
    ) |w| {
        w.current()?;
        // SAFETY: out-parameter.
        unsafe { put(granularity, 2 << 20) }
    }
    fn aclrtMallocPhysical(
        handle: *mut acl::aclrtDrvMemHandle, size: usize, properties: *const acl::aclrtPhysicalMemProp, _flags: u64,
    ) |w| {
        let (_, device) = w.current()?;
        if properties.is_null() || size == 0 || !size.is_multiple_of(2 << 20) {
            return refuse(PARAM_INVALID, format!("EE1001: {size} bytes are not whole pages of 2 MiB"));
        }
        let (used, all) = w.devices[device].heap().usage();
        if size > all - used {
            return refuse(code::MEMORY_ALLOCATION, format!("EL0004: {size} bytes wanted, {used} of {all} used"));
        }
        let made = w.add(Object::Physical { device, bytes: size });
        // SAFETY: out-parameter.
        unsafe { put(handle, made as *mut c_void) }
    }
    fn aclrtFreePhysical(handle: acl::aclrtDrvMemHandle) |w| {
        match w.remove(handle as usize)? {
            Object::Physical { .. } => Ok(()),
            _ => refuse(INVALID_HANDLE, "EE1001: not physical memory"),
        }
    }
    fn aclrtMapMem(ptr: *mut c_void, size: usize, offset: usize, handle: acl::aclrtDrvMemHandle, _flags: u64) |w| {
        match w.get(handle as usize)? {
            Object::Physical { device, bytes } if bytes == size && offset == 0 => {
                w.devices[device].heap().map(ptr as usize, size).map_err(memory)
            }
            _ => refuse(PARAM_INVALID, "EE1001: not physical memory of this size, or offset is not 0"),
        }
    }
    fn aclrtUnmapMem(ptr: *mut c_void) |w| {
        w.engine()?.unmap(ptr as usize).map_err(memory)
    }

    fn aclrtMemcpy(dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize, kind: acl::aclrtMemcpyKind) |w| {
        let engine = w.engine()?;
        let (to, from) = sides(dst, dst_max, src, count, kind)?;
        engine.host_access("aclrtMemcpy", &[to, from].into_iter().flatten().collect::<Vec<_>>())
            .or_else(|e| refuse(PARAM_INVALID, format!("EE1001: {e}")))?;
        // SAFETY: device sides were checked to be live; host sides are the caller's promise.
        unsafe { std::ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), count) };
        Ok(())
    }
    fn aclrtMemcpyAsync(
        dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize, kind: acl::aclrtMemcpyKind,
        stream: acl::aclrtStream,
    ) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let (to, from) = sides(dst, dst_max, src, count, kind)?;
        let (d, s) = (dst as usize, src as usize);
        if kind == acl::ACL_MEMCPY_DEVICE_TO_DEVICE && (d % 64 != 0 || s % 64 != 0) {
            return refuse(ADDR_UNALIGNED, "EE1001: copies on the device need addresses aligned to 64 bytes");
        }
        // pinned memory is known to the engine: its reuse before the copy is a race, its freeing is named
        let pinned = |at: usize| lock(&w.pinned).iter().any(|(&p, &n)| at >= p && at + count <= p + n);
        let host = if kind == acl::ACL_MEMCPY_HOST_TO_DEVICE { Some(s) } else { None }
            .or((kind == acl::ACL_MEMCPY_DEVICE_TO_HOST).then_some(d));
        let pageable = host.is_some_and(|h| !pinned(h));
        let mut accesses: Vec<Access> = [to, from].into_iter().flatten().collect();
        if let Some(h) = host.filter(|_| !pageable) {
            accesses.push(if h == s { Access::read(h, count) } else { Access::write(h, count) });
        }
        ended(engine.enqueue(id, Task::new("aclrtMemcpyAsync", accesses, move || {
            // SAFETY: device and pinned sides were checked; for pageable memory the call waits below.
            unsafe { std::ptr::copy(s as *const u8, d as *mut u8, count) };
            Ok(())
        })))?;
        if pageable {
            // as documented: the call returns after the copy; but who relies on that has lost the overlap
            engine.broke("aclrtMemcpyAsync with pageable host memory waits for the copy: use aclrtMallocHost");
            if let Some(Err(f)) = ended(engine.synchronize(id, None))? {
                return Err(fault(f));
            }
        }
        Ok(())
    }
    fn aclrtMemsetAsync(ptr: *mut c_void, max_count: usize, value: i32, count: usize, stream: acl::aclrtStream) |w| {
        let (engine, id): (&Engine, _) = w.stream(stream as usize)?;
        if count > max_count {
            return refuse(PARAM_INVALID, format!("EE1001: {count} bytes in {max_count}"));
        }
        let at = ptr as usize;
        ended(engine.enqueue(id, Task::new("aclrtMemsetAsync", vec![Access::write(at, count)], move || {
            // SAFETY: checked to be live when it was queued; a free in between keeps the pages.
            unsafe { std::ptr::write_bytes(at as *mut u8, value as u8, count) };
            Ok(())
        })))
    }
}

/// The device sides of a copy: written, read.
fn sides(
    dst: *mut c_void,
    dst_max: usize,
    src: *const c_void,
    count: usize,
    kind: acl::aclrtMemcpyKind,
) -> Answer<(Option<Access>, Option<Access>)> {
    if count > dst_max || dst.is_null() || src.is_null() {
        return refuse(PARAM_INVALID, format!("EE1001: copy of {count} bytes into {dst_max}, or null"));
    }
    let to = Access::write(dst as usize, count);
    let from = Access::read(src as usize, count);
    Ok(match kind {
        acl::ACL_MEMCPY_HOST_TO_DEVICE => (Some(to), None),
        acl::ACL_MEMCPY_DEVICE_TO_HOST => (None, Some(from)),
        acl::ACL_MEMCPY_DEVICE_TO_DEVICE => (Some(to), Some(from)),
        _ => return refuse(PARAM_INVALID, format!("EE1001: copy kind {kind}")),
    })
}
