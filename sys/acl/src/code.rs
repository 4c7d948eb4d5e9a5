//! Error codes in words, with what to try.
//!
//! 1xxxxx is the caller's mistake, 2xxxxx a resource that is used up, 5xxxxx the device or the runtime itself; six
//! digits that begin 16, 36 or 56 are aclnn's.

use std::fmt;

/// Success.
pub const OK: i32 = 0;
/// The library was initialised before.
pub const REPEAT_INITIALIZE: i32 = 100002;
/// No context is current on this thread.
pub const CONTEXT_NULL: i32 = 107002;
/// An argument is null (aclnn).
pub const NN_NULLPTR: i32 = 161001;
/// An argument is invalid (aclnn).
pub const NN_INVALID: i32 = 161002;
/// The device's memory is used up.
pub const MEMORY_ALLOCATION: i32 = 207001;
/// A cube core stopped on an error.
pub const AICORE_EXCEPTION: i32 = 507015;
/// A vector core stopped on an error.
pub const VECTOR_CORE_EXCEPTION: i32 = 507035;
/// A wait for a stream took longer than it was given.
pub const STREAM_SYNC_TIMEOUT: i32 = 507046;

/// A code with its name in the vendor's headers and, where we know more, what it means and what to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The code.
    pub code: i32,
    /// Its name, prefixes left out.
    pub name: &'static str,
    /// What it means and what to try.
    pub advice: &'static str,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.name, self.advice)
    }
}

/// What a code means; unknown codes get the meaning of their class.
pub fn explain(code: i32) -> Explained {
    let name = NAMES.iter().find(|(c, _)| *c == code).map_or("an unknown code", |(_, n)| n);
    let advice = ADVICE.iter().find(|(codes, _)| codes.contains(&code)).map_or_else(|| class(code), |(_, a)| a);
    Explained { code, name, advice }
}

/// The advice for a whole class.
fn class(code: i32) -> &'static str {
    match code {
        OK => "no error",
        140_000..=148_048 | 148_050..=149_999 | 240_000..=249_999 | 540_000..=549_999 => {
            "the graph engine or the operator compiler refused: this program uses neither; is another library at work?"
        }
        160_000..=169_999 => "an operator refused its arguments: a mistake of this program; please report it",
        360_000..=369_999 => "an operator's runtime call failed: the first error of the log counts",
        560_000..=569_999 => {
            "an operator could not be planned: check that the kernels package for this chip is installed"
        }
        100_000..=199_999 => "the runtime refused its arguments: a mistake of this program; please report it",
        200_000..=299_999 => {
            "a resource is used up or not allowed: look for other processes on the device (npu-smi info)"
        }
        300_000..=399_999 => "the runtime's storage is used up",
        500_000..=599_999 => {
            "the device or its driver failed: see npu-smi info -t health, and the logs in ~/ascend/log"
        }
        _ => "not a code of CANN",
    }
}

/// What to try, by code.
const ADVICE: &[(&[i32], &str)] = &[
    (&[100039], "the library is the stub for compiling (devlib): put the toolkit's lib64 folder first"),
    (&[107001, 200002], "no such device: see npu-smi info and ASCEND_RT_VISIBLE_DEVICES"),
    (&[107002], "no context is current on this thread: a mistake of this program; please report it"),
    (&[107003], "a stream of another context: a mistake of this program; please report it"),
    (
        &[107019, 107020, 207020, 507012, 507046, 507047],
        "waited in vain: another rank has failed or hangs; its log has the cause",
    ),
    (
        &[148049, 561107, 561112],
        "no operator packages: install the kernels package for this chip and source set_env.sh",
    ),
    (
        &[561002],
        "an operator could not be divided over the cores (tiling): shapes and dtypes stand with this message; is the \
         kernels package that of this chip?",
    ),
    (
        &[561003, 561108, 561113],
        "no kernel for this operator, dtype and chip: install the kernels package that belongs to the toolkit's version",
    ),
    (&[561103], "an executor is null, or was used before: a mistake of this program; please report it"),
    (&[100002], "aclInit was called before by another library of this process: harmless"),
    (&[107008], "an address is not aligned: a mistake of this program; please report it"),
    (&[207000, 200006, 200001], "this driver or chip has not this feature: is the driver as new as the toolkit?"),
    (
        &[507033],
        "the device could not be set up: a stale process may hold it (npu-smi info), or the driver is another's",
    ),
    (&[507049, 507013], "a copy engine failed: do two processes share the device?"),
    (
        &[207001, 207018, 200000],
        "the device's memory is used up: smaller --micro-batch-size, more sharding, smaller HCCL_BUFFSIZE",
    ),
    (
        &[207004, 507899],
        "the driver gives no device: is it loaded (npu-smi info), and may this user open /dev/davinci*?",
    ),
    (&[207008, 207007], "too many streams or events: look for other processes on the device"),
    (&[507014, 507017, 507034], "a kernel ran too long: a hang in the kernel, or a device shared with another process"),
    (
        &[507015, 507016, 507035, 507036, 507011, 507018],
        "a kernel stopped on an error: the operators launched last are listed with this message",
    ),
    (
        &[507042, 507043, 507044, 507045, 507053, 507055],
        "a kernel touched memory that is not there: the operators launched last are listed with this message",
    ),
    (&[507054], "memory of the device is damaged (ECC): take the device out of the job and have it checked"),
    (&[507056, 507057, 507914], "the link to another device failed: check cables and switches (hccn_tool -link)"),
    (&[507010, 507901], "the device does not answer: see npu-smi info; a reset or a reboot may be needed"),
];

