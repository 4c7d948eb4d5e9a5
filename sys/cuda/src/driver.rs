//! The driver: libcuda.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::types::*;

ferrotron_dynlib::table! {
    /// The functions of the driver: all are in every driver for CUDA 12.
    pub struct Driver {
        required {
            /// First of all calls. `flags` is 0.
            fn cuInit(flags: c_uint) -> CUresult;
            /// 1000 major + 10 minor of the newest CUDA that the driver serves.
            fn cuDriverGetVersion(version: *mut c_int) -> CUresult;
            /// `CUDA_ERROR_OUT_OF_MEMORY` of a code.
            fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult;
            /// A code in the vendor's words.
            fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult;
            /// Devices visible, after CUDA_VISIBLE_DEVICES.
            fn cuDeviceGetCount(count: *mut c_int) -> CUresult;
            /// The handle of a device.
            fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult;
            /// Its model.
            fn cuDeviceGetName(name: *mut c_char, size: c_int, device: CUdevice) -> CUresult;
            /// A fact about it.
            fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) -> CUresult;
            /// Its memory in bytes.
            fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult;
            /// The device's own context, which all libraries of the process share.
            fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult;
            /// Gives it up.
            fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult;
            /// Makes a context current on this thread.
            fn cuCtxSetCurrent(context: CUcontext) -> CUresult;
            /// This thread's context, or null.
            fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult;
            /// Priorities of streams: the larger number is the lesser priority.
            fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> CUresult;
            /// Free and total bytes of the current context's device.
            fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult;
            /// Device memory of undefined contents, aligned to 256 bytes.
            fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) -> CUresult;
            /// Frees device memory.
            fn cuMemFree_v2(at: CUdeviceptr) -> CUresult;
            /// Pinned host memory.
            fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult;
            /// Frees it.
            fn cuMemFreeHost(at: *mut c_void) -> CUresult;
            /// Unit of memory without an address.
            fn cuMemGetAllocationGranularity(
                bytes: *mut usize, properties: *const CUmemAllocationProp, option: c_int,
            ) -> CUresult;
            /// Addresses without memory.
            fn cuMemAddressReserve(
                at: *mut CUdeviceptr, bytes: usize, alignment: usize, wish: CUdeviceptr, flags: u64,
            ) -> CUresult;
            /// Gives addresses back.
            fn cuMemAddressFree(at: CUdeviceptr, bytes: usize) -> CUresult;
            /// Memory without an address.
            fn cuMemCreate(
                handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: u64,
            ) -> CUresult;
            /// Gives it back; it stays while it is mapped.
            fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult;
            /// Puts memory at addresses; nobody may touch it before `cuMemSetAccess`.
            fn cuMemMap(
                at: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64,
            ) -> CUresult;
            /// Takes it away again.
            fn cuMemUnmap(at: CUdeviceptr, bytes: usize) -> CUresult;
            /// Lets devices touch mapped memory.
            fn cuMemSetAccess(at: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize) -> CUresult;
            /// Host to device in stream order. Asynchronous with pinned memory only.
            fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) -> CUresult;
            /// Device to host in stream order.
            fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult;
            /// Within the device in stream order.
            fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult;
            /// Fills bytes in stream order.
            fn cuMemsetD8Async(at: CUdeviceptr, value: u8, bytes: usize, stream: CUstream) -> CUresult;
            /// A stream of the current context.
            fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) -> CUresult;
            /// Ends a stream; its work still runs.
            fn cuStreamDestroy_v2(stream: CUstream) -> CUresult;
            /// Blocks until the stream is idle; errors of its kernels show here.
            fn cuStreamSynchronize(stream: CUstream) -> CUresult;
            /// Whether the stream is idle, else `CUDA_ERROR_NOT_READY`, or the error of its kernels.
            fn cuStreamQuery(stream: CUstream) -> CUresult;
            /// Later work of the stream waits for the event as it was last recorded. `flags` is 0, or while the stream is
            /// captured [`CU_EVENT_WAIT_EXTERNAL`] for an event that is not of the capture.
            fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult;
            /// An event.
            fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult;
            /// Ends it; waits that are queued stay.
            fn cuEventDestroy_v2(event: CUevent) -> CUresult;
            /// Marks the stream's work so far.
            fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
            /// Whether the marked work is done, else `CUDA_ERROR_NOT_READY`.
            fn cuEventQuery(event: CUevent) -> CUresult;
            /// Runs a function on the host in stream order.
            fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) -> CUresult;
            /// From here on the stream's work is collected, not run, and that of every stream that comes to wait for it.
            fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int) -> CUresult;
            /// Ends it; what was collected. Every stream that took part must have been waited for.
            fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult;
            /// A graph that can be launched.
            fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64) -> CUresult;
            /// Gives it the parameters of a graph of the same shape, from its next launch on.
            fn cuGraphExecUpdate_v2(
                exec: CUgraphExec, graph: CUgraph, result: *mut CUgraphExecUpdateResultInfo,
            ) -> CUresult;
            /// Runs all of it in stream order.
            fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult;
            /// Gives up what can be launched.
            fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult;
            /// Gives up what was collected.
            fn cuGraphDestroy(graph: CUgraph) -> CUresult;
            /// Kernels from a fatbin, cubin or PTX text. Values of options are pointers or numbers in pointers.
            fn cuModuleLoadDataEx(
                module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
            ) -> CUresult;
            /// Gives them up.
            fn cuModuleUnload(module: CUmodule) -> CUresult;
            /// A kernel by name.
            fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult;
            /// An attribute of a kernel.
            fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> CUresult;
            /// A fact about a kernel.
            fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction) -> CUresult;
            /// Runs a kernel in stream order. Arguments are an array of pointers, or packed in `extra`.
            fn cuLaunchKernel(
                function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
                block_z: c_uint, shared_bytes: c_uint, stream: CUstream, arguments: *mut *mut c_void,
                extra: *mut *mut c_void,
            ) -> CUresult;
        }
        optional {}
    }
}
