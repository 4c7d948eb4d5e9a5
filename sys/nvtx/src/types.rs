//! Constants and structs of the interface between a program and an NVTX tool: `nvtxTypes.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The interface that this is: 3 since NVTX 3.0.
pub const NVTX_VERSION: u32 = 3;
/// What a push or pop gives where nobody counts levels.
pub const NVTX_NO_PUSH_POP_TRACKING: c_int = -2;
/// The function that a tool's library has.
pub const ENTRY: &std::ffi::CStr = c"InitializeInjectionNvtx2";

/// A tool's function in a slot; null for none.
pub type NvtxFunctionPointer = *mut c_void;
/// A module's slots, by the numbers of its functions: entry 0 and the one after the last are null.
pub type NvtxFunctionTable = *mut *mut NvtxFunctionPointer;
/// How a tool asks for a table.
pub type NvtxGetExportTableFunc_t = unsafe extern "C" fn(table: u32) -> *const c_void;
/// A tool's entry. 0: it does not attach.
pub type NvtxInitializeInjectionNvtxFunc_t = unsafe extern "C" fn(get: NvtxGetExportTableFunc_t) -> c_int;
/// [`NVTX_CBID_CORE_RangePushA`].
pub type RangePushA = unsafe extern "C" fn(message: *const c_char) -> c_int;
/// [`NVTX_CBID_CORE_RangePop`].
pub type RangePop = unsafe extern "C" fn() -> c_int;
/// [`NVTX_CBID_CORE_NameOsThreadA`].
pub type NameOsThreadA = unsafe extern "C" fn(thread: u32, name: *const c_char);

/// The table with the slots.
#[repr(C)]
pub struct NvtxExportTableCallbacks {
    /// Of this struct.
    pub struct_size: usize,
    /// A module's slots and their number, without the null at the end. 0 when there is no such module.
    pub GetModuleFunctionTable:
        unsafe extern "C" fn(module: c_int, table: *mut NvtxFunctionTable, size: *mut c_uint) -> c_int,
}

/// The table by which program and tool tell each other their versions.
#[repr(C)]
pub struct NvtxExportTableVersionInfo {
    /// Of this struct.
    pub struct_size: usize,
    /// [`NVTX_VERSION`].
    pub version: u32,
    /// 0.
    pub reserved0: u32,
    /// The tool's version.
    pub SetInjectionNvtxVersion: unsafe extern "C" fn(version: u32),
}

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $ty = $value;)*

        /// Every constant here with its value: for checks against headers.
        pub const CONSTANTS: &[(&str, i64)] =
            &[("NVTX_VERSION", NVTX_VERSION as i64), ("NVTX_NO_PUSH_POP_TRACKING", NVTX_NO_PUSH_POP_TRACKING as i64),
              $((stringify!($name), $name as i64),)*];
    };
}

constants! {
    /// The table [`NvtxExportTableCallbacks`].
    NVTX_ETID_CALLBACKS: u32 = 1;
    /// The table [`NvtxExportTableVersionInfo`].
    NVTX_ETID_VERSIONINFO: u32 = 3;
    /// Marks, ranges, names of threads and categories.
    NVTX_CB_MODULE_CORE: c_int = 1;
    /// Names of the driver's objects.
    NVTX_CB_MODULE_CUDA: c_int = 2;
    /// Names of OpenCL's objects.
    NVTX_CB_MODULE_OPENCL: c_int = 3;
    /// Names of the runtime's objects.
    NVTX_CB_MODULE_CUDART: c_int = 4;
    /// The same as the core within domains.
    NVTX_CB_MODULE_CORE2: c_int = 5;
    /// Synchronisation objects of the program's own.
    NVTX_CB_MODULE_SYNC: c_int = 6;
    /// One more than the last module.
    NVTX_CB_MODULE_SIZE: c_int = 7;
    /// `nvtxRangePushA` in [`NVTX_CB_MODULE_CORE`].
    NVTX_CBID_CORE_RangePushA: usize = 9;
    /// `nvtxRangePop`.
    NVTX_CBID_CORE_RangePop: usize = 11;
    /// `nvtxNameOsThreadA`.
    NVTX_CBID_CORE_NameOsThreadA: usize = 14;
    /// One more than the last function of [`NVTX_CB_MODULE_CORE`].
    NVTX_CBID_CORE_SIZE: usize = 16;
    /// Of [`NVTX_CB_MODULE_CUDA`].
    NVTX_CBID_CUDA_SIZE: usize = 9;
    /// Of [`NVTX_CB_MODULE_OPENCL`].
    NVTX_CBID_OPENCL_SIZE: usize = 15;
    /// Of [`NVTX_CB_MODULE_CUDART`].
    NVTX_CBID_CUDART_SIZE: usize = 7;
    /// Of [`NVTX_CB_MODULE_CORE2`].
    NVTX_CBID_CORE2_SIZE: usize = 16;
    /// Of [`NVTX_CB_MODULE_SYNC`].
    NVTX_CBID_SYNC_SIZE: usize = 7;
}
