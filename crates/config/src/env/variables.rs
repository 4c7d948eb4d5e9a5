//! The table of environment variables that training scripts set: what values are legal, and what they do here.
//!
//! Sources: CANN's HCCL documentation, NCCL's environment page, torchrun, torch and torch_npu. A variable that is not in the table is
//! left alone; [`suspicious`] finds those that look like a misspelt one.

/// What a value must look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// A whole number in a range.
    Int {
        /// Smallest.
        least: i64,
        /// Largest.
        most: i64,
    },
    /// `0` or `1`.
    Switch,
    /// `true` or `false`, in any case, or `0` or `1`.
    Bool,
    /// One of these words, in any case.
    Word(&'static [&'static str]),
    /// Device numbers joined by commas; empty hides all.
    Devices,
    /// `level0:NA;level1:ring`: a level or an operator, a colon, an algorithm; joined by semicolons.
    HcclAlgo,
    /// `auto`, or port numbers and ranges joined by commas.
    Ports,
    /// A number above zero.
    Positive,
    /// Anything.
    Text,
}

/// What a variable does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This program reads it.
    Acts,
    /// The vendor's library reads it, when that device is used.
    Library(Vendor),
    /// It tunes software that is not there.
    NoEffect(&'static str),
}

/// Whose library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// CANN: AscendCL, aclnn, HCCL.
    Ascend,
    /// CUDA, cuBLAS, NCCL.
    Nvidia,
}

/// One variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variable {
    /// Name.
    pub name: &'static str,
    /// Legal values.
    pub shape: Shape,
    /// Effect.
    pub role: Role,
    /// One line: meaning and unit.
    pub help: &'static str,
}

const ASCEND: Role = Role::Library(Vendor::Ascend);
const NVIDIA: Role = Role::Library(Vendor::Nvidia);
const TORCH: Role = Role::NoEffect("tunes PyTorch, which is not there");
const TORCH_NPU: Role = Role::NoEffect("tunes torch_npu, which is not there");
const TE: Role = Role::NoEffect("tunes Transformer Engine, which is not there");
const GLOO: Role = Role::NoEffect("tunes Gloo, which is not there");

const fn var(name: &'static str, shape: Shape, role: Role, help: &'static str) -> Variable {
    Variable { name, shape, role, help }
}

const fn int(least: i64, most: i64) -> Shape {
    Shape::Int { least, most }
}

/// Ranks that one run can have.
pub(super) const MOST_RANKS: i64 = 1 << 24;

