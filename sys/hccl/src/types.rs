//! Scalars, handles, constants and structs of HCCL.

use std::ffi::c_void;

/// Status of a call, 0 when it went well.
pub type HcclResult = i32;
/// A communicator.
pub type HcclComm = *mut c_void;

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident { $($value:ident = $number:expr,)* })*) => {
        $($(#[$doc])* pub type $name = i32;)*
        $($(#[allow(missing_docs)] pub const $value: $name = $number;)*)*
        /// Every constant above with its name in C and its value: for checks against headers.
        pub const CONSTANTS: &[(&str, i64)] = &[$($((stringify!($value), $value as i64),)*)*];
    };
}

constants! {
    /// Element type (not aclDataType's numbers).
    HcclDataType {
        HCCL_DATA_TYPE_INT8 = 0, HCCL_DATA_TYPE_INT16 = 1, HCCL_DATA_TYPE_INT32 = 2, HCCL_DATA_TYPE_FP16 = 3,
        HCCL_DATA_TYPE_FP32 = 4, HCCL_DATA_TYPE_INT64 = 5, HCCL_DATA_TYPE_UINT64 = 6, HCCL_DATA_TYPE_UINT8 = 7,
        HCCL_DATA_TYPE_UINT16 = 8, HCCL_DATA_TYPE_UINT32 = 9, HCCL_DATA_TYPE_FP64 = 10, HCCL_DATA_TYPE_BFP16 = 11,
        HCCL_DATA_TYPE_INT128 = 12,
    }
    /// Reduction. There is no average: scale.
    HcclReduceOp { HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD = 1, HCCL_REDUCE_MAX = 2, HCCL_REDUCE_MIN = 3, }
    /// Direction of an item of a batch.
    HcclSendRecvType { HCCL_SEND = 0, HCCL_RECV = 1, }
}

/// Bytes of a [`HcclRootInfo`].
pub const HCCL_ROOT_INFO_BYTES: usize = 4108;

/// What rank 0 sends to the others so that they find each other. Opaque.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HcclRootInfo {
    /// The bytes.
    pub internal: [u8; HCCL_ROOT_INFO_BYTES],
}

/// An item of `HcclBatchSendRecv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HcclSendRecvItem {
    /// Direction.
    pub sendRecvType: HcclSendRecvType,
    /// Device memory.
    pub buf: *mut c_void,
    /// Elements.
    pub count: u64,
    /// Element type.
    pub dataType: HcclDataType,
    /// The other rank.
    pub remoteRank: u32,
}

/// Results by number, with what to try.
pub fn explain(result: HcclResult) -> (&'static str, &'static str) {
    let network = "the ranks cannot reach each other: see HCCL_SOCKET_IFNAME, HCCL_IF_IP and the firewall";
    match result {
        0 => ("HCCL_SUCCESS", "no error"),
        1 => ("HCCL_E_PARA", "wrong argument: a mistake of this program; please report it"),
        2 => ("HCCL_E_PTR", "null argument: a mistake of this program; please report it"),
        3 => ("HCCL_E_MEMORY", "memory: each communicator takes twice HCCL_BUFFSIZE on the device"),
        4 => ("HCCL_E_INTERNAL", "an error inside HCCL: the first error in ~/ascend/log counts"),
        5 => ("HCCL_E_NOT_SUPPORT", "this element type or reduction is not done by this chip"),
        6 => ("HCCL_E_NOT_FOUND", "a file or device was not found: is the rank table right?"),
        7 => ("HCCL_E_UNAVAIL", "a resource is taken: stale processes on the device, or ports 60000-60031 in use"),
        8 => ("HCCL_E_SYSCALL", "a system call failed: the log in ~/ascend/log says which"),
        9 => ("HCCL_E_TIMEOUT", "not all ranks came in time: see HCCL_CONNECT_TIMEOUT, and whether a rank died"),
        10 => ("HCCL_E_OPEN_FILE_FAILURE", "a file cannot be opened: is the rank table readable?"),
        11 => ("HCCL_E_TCP_CONNECT", network),
        12 => ("HCCL_E_ROCE_CONNECT", network),
        13 => ("HCCL_E_TCP_TRANSFER", network),
        14 => ("HCCL_E_ROCE_TRANSFER", network),
        15 => ("HCCL_E_RUNTIME", "a runtime call failed: the runtime's own error has the cause"),
        16 => ("HCCL_E_DRV", "the driver failed: see npu-smi info"),
        17 => ("HCCL_E_PROFILING", "profiling failed"),
        18 => ("HCCL_E_CCE", "a kernel of HCCL failed"),
        19 => ("HCCL_E_NETWORK", network),
        20 => ("HCCL_E_AGAIN", "to be tried again"),
        21 => ("HCCL_E_REMOTE", "another rank failed: its log has the cause"),
        22 => ("HCCL_E_SUSPENDING", "the communicator is being suspended"),
        23 => ("HCCL_E_OPRETRY_FAIL", "a retried operation failed again: check the links"),
        24 => ("HCCL_E_OOM", "memory: each communicator takes twice HCCL_BUFFSIZE on the device"),
        _ => ("an unknown result", "not a result of HCCL that this program knows"),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    /// As g++ 12 gives them for the vendor's headers.
    #[test]
    fn layouts_are_those_of_the_vendors_headers() {
        assert_eq!((size_of::<HcclRootInfo>(), align_of::<HcclRootInfo>()), (4108, 1));
        assert_eq!((size_of::<HcclSendRecvItem>(), align_of::<HcclSendRecvItem>()), (32, 8));
        let offsets = [
            offset_of!(HcclSendRecvItem, buf),
            offset_of!(HcclSendRecvItem, count),
            offset_of!(HcclSendRecvItem, dataType),
            offset_of!(HcclSendRecvItem, remoteRank),
        ];
        assert_eq!(offsets, [8, 16, 24, 28]);
    }

    #[test]
    fn results_have_names() {
        assert!((0..=24).all(|r| explain(r).0.starts_with("HCCL_")));
        assert_eq!(explain(99).0, "an unknown result");
    }
}
