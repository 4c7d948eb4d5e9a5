//! The C interface of NCCL: constants, structs, a table of functions found at run time, and result codes in words.
//!
//! Names are the vendor's. Communicators are non-blocking: every call may answer "in progress", and
//! `ncclCommGetAsyncError` tells when it is done.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

use std::ffi::{c_char, c_int, c_void};

use ferrotron_cuda_sys::CUstream;

/// Result code.
pub type ncclResult_t = c_int;
/// A communicator.
pub type ncclComm_t = *mut c_void;
/// An element type.
pub type ncclDataType_t = c_int;
/// A reduction.
pub type ncclRedOp_t = c_int;

ferrotron_dynlib::constants! { CONSTANTS:
    /// Done.
    ncclSuccess: ncclResult_t = 0;
    /// The system refused something.
    ncclSystemError: ncclResult_t = 2;
    /// A mistake of the library.
    ncclInternalError: ncclResult_t = 3;
    /// An argument of a call is wrong.
    ncclInvalidArgument: ncclResult_t = 4;
    /// The calls of the ranks do not fit together, or come at a wrong time.
    ncclInvalidUsage: ncclResult_t = 5;
    /// Another rank has failed or is gone.
    ncclRemoteError: ncclResult_t = 6;
    /// Not done yet.
    ncclInProgress: ncclResult_t = 7;

    /// Bytes.
    ncclUint8: ncclDataType_t = 1;
    /// Signed 32 bits.
    ncclInt32: ncclDataType_t = 2;
    /// Signed 64 bits.
    ncclInt64: ncclDataType_t = 4;
    /// IEEE half.
    ncclFloat16: ncclDataType_t = 6;
    /// 32-bit float.
    ncclFloat32: ncclDataType_t = 7;
    /// 64-bit float.
    ncclFloat64: ncclDataType_t = 8;
    /// bfloat16.
    ncclBfloat16: ncclDataType_t = 9;

    /// a + b.
    ncclSum: ncclRedOp_t = 0;
    /// The larger.
    ncclMax: ncclRedOp_t = 2;

    /// Bytes of [`ncclUniqueId`].
    NCCL_UNIQUE_ID_BYTES: usize = 128;
}

/// The oldest NCCL that serves, as `ncclGetVersion` tells it: 2.14 is the first with non-blocking communicators.
pub const OLDEST: c_int = 21400;

/// What the first rank of a group tells the others. Passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclUniqueId {
    /// Opaque.
    pub internal: [u8; NCCL_UNIQUE_ID_BYTES],
}

/// A communicator's configuration in its first layout, of 2.14. Later libraries see from version and size that the fields
/// that came after are not there, and take their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclConfig_v21400 {
    /// Of this struct.
    pub size: usize,
    /// [`NCCL_CONFIG_MAGIC`].
    pub magic: u32,
    /// 21400.
    pub version: u32,
    /// 0: calls return at once.
    pub blocking: c_int,
}

/// A communicator's configuration in the layout of 2.18, which was the first that can be split; the header of that version
/// still calls it `ncclConfig_v21700`, whose last field was not there in 2.17.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclConfig_v21800 {
    /// Of this struct.
    pub size: usize,
    /// [`NCCL_CONFIG_MAGIC`].
    pub magic: u32,
    /// 21800.
    pub version: u32,
    /// 0: calls return at once.
    pub blocking: c_int,
    /// Blocks of a cluster, or [`NCCL_CONFIG_UNDEF_INT`].
    pub cgaClusterSize: c_int,
    /// Least blocks of a kernel, or [`NCCL_CONFIG_UNDEF_INT`].
    pub minCTAs: c_int,
    /// Most blocks of a kernel, or [`NCCL_CONFIG_UNDEF_INT`].
    pub maxCTAs: c_int,
    /// Name of the network module, or null.
    pub netName: *const c_char,
    /// 0: a communicator that is split off has resources of its own.
    pub splitShare: c_int,
}

/// The oldest NCCL with `ncclCommSplit`.
pub const FIRST_WITH_SPLIT: c_int = 21800;
/// The color of a rank that only takes part in a split.
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;
/// The default of a number of a configuration.
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;

impl ncclConfig_v21800 {
    /// Calls that return at once, and resources of its own: a parent is aborted without its children.
    pub const NON_BLOCKING_APART: ncclConfig_v21800 = ncclConfig_v21800 {
        size: size_of::<ncclConfig_v21800>(),
        magic: NCCL_CONFIG_MAGIC,
        version: 21800,
        blocking: 0,
        cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
        minCTAs: NCCL_CONFIG_UNDEF_INT,
        maxCTAs: NCCL_CONFIG_UNDEF_INT,
        netName: std::ptr::null(),
        splitShare: 0,
    };
}

/// Tells a configuration from anything else.
pub const NCCL_CONFIG_MAGIC: u32 = 0xcafe_beef;

impl ncclConfig_v21400 {
    /// Calls that return at once.
    pub const NON_BLOCKING: ncclConfig_v21400 = ncclConfig_v21400 {
        size: size_of::<ncclConfig_v21400>(),
        magic: NCCL_CONFIG_MAGIC,
        version: 21400,
        blocking: 0,
    };
}