/// All variables, by family.
#[rustfmt::skip]
pub const VARIABLES: &[Variable] = &[
    // launcher (torchrun's names)
    var("WORLD_SIZE", int(1, MOST_RANKS), Role::Acts, "ranks in all"),
    var("RANK", int(0, MOST_RANKS), Role::Acts, "this rank"),
    var("LOCAL_RANK", int(0, MOST_RANKS), Role::Acts, "this rank on its node: the device it takes"),
    var("MASTER_ADDR", Shape::Text, Role::Acts, "host of the rendezvous"),
    var("MASTER_PORT", int(0, 65535), Role::Acts, "port of the rendezvous"),
    var("LOCAL_WORLD_SIZE", int(1, MOST_RANKS), Role::NoEffect("set by launchers; sizes follow WORLD_SIZE"), "ranks of this node"),
    var("GROUP_RANK", int(0, MOST_RANKS), Role::NoEffect("set by launchers; ranks follow RANK"), "this node"),
    // threads
    var("OMP_NUM_THREADS", int(1, 65536), Role::Acts, "threads of the CPU device"),
    var("MKL_NUM_THREADS", int(1, 65536), Role::NoEffect("OMP_NUM_THREADS sets the threads of the CPU device"), "threads of Intel MKL"),
    // this program
    var("FERROTRON_PEAK_TFLOPS", Shape::Positive, Role::Acts, "peak of one device in dense 16-bit TFLOP/s, for MFU; --peak-tflops wins"),
    var("FERROTRON_CUDA_KERNELS", Shape::Word(&["fatbin", "ptx", "nvrtc"]), Role::Acts, "the one form in which CUDA kernels are loaded; else the first that the driver takes"),
    // HCCL
    var("HCCL_BUFFSIZE", int(1, 1 << 20), ASCEND, "MB of a communicator's buffer, of which it takes two; HCCL's default is 200"),
    var("HCCL_CONNECT_TIMEOUT", int(120, 7200), ASCEND, "seconds to wait for all ranks to connect"),
    var("HCCL_EXEC_TIMEOUT", int(0, 2147483647), ASCEND, "seconds that a collective may take; 0 waits for ever"),
    var("HCCL_EVENT_TIMEOUT", int(0, 2147483647), TORCH_NPU, "seconds that an event may take"),
    var("HCCL_IF_IP", Shape::Text, ASCEND, "address of the host's network card"),
    var("HCCL_SOCKET_IFNAME", Shape::Text, ASCEND, "network cards to use (eth, ^eth, =eth0, ^=eth0; joined by commas)"),
    var("HCCL_SOCKET_FAMILY", Shape::Word(&["AF_INET", "AF_INET6"]), ASCEND, "IP version"),
    var("HCCL_IF_BASE_PORT", int(1024, 65520), ASCEND, "first of the 32 ports that HCCL takes"),
    var("HCCL_HOST_SOCKET_PORT_RANGE", Shape::Ports, ASCEND, "ports of the host, for several processes on one NPU"),
    var("HCCL_NPU_SOCKET_PORT_RANGE", Shape::Ports, ASCEND, "ports of the NPU, for several processes on one NPU"),
    var("HCCL_WHITELIST_DISABLE", Shape::Switch, ASCEND, "1 (the default) takes connections from any host"),
    var("HCCL_WHITELIST_FILE", Shape::Text, ASCEND, "hosts that may connect, with HCCL_WHITELIST_DISABLE=0"),
    var("HCCL_DETERMINISTIC", Shape::Word(&["true", "false", "strict"]), ASCEND, "sums in a fixed order"),
    var("HCCL_OP_EXPANSION_MODE", Shape::Word(&["AI_CPU", "AIV", "HOST", "HOST_TS", "AICPU_CacheDisable", "AICPU_TS", "CCU_MS", "CCU_SCHED"]), ASCEND, "where collectives are expanded"),
    var("HCCL_ALGO", Shape::HcclAlgo, ASCEND, "algorithm of each level"),
    var("HCCL_INTRA_ROCE_ENABLE", Shape::Switch, ASCEND, "RoCE inside a node"),
    var("HCCL_INTRA_PCIE_ENABLE", Shape::Switch, ASCEND, "PCIe inside a node"),
    var("HCCL_OP_RETRY_ENABLE", Shape::Text, ASCEND, "retries by level, for example L1:0,L2:0"),
    var("HCCL_RDMA_TC", int(0, 255), ASCEND, "RoCE traffic class, a multiple of 4"),
    var("HCCL_RDMA_SL", int(0, 7), ASCEND, "RoCE service level"),
    var("HCCL_RDMA_TIMEOUT", int(5, 24), ASCEND, "RoCE retransmission time: 4.096 us x 2^value"),
    var("HCCL_RDMA_RETRY_CNT", int(1, 7), ASCEND, "RoCE retransmissions"),
    var("HCCL_RDMA_QPS_PER_CONNECTION", int(1, 32), ASCEND, "queue pairs of a connection"),
    var("HCCL_MULTI_QP_THRESHOLD", int(1, 8192), ASCEND, "KB that one queue pair carries at least"),
    var("HCCL_DIAGNOSE_ENABLE", Shape::Switch, ASCEND, "keeps the last operations for a post-mortem"),
    var("HCCL_ENTRY_LOG_ENABLE", Shape::Switch, ASCEND, "logs every call"),
    var("HCCL_LOGIC_SUPERPOD_ID", Shape::Text, ASCEND, "superpod of this node"),
    var("HCCL_INTER_HCCS_DISABLE", Shape::Bool, ASCEND, "no HCCS between the nodes of a superpod"),
    var("HCCL_ASYNC_ERROR_HANDLING", Shape::Switch, TORCH_NPU, "watchdog of torch_npu"),
    var("HCCL_OP_BASE_FFTS_MODE_ENABLE", Shape::Bool, ASCEND, "FFTS+ for single operators"),
    var("P2P_HCCL_BUFFSIZE", int(0, 1 << 20), TORCH_NPU, "MB of point-to-point buffers"),
    var("RANK_TABLE_FILE", Shape::Text, ASCEND, "rank table instead of negotiation"),
    var("RANK_TABLE", Shape::Text, ASCEND, "the same, where RANK_TABLE_FILE is not set"),
    // Ascend
    var("ASCEND_RT_VISIBLE_DEVICES", Shape::Devices, ASCEND, "physical devices that are seen, in the order of logical ones"),
    var("ASCEND_VISIBLE_DEVICES", Shape::Text, ASCEND, "devices that the container runtime maps in"),
    var("ASCEND_DEVICE_ID", int(0, 1024), TORCH_NPU, "device of a process"),
    var("ASCEND_HOME_PATH", Shape::Text, ASCEND, "CANN's folder, whose lib64 is searched"),
    var("ASCEND_TOOLKIT_HOME", Shape::Text, ASCEND, "CANN's toolkit folder"),
    var("ASCEND_OPP_PATH", Shape::Text, ASCEND, "operator packages"),
    var("ASCEND_CUSTOM_OPP_PATH", Shape::Text, ASCEND, "custom operator packages"),
    var("ASCEND_AICPU_PATH", Shape::Text, ASCEND, "AI CPU operators"),
    var("ASCEND_GLOBAL_LOG_LEVEL", int(0, 4), ASCEND, "0 debug, 1 info, 2 warning, 3 error, 4 none"),
    var("ASCEND_GLOBAL_EVENT_ENABLE", Shape::Switch, ASCEND, "event logs"),
    var("ASCEND_SLOG_PRINT_TO_STDOUT", int(0, 2), ASCEND, "logs to standard output"),
    var("ASCEND_PROCESS_LOG_PATH", Shape::Text, ASCEND, "folder of logs; ~/ascend/log by default"),
    var("ASCEND_LAUNCH_BLOCKING", Shape::Switch, Role::Acts, "npu: the host waits after every operator, so that an error names the one that failed"),
    var("ASCEND_MAX_OP_CACHE_SIZE", int(-1, 1 << 30), ASCEND, "MB of compiled operators"),
    var("INF_NAN_MODE_ENABLE", Shape::Switch, ASCEND, "1 keeps Inf and NaN; 0 saturates and hides overflow"),
    var("ACL_DEVICE_SYNC_TIMEOUT", int(0, 2147483647), TORCH_NPU, "seconds that a device may take to synchronise"),
    var("TASK_QUEUE_ENABLE", int(0, 2), TORCH_NPU, "launch queue"),
    var("COMBINED_ENABLE", Shape::Switch, TORCH_NPU, "joins non-contiguous operators"),
    var("CPU_AFFINITY_CONF", Shape::Text, TORCH_NPU, "binds threads to cores"),
    var("PYTORCH_NPU_ALLOC_CONF", Shape::Text, TORCH_NPU, "allocator"),
    var("MULTI_STREAM_MEMORY_REUSE", int(0, 2), TORCH_NPU, "allocator"),
    var("NPU_ASD_ENABLE", int(0, 3), TORCH_NPU, "silent data corruption detection"),
    var("STREAMS_PER_DEVICE", int(1, 1024), TORCH_NPU, "stream pool"),
    // NCCL
    var("NCCL_DEBUG", Shape::Word(&["VERSION", "WARN", "INFO", "TRACE", "ABORT", "NONE"]), NVIDIA, "log level"),
    var("NCCL_DEBUG_SUBSYS", Shape::Text, NVIDIA, "what is logged"),
    var("NCCL_DEBUG_FILE", Shape::Text, NVIDIA, "log file"),
    var("NCCL_SOCKET_IFNAME", Shape::Text, NVIDIA, "network cards to use"),
    var("NCCL_SOCKET_FAMILY", Shape::Word(&["AF_INET", "AF_INET6"]), NVIDIA, "IP version"),
    var("NCCL_ALGO", Shape::Text, NVIDIA, "algorithms"),
    var("NCCL_PROTO", Shape::Text, NVIDIA, "protocols"),
    var("NCCL_BUFFSIZE", int(1, 1 << 40), NVIDIA, "bytes of a pair's buffer"),
    var("NCCL_NTHREADS", Shape::Word(&["64", "128", "256", "512"]), NVIDIA, "threads of a block"),
    var("NCCL_MIN_NCHANNELS", int(0, 128), NVIDIA, "channels"),
    var("NCCL_MAX_NCHANNELS", int(0, 128), NVIDIA, "channels"),
    var("NCCL_MIN_CTAS", int(0, 128), NVIDIA, "blocks"),
    var("NCCL_MAX_CTAS", int(0, 128), NVIDIA, "blocks"),
    var("NCCL_P2P_DISABLE", Shape::Switch, NVIDIA, "no direct transfers between devices"),
    var("NCCL_P2P_LEVEL", Shape::Text, NVIDIA, "how far direct transfers reach"),
    var("NCCL_P2P_NET_CHUNKSIZE", int(1, 1 << 40), NVIDIA, "bytes of a network message"),
    var("NCCL_SHM_DISABLE", Shape::Switch, NVIDIA, "no shared memory"),
    var("NCCL_NET", Shape::Text, NVIDIA, "network plug-in"),
    var("NCCL_NET_GDR_LEVEL", Shape::Text, NVIDIA, "how far GPUDirect reaches"),
    var("NCCL_IB_DISABLE", Shape::Switch, NVIDIA, "no InfiniBand"),
    var("NCCL_IB_HCA", Shape::Text, NVIDIA, "InfiniBand cards"),
    var("NCCL_IB_TIMEOUT", int(1, 31), NVIDIA, "InfiniBand time-out: 4.096 us x 2^value"),
    var("NCCL_IB_RETRY_CNT", int(0, 255), NVIDIA, "InfiniBand retries"),
    var("NCCL_IB_GID_INDEX", int(-1, 255), NVIDIA, "RoCE address"),
    var("NCCL_IB_SL", int(0, 15), NVIDIA, "InfiniBand service level"),
    var("NCCL_IB_TC", int(0, 255), NVIDIA, "InfiniBand traffic class"),
    var("NCCL_IB_QPS_PER_CONNECTION", int(1, 128), NVIDIA, "queue pairs of a connection"),
    var("NCCL_NVLS_ENABLE", int(0, 2), NVIDIA, "NVLink SHARP"),
    var("NCCL_CUMEM_ENABLE", int(-2, 1), NVIDIA, "cuMem allocations"),
    var("NCCL_COLLNET_ENABLE", Shape::Switch, NVIDIA, "SHARP plug-in"),
    var("NCCL_PXN_DISABLE", Shape::Switch, NVIDIA, "no transfers by way of another device"),
    var("NCCL_CROSS_NIC", int(0, 2), NVIDIA, "rings over several cards"),
    var("NCCL_TOPO_FILE", Shape::Text, NVIDIA, "topology"),
    var("NCCL_RAS_ENABLE", Shape::Switch, NVIDIA, "reliability service"),
    var("NCCL_LAUNCH_ORDER_IMPLICIT", Shape::Switch, NVIDIA, "orders launches of several communicators"),
    var("NCCL_LAUNCH_MODE", Shape::Word(&["PARALLEL", "GROUP"]), NVIDIA, "how kernels are launched"),
    var("NCCL_COMM_BLOCKING", Shape::Switch, NVIDIA, "blocking calls"),
    var("NCCL_TIMEOUT", int(0, 1 << 31), TORCH, "not a variable of NCCL"),
    var("NCCL_ASYNC_ERROR_HANDLING", int(0, 3), TORCH, "old name of TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    var("NCCL_BLOCKING_WAIT", Shape::Switch, TORCH, "old name of TORCH_NCCL_BLOCKING_WAIT"),
    // CUDA
    var("CUDA_VISIBLE_DEVICES", Shape::Text, NVIDIA, "devices that are seen, in the order of logical ones"),
    var("CUDA_DEVICE_MAX_CONNECTIONS", int(1, 32), NVIDIA, "hardware queues; Megatron asks for 1, here the order of streams does not depend on it"),
    var("CUDA_DEVICE_ORDER", Shape::Word(&["FASTEST_FIRST", "PCI_BUS_ID"]), NVIDIA, "numbering of devices"),
    var("CUDA_LAUNCH_BLOCKING", Shape::Switch, NVIDIA, "synchronises after every kernel"),
    var("CUDA_MODULE_LOADING", Shape::Word(&["LAZY", "EAGER"]), NVIDIA, "when kernels are loaded"),
    var("CUDA_CACHE_DISABLE", Shape::Switch, NVIDIA, "no cache of compiled kernels"),
    var("CUDA_CACHE_PATH", Shape::Text, NVIDIA, "cache of compiled kernels"),
    var("CUDA_HOME", Shape::Text, NVIDIA, "CUDA's folder"),
    var("CUDA_PATH", Shape::Text, NVIDIA, "CUDA's folder"),
    var("CUBLAS_WORKSPACE_CONFIG", Shape::Text, NVIDIA, "workspace of cuBLAS; :4096:8 or :16:8 for determinism"),
    var("NVIDIA_TF32_OVERRIDE", Shape::Switch, NVIDIA, "0 turns TF32 off"),
    // PyTorch, Gloo, Transformer Engine
    var("TORCH_NCCL_ASYNC_ERROR_HANDLING", int(0, 3), TORCH, "watchdog"),
    var("TORCH_NCCL_BLOCKING_WAIT", Shape::Switch, TORCH, "blocking waits"),
    var("TORCH_NCCL_AVOID_RECORD_STREAMS", Shape::Switch, TORCH, "allocator"),
    var("TORCH_NCCL_ENABLE_MONITORING", Shape::Switch, TORCH, "watchdog"),
    var("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", int(0, 1 << 31), TORCH, "watchdog"),
    var("TORCH_NCCL_TRACE_BUFFER_SIZE", int(0, 1 << 31), TORCH, "flight recorder"),
    var("TORCH_DISTRIBUTED_DEBUG", Shape::Word(&["OFF", "INFO", "DETAIL"]), TORCH, "checks of collectives"),
    var("TORCH_CPP_LOG_LEVEL", Shape::Word(&["INFO", "WARNING", "ERROR", "FATAL"]), TORCH, "logs"),
    var("TORCH_LOGS", Shape::Text, TORCH, "logs"),
    var("TORCH_CUDA_ARCH_LIST", Shape::Text, TORCH, "builds of extensions"),
    var("TORCHELASTIC_ERROR_FILE", Shape::Text, TORCH, "where a rank writes its error"),
    var("PYTORCH_CUDA_ALLOC_CONF", Shape::Text, TORCH, "allocator"),
    var("PYTORCH_ALLOC_CONF", Shape::Text, TORCH, "allocator"),
    var("GLOO_SOCKET_IFNAME", Shape::Text, GLOO, "network card of Gloo"),
    var("TP_SOCKET_IFNAME", Shape::Text, TORCH, "network card of TensorPipe"),
    var("NVTE_ALLOW_NONDETERMINISTIC_ALGO", Shape::Switch, TE, "determinism"),
    var("NVTE_FUSED_ATTN", Shape::Switch, TE, "attention kernels"),
    var("NVTE_FLASH_ATTN", Shape::Switch, TE, "attention kernels"),
    var("NVTE_UNFUSED_ATTN", Shape::Switch, TE, "attention kernels"),
    var("NVTE_APPLY_QK_LAYER_SCALING", Shape::Switch, TE, "scales scores by the layer number"),
    var("NVTE_FWD_LAYERNORM_SM_MARGIN", int(0, 1024), TE, "blocks that norms leave free"),
    var("NVTE_BWD_LAYERNORM_SM_MARGIN", int(0, 1024), TE, "blocks that norms leave free"),
    // services
    var("WANDB_MODE", Shape::Word(&["online", "offline", "disabled", "shared", "dryrun"]), Role::NoEffect("runs are written for `wandb sync`, never sent"), "Weights & Biases"),
    var("SLURM_JOB_ID", Shape::Text, Role::Acts, "named in progress.txt (--log-progress)"),
];

impl Shape {
    /// What is legal, if `value` is not.
    pub fn fault(self, value: &str) -> Option<String> {
        let value = value.trim();
        let word_list = |words: &[&str]| words.join(", ");
        match self {
            Shape::Int { least, most } => match value.parse::<i64>() {
                Ok(n) if (least..=most).contains(&n) => None,
                _ => Some(format!("a whole number from {least} to {most}")),
            },
            Shape::Switch => (!matches!(value, "0" | "1")).then(|| "0 or 1".to_string()),
            Shape::Bool => {
                let known = ["true", "false", "0", "1"].iter().any(|w| value.eq_ignore_ascii_case(w));
                (!known).then(|| "true or false".to_string())
            }
            Shape::Word(words) => {
                (!words.iter().any(|w| value.eq_ignore_ascii_case(w))).then(|| format!("one of {}", word_list(words)))
            }
            Shape::Devices => {
                let numbers = value.split(',').all(|n| n.trim().parse::<u16>().is_ok());
                (!numbers && !value.is_empty()).then(|| "device numbers joined by commas, for example 0,1".to_string())
            }
            Shape::HcclAlgo => {
                let entry = |e: &str| {
                    e.split_once([':', '=']).is_some_and(|(level, algo)| !level.is_empty() && !algo.is_empty())
                };
                let fine = value.split([';', '/']).all(|e| entry(e.trim()));
                (!fine).then(|| "level0:ALGORITHM;level1:ALGORITHM, for example level0:NA;level1:ring".to_string())
            }
            Shape::Ports => {
                let port = |p: &str| p.trim().parse::<u16>().is_ok_and(|p| p >= 1024);
                let range = |r: &str| r.split_once('-').map_or_else(|| port(r), |(a, b)| port(a) && port(b));
                let fine = value == "auto" || value.split(',').all(range);
                (!fine).then(|| "auto, or ports from 1024 like 60000-60031,61000".to_string())
            }
            Shape::Positive => {
                let fine = value.parse::<f64>().is_ok_and(|x| x > 0.0 && x.is_finite());
                (!fine).then(|| "a number above zero".to_string())
            }
            Shape::Text => None,
        }
    }
}

/// The variable of this name.
pub fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|v| v.name == name)
}

