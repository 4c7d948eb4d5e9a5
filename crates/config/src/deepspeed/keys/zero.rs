//! Sections of ZeRO.

use super::Fate::{Acts, NoEffect, Old, Planned, Refused};
use super::Shape::{Any, Bool, Int, Real, Text, Word};
use super::{Section, key};

const UNIT: &str = "ZeRO-3 fetches a whole block here, one ahead, and keeps none";
const FLAT: &str = "gradients and parameters lie in flat buffers that are reduced and gathered in buckets";
const HOOKS: &str = "concerns PyTorch's modules, which are not there";
const OFFLOAD: (&str, &str) = (
    "offloading to the host or to NVMe is not there yet",
    "--zero-stage 3 on more ranks, and --recompute-granularity full",
);
const PLUS: (&str, &str) = (
    "ZeRO++ (hpZ, qwZ, qgZ) and MiCS are not there yet",
    "--num-distributed-optimizer-instances shards within groups of ranks; --grad-reduce-in-bf16 halves traffic",
);
const TUNES: &str = "tunes offloading, which is not there";

#[rustfmt::skip]
pub(super) static SECTIONS: &[Section] = &[
    Section { path: "zero_optimization", strict: true, keys: &[
        key("stage", Int(0), "", Acts("--zero-stage; 2 trains as 1, with a note. `zero_optimization: true`, the old way, is stage 1")),
        key("overlap_comm", Bool, "null", Acts("--overlap-grad-reduce")),
        key("reduce_bucket_size", Int(0), "", Acts("--ddp-bucket-size (elements)")),
        key("allgather_bucket_size", Int(0), "500000000", NoEffect(FLAT)),
        key("contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions", Bool, "true", NoEffect(FLAT)),
        key("round_robin_gradients", Bool, "false", NoEffect(TUNES)),
        key("sub_group_size", Int(0), "1000000000", NoEffect("the update runs over a rank's whole share")),
        key("stage3_prefetch_bucket_size prefetch_bucket_size", Int(0), "50000000", NoEffect(UNIT)),
        key("stage3_param_persistence_threshold param_persistence_threshold", Int(0), "100000", NoEffect(UNIT)),
        key("stage3_model_persistence_threshold model_persistence_threshold", Int(0), "", NoEffect(UNIT)),
        key("stage3_max_live_parameters max_live_parameters", Int(0), "1000000000", NoEffect(UNIT)),
        key("stage3_max_reuse_distance max_reuse_distance", Int(0), "1000000000", NoEffect(UNIT)),
        key("stage3_module_granularity_threshold module_granularity_threshold", Int(0), "0", NoEffect(UNIT)),
        key("stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params stage3_allgather_sequential allgather_sequential", Bool, "false", NoEffect(UNIT)),
        key("stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save", Bool, "false", NoEffect("a checkpoint can be read under any layout here")),
        key("stage3_gather_fp16_weights_on_model_save", Bool, "", Old("zero_optimization.stage3_gather_16bit_weights_on_model_save")),
        key("load_from_fp32_weights", Bool, "true", NoEffect("checkpoints hold f32 master weights, which are loaded")),
        key("elastic_checkpoint legacy_stage1", Bool, "false", NoEffect("DeepSpeed's older implementations; there is one here")),
        key("ignore_unused_parameters", Bool, "true", NoEffect("no parameter is unused")),
        key("memory_efficient_linear override_module_apply", Bool, "true", NoEffect(HOOKS)),
        key("pipeline_loading_checkpoint log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory", Bool, "false", NoEffect(HOOKS)),
        key("zero_hpz_partition_size", Int(0), "1", Planned(PLUS.0, PLUS.1)),
        key("zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients", Bool, "false", Planned(PLUS.0, PLUS.1)),
        key("zeropp_loco_param", Any, "null", Planned(PLUS.0, PLUS.1)),
        key("mics_shard_size", Int(-1), "-1", Planned(PLUS.0, PLUS.1)),
        key("mics_hierarchical_params_gather", Bool, "false", Planned(PLUS.0, PLUS.1)),
        key("zenflow", Any, "null", Refused("ZenFlow's late updates change how training converges, and are not supported", "the section without zenflow")),
        key("leaf_module", Any, "null", NoEffect(UNIT)),
        key("cpu_offload", Bool, "false", Old("zero_optimization.offload_optimizer.device")),
        key("cpu_offload_param", Bool, "false", Old("zero_optimization.offload_param.device")),
        key("cpu_offload_use_pin_memory", Bool, "", Old("zero_optimization.offload_optimizer.pin_memory")),
    ] },
    Section { path: "zero_optimization.offload_param", strict: true, keys: &[
        key("device", Word(&["none", "cpu", "nvme"]), "none", Planned(OFFLOAD.0, OFFLOAD.1)),
        key("nvme_path", Text, "null", NoEffect(TUNES)),
        key("buffer_count", Int(0), "5", NoEffect(TUNES)),
        key("buffer_size", Int(0), "100000000", NoEffect(TUNES)),
        key("max_in_cpu", Int(0), "1000000000", NoEffect(TUNES)),
        key("pin_memory", Bool, "", NoEffect(TUNES)),
    ] },
    Section { path: "zero_optimization.offload_optimizer", strict: true, keys: &[
        key("device", Word(&["none", "cpu", "nvme"]), "none", Planned(OFFLOAD.0, OFFLOAD.1)),
        key("nvme_path", Text, "null", NoEffect(TUNES)),
        key("buffer_count", Int(0), "4", NoEffect(TUNES)),
        key("pin_memory pipeline_read pipeline_write fast_init", Bool, "", NoEffect(TUNES)),
        key("ratio", Real, "1", Planned(OFFLOAD.0, OFFLOAD.1)),
        key("super_offload", Bool, "false", Refused("SuperOffload is not supported", "super_offload: false")),
        key("cpuadam_cores_perc", Real, "0.8", NoEffect(TUNES)),
    ] },
    Section { path: "aio", strict: false, keys: &[
        key("block_size queue_depth intra_op_parallelism", Int(1), "", NoEffect(TUNES)),
        key("single_submit overlap_events", Bool, "", NoEffect(TUNES)),
        key("thread_count", Int(1), "", Old("aio.intra_op_parallelism")),
        key("use_gds", Bool, "false", Refused("GPUDirect Storage is not supported", "use_gds: false")),
    ] },
];