ferrotron_dynlib::table! {
    /// Collectives: counts are elements, and all are asynchronous on the stream.
    pub struct Nccl {
        required {
            /// 10000 major + 100 minor + patch.
            fn ncclGetVersion(version: *mut c_int) -> ncclResult_t;
            /// The group's first rank only.
            fn ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t;
            /// All ranks at once. Non-blocking: the communicator is made in the background.
            fn ncclCommInitRankConfig(
                comm: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int, config: *const ncclConfig_v21400,
            ) -> ncclResult_t;
            /// Lets a communicator's calls end and parts from the other ranks, which do so too. Non-blocking: in the background.
            fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
            /// Frees a communicator that was finalized.
            fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
            /// Ends a communicator and the kernels that it has on the device. Any thread may call it.
            fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
            /// How the calls so far are doing.
            fn ncclCommGetAsyncError(comm: ncclComm_t, error: *mut ncclResult_t) -> ncclResult_t;
            /// A result in the vendor's words.
            fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
            /// `recv = reduce(send)` on every rank; the two may be one.
            fn ncclAllReduce(
                send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
                comm: ncclComm_t, stream: CUstream,
            ) -> ncclResult_t;
            /// This rank's `recv_count` elements of the sum.
            fn ncclReduceScatter(
                send: *const c_void, recv: *mut c_void, recv_count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
                comm: ncclComm_t, stream: CUstream,
            ) -> ncclResult_t;
            /// `send_count` elements of each rank in the order of ranks.
            fn ncclAllGather(
                send: *const c_void, recv: *mut c_void, send_count: usize, dtype: ncclDataType_t, comm: ncclComm_t,
                stream: CUstream,
            ) -> ncclResult_t;
            /// The root's elements on every rank.
            fn ncclBroadcast(
                send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int,
                comm: ncclComm_t, stream: CUstream,
            ) -> ncclResult_t;
            /// To one rank.
            fn ncclSend(
                buf: *const c_void, count: usize, dtype: ncclDataType_t, to: c_int, comm: ncclComm_t, stream: CUstream,
            ) -> ncclResult_t;
            /// From one rank.
            fn ncclRecv(
                buf: *mut c_void, count: usize, dtype: ncclDataType_t, from: c_int, comm: ncclComm_t, stream: CUstream,
            ) -> ncclResult_t;
            /// Calls of this thread from here to `ncclGroupEnd` progress together.
            fn ncclGroupStart() -> ncclResult_t;
            /// Launches them.
            fn ncclGroupEnd() -> ncclResult_t;
        }
        optional {
            /// All ranks of `comm` at once, without a call under way: a new communicator of those that name one color, in the
            /// order of their keys. From 2.18 on. Non-blocking: `comm` is in progress until `new` is written.
            fn ncclCommSplit(
                comm: ncclComm_t, color: c_int, key: c_int, new: *mut ncclComm_t, config: *const ncclConfig_v21800,
            ) -> ncclResult_t;
            /// What happened last, in words.
            fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
        }
    }
}

/// What to do about a result.
pub fn advice(result: ncclResult_t) -> &'static str {
    match result {
        1 => "CUDA reported an error: the first error of this rank's log counts",
        2 => {
            "the system refused something: NCCL_DEBUG=INFO names it; look at ulimit -l, /dev/shm and NCCL_SOCKET_IFNAME"
        }
        3 => "NCCL itself failed: run again with NCCL_DEBUG=INFO, and look for versions that differ between hosts",
        ncclInvalidArgument => "a mistake of this program; please report it",
        ncclInvalidUsage => {
            "the ranks' calls do not fit together, or two ranks share one GPU: see CUDA_VISIBLE_DEVICES"
        }
        ncclRemoteError => "another rank has failed or its host is gone: its own log says why",
        8 => "a peer did not answer in time: look at the network between the hosts (NCCL_DEBUG=INFO, ibstat)",
        _ => "run again with NCCL_DEBUG=INFO",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_layout_of_2_14() {
        assert_eq!((size_of::<ncclConfig_v21400>(), std::mem::offset_of!(ncclConfig_v21400, blocking)), (24, 16));
        assert_eq!((size_of::<ncclUniqueId>(), align_of::<ncclUniqueId>()), (128, 1));
    }

    #[test]
    fn the_configuration_has_the_layout_of_2_18() {
        use std::mem::offset_of;
        let fields = [offset_of!(ncclConfig_v21800, blocking), offset_of!(ncclConfig_v21800, maxCTAs)];
        assert_eq!((size_of::<ncclConfig_v21800>(), fields), (48, [16, 28]));
        assert_eq!((offset_of!(ncclConfig_v21800, netName), offset_of!(ncclConfig_v21800, splitShare)), (32, 40));
    }

    #[test]
    fn results_have_advice() {
        assert!(advice(ncclRemoteError).contains("another rank") && advice(99).contains("NCCL_DEBUG"));
    }
}
