//! The functions of HCCL.

use std::ffi::{c_char, c_void};

use ferrotron_acl_sys::{Environment, aclrtStream};
use ferrotron_dynlib::Search;

use crate::types::*;

ferrotron_dynlib::table! {
    /// Collectives: counts are elements, and all are asynchronous on the stream. Errors while they run show at a sync of
    /// the stream, or in `HcclGetCommAsyncError`.
    pub struct Hccl {
        required {
            /// Rank 0 only, after aclrtSetDevice.
            fn HcclGetRootInfo(info: *mut HcclRootInfo) -> HcclResult;
            /// All ranks at once; returns when they are linked.
            fn HcclCommInitRootInfo(ranks: u32, info: *const HcclRootInfo, rank: u32, comm: *mut HcclComm) -> HcclResult;
            /// Ends a communicator.
            fn HcclCommDestroy(comm: HcclComm) -> HcclResult;
            /// `recv = reduce(send)` on every rank; the two may be one.
            fn HcclAllReduce(
                send: *mut c_void, recv: *mut c_void, count: u64, dtype: HcclDataType, op: HcclReduceOp, comm: HcclComm,
                stream: aclrtStream,
            ) -> HcclResult;
            /// `send_count` elements of each rank in the order of ranks.
            fn HcclAllGather(
                send: *mut c_void, recv: *mut c_void, send_count: u64, dtype: HcclDataType, comm: HcclComm,
                stream: aclrtStream,
            ) -> HcclResult;
            /// This rank's `recv_count` elements of the sum.
            fn HcclReduceScatter(
                send: *mut c_void, recv: *mut c_void, recv_count: u64, dtype: HcclDataType, op: HcclReduceOp,
                comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
            /// The root's elements on every rank.
            fn HcclBroadcast(
                buf: *mut c_void, count: u64, dtype: HcclDataType, root: u32, comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
            /// Counts and displacements are host arrays of u64, in elements.
            fn HcclAlltoAllV(
                send: *const c_void, send_counts: *const c_void, send_displs: *const c_void, send_type: HcclDataType,
                recv: *const c_void, recv_counts: *const c_void, recv_displs: *const c_void, recv_type: HcclDataType,
                comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
            /// To one rank.
            fn HcclSend(
                buf: *mut c_void, count: u64, dtype: HcclDataType, to: u32, comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
            /// From one rank.
            fn HcclRecv(
                buf: *mut c_void, count: u64, dtype: HcclDataType, from: u32, comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
        }
        optional {
            /// With a configuration; see [`crate::CommConfig`].
            fn HcclCommInitRootInfoConfig(
                ranks: u32, info: *const HcclRootInfo, rank: u32, config: *const c_void, comm: *mut HcclComm,
            ) -> HcclResult;
            /// By a rank table file, with a configuration.
            fn HcclCommInitClusterInfoConfig(
                table: *const c_char, rank: u32, config: *mut c_void, comm: *mut HcclComm,
            ) -> HcclResult;
            /// A communicator of some ranks of another.
            fn HcclCreateSubCommConfig(
                parent: *mut HcclComm, ranks: u32, rank_ids: *mut u32, sub_comm: u64, sub_rank: u32, config: *mut c_void,
                comm: *mut HcclComm,
            ) -> HcclResult;
            /// How many fields of the configuration the library knows.
            fn HcclGetCommConfigCapability() -> u32;
            /// Other counts on each rank; counts and displacements as for HcclAlltoAllV.
            fn HcclAllGatherV(
                send: *mut c_void, send_count: u64, recv: *mut c_void, recv_counts: *const c_void,
                recv_displs: *const c_void, dtype: HcclDataType, comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
            /// Several sends and receives as one.
            fn HcclBatchSendRecv(
                items: *mut HcclSendRecvItem, count: u32, comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
            /// Equal parts to and from every rank.
            fn HcclAlltoAll(
                send: *const c_void, send_count: u64, send_type: HcclDataType, recv: *const c_void, recv_count: u64,
                recv_type: HcclDataType, comm: HcclComm, stream: aclrtStream,
            ) -> HcclResult;
            /// Waits for all ranks in stream order.
            fn HcclBarrier(comm: HcclComm, stream: aclrtStream) -> HcclResult;
            /// An error that came after the call.
            fn HcclGetCommAsyncError(comm: HcclComm, error: *mut HcclResult) -> HcclResult;
            /// The vendor's word for a result.
            fn HcclGetErrorString(result: HcclResult) -> *const c_char;
            /// Ranks.
            fn HcclGetRankSize(comm: HcclComm, ranks: *mut u32) -> HcclResult;
            /// This rank.
            fn HcclGetRankId(comm: HcclComm, rank: *mut u32) -> HcclResult;
        }
    }
}

/// The libraries to load, in the order in which a function is looked for. The first is needed, the second is not there
/// before CANN 8.5.
pub fn searches(environment: &Environment) -> [Search; 2] {
    ["libhccl.so", "libhcomm.so"].map(|name| Search::new([name]).places(environment.places()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libhccl_comes_before_libhcomm() {
        let [first, second] = searches(&Environment::only("/opt/cann"));
        assert_eq!(first.candidates(), ["/opt/cann/lib64/libhccl.so (ASCEND_HOME_PATH/lib64)"]);
        assert_eq!(second.candidates(), ["/opt/cann/lib64/libhcomm.so (ASCEND_HOME_PATH/lib64)"]);
    }

    #[test]
    fn without_libraries_every_required_function_is_named() {
        let missing = Hccl::load(&[]).err().map(|m| m.names);
        assert_eq!(missing.as_deref(), Some(Hccl::REQUIRED));
    }
}