/// Names in the vendor's headers.
pub const NAMES: &[(i32, &str)] = &[
    (100000, "INVALID_PARAM"),
    (100001, "UNINITIALIZE"),
    (100002, "REPEAT_INITIALIZE"),
    (100003, "INVALID_FILE"),
    (100024, "OP_NOT_FOUND"),
    (100025, "OP_LOAD_FAILED"),
    (100026, "UNSUPPORTED_DATA_TYPE"),
    (100029, "KERNEL_NOT_FOUND"),
    (100037, "REPEAT_FINALIZE"),
    (100039, "COMPILING_STUB_MODE"),
    (107000, "PARAM_INVALID"),
    (107001, "INVALID_DEVICEID"),
    (107002, "CONTEXT_NULL"),
    (107003, "STREAM_CONTEXT"),
    (107004, "MODEL_CONTEXT"),
    (107005, "STREAM_MODEL"),
    (107006, "EVENT_TIMESTAMP_INVALID"),
    (107007, "EVENT_TIMESTAMP_REVERSAL"),
    (107008, "ADDR_UNALIGNED"),
    (107009, "FILE_OPEN"),
    (107010, "FILE_WRITE"),
    (107011, "STREAM_SUBSCRIBE"),
    (107012, "THREAD_SUBSCRIBE"),
    (107013, "GROUP_NOT_SET"),
    (107014, "GROUP_NOT_CREATE"),
    (107015, "STREAM_NO_CB_REG"),
    (107016, "INVALID_MEMORY_TYPE"),
    (107017, "INVALID_HANDLE"),
    (107018, "INVALID_MALLOC_TYPE"),
    (107019, "WAIT_TIMEOUT"),
    (107020, "TASK_TIMEOUT"),
    (107021, "SYSPARAMOPT_NOT_SET"),
    (107022, "DEVICE_TASK_ABORT"),
    (107023, "STREAM_ABORT"),
    (107024, "CAPTURE_DEPENDENCY"),
    (107025, "STREAM_UNJOINED"),
    (107026, "MODEL_CAPTURED"),
    (107027, "STREAM_CAPTURED"),
    (107028, "EVENT_CAPTURED"),
    (107029, "STREAM_NOT_CAPTURED"),
    (107030, "CAPTURE_MODE_NOT_SUPPORT"),
    (107031, "STREAM_CAPTURE_IMPLICIT"),
    (107032, "STREAM_CAPTURE_CONFLICT"),
    (107033, "STREAM_TASK_GROUP_STATUS"),
    (107034, "STREAM_TASK_GROUP_INTR"),
    (107035, "TASK_ABORT_STOP"),
    (107036, "STREAM_CAPTURE_UNMATCHED"),
    (107037, "MODEL_RUNNING"),
    (107038, "STREAM_CAPTURE_WRONG_THREAD"),
    (107039, "INSUFFICIENT_INPUT_ARRAY"),
    (107040, "MODEL_UPDATE_FAILED"),
    (107042, "SYMBOL_NOT_FOUND"),
    (107043, "INVALID_SYMBOL"),
    (107044, "INVALID_DEVICE_FUNCTION"),
    (107045, "SUB_ACLGRAPH_IS_CAPTURING"),
    (148049, "INVALID_OPP_PATH"),
    (161001, "ACLNN_ERR_PARAM_NULLPTR"),
    (161002, "ACLNN_ERR_PARAM_INVALID"),
    (200000, "BAD_ALLOC"),
    (200001, "API_NOT_SUPPORT"),
    (200002, "INVALID_DEVICE"),
    (200006, "FEATURE_UNSUPPORTED"),
    (207000, "FEATURE_NOT_SUPPORT"),
    (207001, "MEMORY_ALLOCATION"),
    (207002, "MEMORY_FREE"),
    (207003, "AICORE_OVER_FLOW"),
    (207004, "NO_DEVICE"),
    (207005, "RESOURCE_ALLOC_FAIL"),
    (207006, "NO_PERMISSION"),
    (207007, "NO_EVENT_RESOURCE"),
    (207008, "NO_STREAM_RESOURCE"),
    (207009, "NO_NOTIFY_RESOURCE"),
    (207010, "NO_MODEL_RESOURCE"),
    (207011, "NO_CDQ_RESOURCE"),
    (207012, "OVER_LIMIT"),
    (207013, "QUEUE_EMPTY"),
    (207014, "QUEUE_FULL"),
    (207015, "REPEATED_INIT"),
    (207016, "AIVEC_OVER_FLOW"),
    (207017, "OVER_FLOW"),
    (207018, "DEVICE_OOM"),
    (207019, "FEATURE_NOT_SUPPORT_UPDATE_OP"),
    (207020, "TIMEOUT"),
    (207021, "LINK_TYPE_NOT_SUPPORTED"),
    (300000, "STORAGE_OVER_LIMIT"),
    (361001, "ACLNN_ERR_RUNTIME_ERROR"),
    (500000, "INTERNAL_ERROR"),
    (500001, "FAILURE"),
    (500002, "GE_FAILURE"),
    (500003, "RT_FAILURE"),
    (500004, "DRV_FAILURE"),
    (507000, "INTERNAL_ERROR"),
    (507001, "TS_ERROR"),
    (507002, "STREAM_TASK_FULL"),
    (507003, "STREAM_TASK_EMPTY"),
    (507004, "STREAM_NOT_COMPLETE"),
    (507005, "END_OF_SEQUENCE"),
    (507006, "EVENT_NOT_COMPLETE"),
    (507007, "CONTEXT_RELEASE_ERROR"),
    (507008, "SOC_VERSION"),
    (507009, "TASK_TYPE_NOT_SUPPORT"),
    (507010, "LOST_HEARTBEAT"),
    (507011, "MODEL_EXECUTE"),
    (507012, "REPORT_TIMEOUT"),
    (507013, "SYS_DMA"),
    (507014, "AICORE_TIMEOUT"),
    (507015, "AICORE_EXCEPTION"),
    (507016, "AICORE_TRAP_EXCEPTION"),
    (507017, "AICPU_TIMEOUT"),
    (507018, "AICPU_EXCEPTION"),
    (507019, "AICPU_DATADUMP_RSP_ERR"),
    (507020, "AICPU_MODEL_RSP_ERR"),
    (507021, "PROFILING_ERROR"),
    (507022, "IPC_ERROR"),
    (507023, "MODEL_ABORT_NORMAL"),
    (507024, "KERNEL_UNREGISTERING"),
    (507025, "RINGBUFFER_NOT_INIT"),
    (507026, "RINGBUFFER_NO_DATA"),
    (507027, "KERNEL_LOOKUP"),
    (507028, "KERNEL_DUPLICATE"),
    (507029, "DEBUG_REGISTER_FAIL"),
    (507030, "DEBUG_UNREGISTER_FAIL"),
    (507031, "LABEL_CONTEXT"),
    (507032, "PROGRAM_USE_OUT"),
    (507033, "DEV_SETUP_ERROR"),
    (507034, "VECTOR_CORE_TIMEOUT"),
    (507035, "VECTOR_CORE_EXCEPTION"),
    (507036, "VECTOR_CORE_TRAP_EXCEPTION"),
    (507037, "CDQ_BATCH_ABNORMAL"),
    (507038, "DIE_MODE_CHANGE_ERROR"),
    (507039, "DIE_SET_ERROR"),
    (507040, "INVALID_DIEID"),
    (507041, "DIE_MODE_NOT_SET"),
    (507042, "AICORE_TRAP_READ_OVERFLOW"),
    (507043, "AICORE_TRAP_WRITE_OVERFLOW"),
    (507044, "VECTOR_CORE_TRAP_READ_OVERFLOW"),
    (507045, "VECTOR_CORE_TRAP_WRITE_OVERFLOW"),
    (507046, "STREAM_SYNC_TIMEOUT"),
    (507047, "EVENT_SYNC_TIMEOUT"),
    (507048, "FFTS_PLUS_TIMEOUT"),
    (507049, "FFTS_PLUS_EXCEPTION"),
    (507050, "FFTS_PLUS_TRAP_EXCEPTION"),
    (507051, "SEND_MSG"),
    (507052, "COPY_DATA"),
    (507053, "DEVICE_MEM_ERROR"),
    (507054, "HBM_MULTI_BIT_ECC_ERROR"),
    (507055, "SUSPECT_DEVICE_MEM_ERROR"),
    (507056, "LINK_ERROR"),
    (507057, "SUSPECT_REMOTE_ERROR"),
    (507899, "DRV_INTERNAL_ERROR"),
    (507900, "AICPU_INTERNAL_ERROR"),
    (507901, "SOCKET_CLOSE"),
    (507902, "AICPU_INFO_LOAD_RSP_ERR"),
    (507903, "STREAM_CAPTURE_INVALIDATED"),
    (507904, "COMM_OP_RETRY_FAIL"),
    (507905, "SNAPSHOT_LOCK_TIMEOUT"),
    (507906, "SNAPSHOT_LOCK_FAILED"),
    (507907, "SNAPSHOT_UNLOCK_FAILED"),
    (507908, "SNAPSHOT_BACKUP_FAILED"),
    (507909, "SNAPSHOT_RESTORE_FAILED"),
    (507910, "HOST_MEMORY_ALREADY_REGISTERED"),
    (507911, "HOST_MEMORY_NOT_REGISTERED"),
    (507912, "SNAPSHOT_CALLBACK_FAILED"),
    (507913, "SNAPSHOT_REGISTER_CALLBACK_FAILED"),
    (507914, "L3_PORT_ERROR"),
    (507915, "CCU_TIMEOUT"),
    (507916, "CCU_EXCEPTION"),
    (561000, "ACLNN_ERR_INNER"),
    (561001, "ACLNN_ERR_INNER_INFERSHAPE_ERROR"),
    (561002, "ACLNN_ERR_INNER_TILING_ERROR"),
    (561003, "ACLNN_ERR_INNER_FIND_KERNEL_ERROR"),
    (561101, "ACLNN_ERR_INNER_CREATE_EXECUTOR"),
    (561102, "ACLNN_ERR_INNER_NOT_TRANS_EXECUTOR"),
    (561103, "ACLNN_ERR_INNER_NULLPTR"),
    (561104, "ACLNN_ERR_INNER_WRONG_ATTR_INFO_SIZE"),
    (561105, "ACLNN_ERR_INNER_KEY_CONFLICT"),
    (561106, "ACLNN_ERR_INNER_INVALID_IMPL_MODE"),
    (561107, "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND"),
    (561108, "ACLNN_ERR_INNER_LOAD_JSON_FAILED"),
    (561112, "ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND"),
    (561113, "ACLNN_ERR_INNER_OP_FILE_INVALID"),
    (561114, "ACLNN_ERR_INNER_ATTR_NUM_OUT_OF_BOUND"),
    (561115, "ACLNN_ERR_INNER_ATTR_LEN_NOT_ENOUGH"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_named_and_explained() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(NAMES.iter().all(|(code, name)| !name.is_empty() && !explain(*code).advice.is_empty()));
        for (codes, _) in ADVICE {
            assert!(codes.iter().all(|c| NAMES.iter().any(|(n, _)| n == c)), "{codes:?}");
        }
    }

    #[test]
    fn a_code_in_words() {
        let text = explain(507015).to_string();
        assert!(text.starts_with("507015 AICORE_EXCEPTION: a kernel stopped on an error"), "{text}");
        assert!(explain(561002).advice.contains("kernels package"));
        assert!(explain(507333).to_string().starts_with("507333 an unknown code: the device or its driver failed"));
        assert_eq!(explain(7).advice, "not a code of CANN");
    }
}