/// For names that begin like a known family but are a few letters off a known variable: (name, what was probably meant).
pub fn suspicious<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<(String, &'static str)> {
    const FAMILIES: [&str; 5] = ["HCCL_", "ASCEND_", "NCCL_", "CUDA_", "OMP_"];
    let mut out = Vec::new();
    for name in names {
        if !FAMILIES.iter().any(|f| name.starts_with(f)) || find(name).is_some() {
            continue;
        }
        let near = VARIABLES
            .iter()
            .map(|v| (crate::parser::edits(name, v.name), v.name))
            .filter(|(distance, _)| *distance <= 2)
            .min();
        if let Some((_, near)) = near {
            out.push((name.to_string(), near));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, v) in VARIABLES.iter().enumerate() {
            assert!(!VARIABLES[..i].iter().any(|w| w.name == v.name), "{}", v.name);
            assert!(!v.help.is_empty());
        }
    }

    #[test]
    fn values_are_checked() {
        for (name, good, bad) in [
            ("HCCL_BUFFSIZE", &["1", "512"][..], &["abc", "0", "-5", "1.5", ""][..]),
            ("HCCL_CONNECT_TIMEOUT", &["120", "7200"], &["60", "7201"]),
            ("HCCL_WHITELIST_DISABLE", &["0", "1"], &["true", "2"]),
            ("HCCL_DETERMINISTIC", &["true", "TRUE", "strict"], &["1", "yes"]),
            ("HCCL_INTER_HCCS_DISABLE", &["TRUE", "false"], &["2"]),
            ("HCCL_ALGO", &["level0:NA;level1:H-D_R", "allreduce=level0:NA;level1:ring"], &["ring", "level0:"]),
            ("HCCL_NPU_SOCKET_PORT_RANGE", &["auto", "60000-60031", "60000,61000-61009"], &["any", "80"]),
            ("ASCEND_RT_VISIBLE_DEVICES", &["0,1,2", "", "7"], &["a", "0;1"]),
            ("ASCEND_GLOBAL_LOG_LEVEL", &["3"], &["error", "5"]),
            ("NCCL_DEBUG", &["info", "WARN"], &["LOUD"]),
            ("NCCL_IB_TIMEOUT", &["19"], &["0", "32"]),
            ("CUDA_DEVICE_MAX_CONNECTIONS", &["1", "32"], &["0", "33", "one"]),
            ("OMP_NUM_THREADS", &["4"], &["0", "four"]),
        ] {
            let shape = find(name).unwrap().shape;
            for value in good {
                assert_eq!(shape.fault(value), None, "{name}={value}");
            }
            for value in bad {
                assert!(shape.fault(value).is_some(), "{name}={value}");
            }
        }
    }

    #[test]
    fn misspelt_names_are_found() {
        let names = ["HCCL_BUFSIZE", "HCCL_BUFFSIZE", "NCCL_DEBG", "NCCL_SOMETHING_NEW", "PATH", "CUDA_VISIBLE_DEVICE"];
        assert_eq!(
            suspicious(names),
            [
                ("HCCL_BUFSIZE".to_string(), "HCCL_BUFFSIZE"),
                ("NCCL_DEBG".to_string(), "NCCL_DEBUG"),
                ("CUDA_VISIBLE_DEVICE".to_string(), "CUDA_VISIBLE_DEVICES"),
            ]
        );
    }
}
