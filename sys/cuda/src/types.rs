//! Types and constants of the driver.

use std::ffi::{c_int, c_void};

/// Error code; see [`crate::code`].
pub type CUresult = c_int;
/// A device's number.
pub type CUdevice = c_int;
/// An address on a device.
pub type CUdeviceptr = u64;
/// A context.
pub type CUcontext = *mut c_void;
/// A stream.
pub type CUstream = *mut c_void;
/// An event.
pub type CUevent = *mut c_void;
/// Loaded kernels.
pub type CUmodule = *mut c_void;
/// A kernel.
pub type CUfunction = *mut c_void;
/// Work that was collected.
pub type CUgraph = *mut c_void;
/// The same, to launch.
pub type CUgraphExec = *mut c_void;
/// A part of it.
pub type CUgraphNode = *mut c_void;
/// Memory without an address.
pub type CUmemGenericAllocationHandle = u64;
/// A function that a stream calls on the host. It may not call the driver.
pub type CUhostFn = unsafe extern "C" fn(*mut c_void);

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemLocation {
    /// [`CU_MEM_LOCATION_TYPE_DEVICE`].
    pub type_: c_int,
    /// The device.
    pub id: c_int,
}

/// What memory without an address is like.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub type_: c_int,
    /// 0: not for other processes.
    pub requestedHandleTypes: c_int,
    /// Where.
    pub location: CUmemLocation,
    /// Null.
    pub win32HandleMetaData: *mut c_void,
    /// Compression, RDMA, usage: zeros.
    pub allocFlags: [u8; 8],
}

/// Who may touch mapped memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAccessDesc {
    /// The device.
    pub location: CUmemLocation,
    /// [`CU_MEM_ACCESS_FLAGS_PROT_READWRITE`].
    pub flags: c_int,
}

/// Why a graph does not take the parameters of another.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUgraphExecUpdateResultInfo {
    /// 0 when it does; see the vendor's `CUgraphExecUpdateResult`.
    pub result: c_int,
    /// The part that is in the way, or null.
    pub errorNode: CUgraphNode,
    /// The one that it depends on, or null.
    pub errorFromNode: CUgraphNode,
}

ferrotron_dynlib::constants! { CONSTANTS:
    /// Threads of a block.
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: c_int = 1;
    /// Processors.
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
    /// 8 of 8.0.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    /// 0 of 8.0.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;
    /// Bytes of shared memory that a kernel may ask for.
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
    /// Memory in stream order.
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: c_int = 115;
    /// No order against the default stream.
    CU_STREAM_NON_BLOCKING: u32 = 1;
    /// Captures do not keep any thread from anything else.
    CU_STREAM_CAPTURE_MODE_RELAXED: c_int = 2;
    /// A captured stream waits for an event of no capture.
    CU_EVENT_WAIT_EXTERNAL: u32 = 1;
    /// Events that only order.
    CU_EVENT_DISABLE_TIMING: u32 = 2;
    /// Dynamic shared memory that a kernel may be launched with.
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
    /// The PTX that a kernel was compiled from, 80 of 8.0.
    CU_FUNC_ATTRIBUTE_PTX_VERSION: c_int = 5;
    /// The chip that a kernel's machine code is for, 90 of 9.0.
    CU_FUNC_ATTRIBUTE_BINARY_VERSION: c_int = 6;
    /// Text of the compiler at load.
    CU_JIT_ERROR_LOG_BUFFER: c_int = 5;
    /// Its size.
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
    /// Ends the list of launch options.
    CU_LAUNCH_PARAM_END_AS_INT: c_int = 0;
    /// Packed arguments.
    CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT: c_int = 1;
    /// Their size.
    CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT: c_int = 2;
    /// Memory of a device.
    CU_MEM_LOCATION_TYPE_DEVICE: c_int = 1;
    /// The only kind there is.
    CU_MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
    /// Read and write.
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_int = 3;
    /// Smallest unit.
    CU_MEM_ALLOC_GRANULARITY_MINIMUM: c_int = 0;
}
