//! The compiler at run time: libnvrtc.

use std::ffi::{c_char, c_int, c_void};

/// Result code; 0 is success.
pub type nvrtcResult = c_int;
/// What is compiled.
pub type nvrtcProgram = *mut c_void;

ferrotron_dynlib::constants! { NVRTC_CODES:
    /// Done.
    NVRTC_SUCCESS: nvrtcResult = 0;
    /// An argument of a call is wrong.
    NVRTC_ERROR_INVALID_INPUT: nvrtcResult = 3;
    /// No such program.
    NVRTC_ERROR_INVALID_PROGRAM: nvrtcResult = 4;
    /// An option is unknown, or a chip; the log says which.
    NVRTC_ERROR_INVALID_OPTION: nvrtcResult = 5;
    /// The source is wrong; the log says where.
    NVRTC_ERROR_COMPILATION: nvrtcResult = 6;
    /// `libnvrtc-builtins` of the same version does not lie beside the library.
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: nvrtcResult = 7;
}

ferrotron_dynlib::table! {
    /// The functions of NVRTC: all are in that of CUDA 12. They need no driver and no GPU.
    pub struct Nvrtc {
        required {
            /// Of the library: 12 and 4.
            fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> nvrtcResult;
            /// A result's name.
            fn nvrtcGetErrorString(result: nvrtcResult) -> *const c_char;
            /// Chips that it compiles for.
            fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> nvrtcResult;
            /// Their compute capabilities times ten, upwards.
            fn nvrtcGetSupportedArchs(chips: *mut c_int) -> nvrtcResult;
            /// A program of a source and the files that it may include, with their names.
            fn nvrtcCreateProgram(
                program: *mut nvrtcProgram, source: *const c_char, name: *const c_char, count: c_int,
                headers: *const *const c_char, names: *const *const c_char,
            ) -> nvrtcResult;
            /// Gives it up.
            fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> nvrtcResult;
            /// Compiles; the log says what is wrong.
            fn nvrtcCompileProgram(program: nvrtcProgram, count: c_int, options: *const *const c_char) -> nvrtcResult;
            /// Bytes of the log with its NUL.
            fn nvrtcGetProgramLogSize(program: nvrtcProgram, bytes: *mut usize) -> nvrtcResult;
            /// The log.
            fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char) -> nvrtcResult;
            /// Bytes of the PTX with its NUL.
            fn nvrtcGetPTXSize(program: nvrtcProgram, bytes: *mut usize) -> nvrtcResult;
            /// The PTX.
            fn nvrtcGetPTX(program: nvrtcProgram, text: *mut c_char) -> nvrtcResult;
            /// Bytes of the machine code; 0 when it was compiled for no chip in particular.
            fn nvrtcGetCUBINSize(program: nvrtcProgram, bytes: *mut usize) -> nvrtcResult;
            /// The machine code.
            fn nvrtcGetCUBIN(program: nvrtcProgram, code: *mut c_char) -> nvrtcResult;
        }
        optional {}
    }
}
