//! The runtime: libascendcl (since CANN 8.5 also libacl_rt).

use std::ffi::{c_char, c_void};

use crate::types::*;

ferrotron_dynlib::table! {
    /// The functions of the runtime. Required are those that every release from 8.0 has and that nothing works without.
    pub struct Acl {
        required {
            /// Once a process; a second call gives `REPEAT_INITIALIZE`.
            fn aclInit(config_path: *const c_char) -> aclError;
            /// The last call.
            fn aclFinalize() -> aclError;
            /// Text of this thread's errors since the last call, or null. Reading clears it.
            fn aclGetRecentErrMsg() -> *const c_char;
            /// `Ascend910B3`, or null without a device.
            fn aclrtGetSocName() -> *const c_char;
            /// Devices visible, after ASCEND_RT_VISIBLE_DEVICES.
            fn aclrtGetDeviceCount(count: *mut u32) -> aclError;
            /// Makes the device's own context current on this thread.
            fn aclrtSetDevice(device: i32) -> aclError;
            /// Gives up what aclrtSetDevice took.
            fn aclrtResetDevice(device: i32) -> aclError;
            /// A further context of a device, current on this thread from now on.
            fn aclrtCreateContext(context: *mut aclrtContext, device: i32) -> aclError;
            /// Ends a context.
            fn aclrtDestroyContext(context: aclrtContext) -> aclError;
            /// Makes a context current on this thread.
            fn aclrtSetCurrentContext(context: aclrtContext) -> aclError;
            /// This thread's context.
            fn aclrtGetCurrentContext(context: *mut aclrtContext) -> aclError;
            /// A stream of the current context.
            fn aclrtCreateStreamWithConfig(stream: *mut aclrtStream, priority: u32, flag: aclrtStreamFlag) -> aclError;
            /// Ends a stream after its work.
            fn aclrtDestroyStream(stream: aclrtStream) -> aclError;
            /// Blocks until the stream is idle; errors of its tasks show here.
            fn aclrtSynchronizeStream(stream: aclrtStream) -> aclError;
            /// The stream's later tasks wait for the event.
            fn aclrtStreamWaitEvent(stream: aclrtStream, event: aclrtEvent) -> aclError;
            /// An event that may be recorded again and again.
            fn aclrtCreateEventExWithFlag(event: *mut aclrtEvent, flag: aclrtEventFlag) -> aclError;
            /// Ends an event.
            fn aclrtDestroyEvent(event: aclrtEvent) -> aclError;
            /// Marks the stream's tasks so far.
            fn aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream) -> aclError;
            /// Whether the marked tasks are done.
            fn aclrtQueryEventStatus(event: aclrtEvent, status: *mut aclrtEventRecordedStatus) -> aclError;
            /// Blocks until the marked tasks are done.
            fn aclrtSynchronizeEvent(event: aclrtEvent) -> aclError;
            /// Device memory of undefined contents, aligned to 64 bytes.
            fn aclrtMalloc(ptr: *mut *mut c_void, size: usize, policy: aclrtMemMallocPolicy) -> aclError;
            /// Frees at once: it waits for nobody, not even for queued tasks that use the memory.
            fn aclrtFree(ptr: *mut c_void) -> aclError;
            /// Pinned host memory.
            fn aclrtMallocHost(ptr: *mut *mut c_void, size: usize) -> aclError;
            /// Frees pinned host memory.
            fn aclrtFreeHost(ptr: *mut c_void) -> aclError;
            /// Copies at once: not ordered against any stream.
            fn aclrtMemcpy(
                dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize, kind: aclrtMemcpyKind,
            ) -> aclError;
            /// Copies in stream order. Asynchronous with pinned host memory only.
            fn aclrtMemcpyAsync(
                dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize, kind: aclrtMemcpyKind,
                stream: aclrtStream,
            ) -> aclError;
            /// Fills bytes in stream order.
            fn aclrtMemsetAsync(
                ptr: *mut c_void, max_count: usize, value: i32, count: usize, stream: aclrtStream,
            ) -> aclError;
            /// Free and total bytes of a kind of memory.
            fn aclrtGetMemInfo(attr: aclrtMemAttr, free: *mut usize, total: *mut usize) -> aclError;
        }
        optional {
            /// Version of a package: `runtime`, `toolkit`.
            fn aclsysGetVersionStr(package: *mut c_char, version: *mut c_char) -> aclError;
            /// Version of a package by number, 0 for CANN: what releases before 8.5 have.
            fn aclsysGetCANNVersion(package: i32, version: *mut aclCANNPackageVersion) -> aclError;
            /// Version of the interface, 1.x.
            fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> aclError;
            /// Blocks, at most so many milliseconds.
            fn aclrtSynchronizeStreamWithTimeout(stream: aclrtStream, timeout_ms: i32) -> aclError;
            /// Whether a stream is idle, or its error.
            fn aclrtStreamQuery(stream: aclrtStream, status: *mut i32) -> aclError;
            /// Ends what a stream does and has in its queue; the stream stays.
            fn aclrtStreamAbort(stream: aclrtStream) -> aclError;
            /// Ends a stream without its work.
            fn aclrtDestroyStreamForce(stream: aclrtStream) -> aclError;
            /// What the stream does after a task failed.
            fn aclrtSetStreamFailureMode(stream: aclrtStream, mode: aclrtStreamFailureMode) -> aclError;
            /// Options of the current context, such as determinism.
            fn aclrtCtxSetSysParamOpt(option: aclSysParamOpt, value: i64) -> aclError;
            /// Options of the process.
            fn aclrtSetSysParamOpt(option: aclSysParamOpt, value: i64) -> aclError;
            /// Runs a function on the host in stream order.
            fn aclrtLaunchHostFunc(stream: aclrtStream, function: aclrtHostFunc, args: *mut c_void) -> aclError;
            /// Addresses without memory. `expected` is null; flag 1 means huge pages.
            fn aclrtReserveMemAddress(
                ptr: *mut *mut c_void, size: usize, alignment: usize, expected: *mut c_void, flags: u64,
            ) -> aclError;
            /// Gives addresses back.
            fn aclrtReleaseMemAddress(ptr: *mut c_void) -> aclError;
            /// Memory without an address.
            fn aclrtMallocPhysical(
                handle: *mut aclrtDrvMemHandle, size: usize, properties: *const aclrtPhysicalMemProp, flags: u64,
            ) -> aclError;
            /// Gives memory back.
            fn aclrtFreePhysical(handle: aclrtDrvMemHandle) -> aclError;
            /// Puts memory at addresses. `offset` is 0.
            fn aclrtMapMem(
                ptr: *mut c_void, size: usize, offset: usize, handle: aclrtDrvMemHandle, flags: u64,
            ) -> aclError;
            /// Takes it away again.
            fn aclrtUnmapMem(ptr: *mut c_void) -> aclError;
            /// Unit of physical memory, 2 MiB for huge pages.
            fn aclrtMemGetAllocationGranularity(
                properties: *const aclrtPhysicalMemProp, option: aclrtMemGranularityOptions, granularity: *mut usize,
            ) -> aclError;
        }
    }
}
