//! Sections of layouts, recomputation, monitors, profilers and checkpoints.

use super::Fate::{Acts, Ignored, NoEffect, Refused};
use super::Shape::{Any, Bool, Int, Text, Word};
use super::{Section, key};

const RECOMPUTE: &str = "this section recomputes nothing by itself, in DeepSpeed neither: --checkpoint-activations or \
    --recompute-granularity does";
const COMPILER: &str = "tunes a compiler that is not there";
const PROFILER: &str = "--profile records named scopes, --log-throughput tells FLOP/s, --dry-run counts collectives";
const CHECKPOINTS: &str = "checkpoints are crash-safe and can be read under any layout here";
const SERVICE: &str =
    "reports to a service that is not there; --tensorboard-dir, --wandb-project and --mlflow-dir write files";
const SEED: &str = "not a key of DeepSpeed's, which refuses the file for it";

#[rustfmt::skip]
pub(super) static SECTIONS: &[Section] = &[
    Section { path: "tensor_parallel", strict: true, keys: &[
        key("autotp_size", Int(0), "0", Acts("--tensor-model-parallel-size")),
        key("tp_overlap_comm", Bool, "false", NoEffect("tunes communication of other back ends")),
        key("preset_model dtype injection_policy_tuple", Any, "null", NoEffect("tells DeepSpeed of Hugging Face's modules")),
        key("keep_module_on_host kernel_inject", Bool, "false", NoEffect("tells DeepSpeed of Hugging Face's modules")),
        key("partition_config", Any, "null", Refused("sharding by patterns of names is not supported", "--tensor-model-parallel-size")),
        key("enabled", Bool, "", Ignored(SEED)),
    ] },
    Section { path: "tensor_parallel.tp", strict: true, keys: &[
        key("tp_size", Int(1), "1", Acts("--tensor-model-parallel-size")),
        key("tp_grain_size", Int(1), "1", NoEffect("widths divide evenly here")),
        key("mpu tp_group", Any, "null", NoEffect("tells DeepSpeed of Hugging Face's modules")),
    ] },
    Section { path: "pipeline", strict: false, keys: &[
        key("stages", Any, "", Acts("--pipeline-model-parallel-size")),
        key("partition", Text, "best", NoEffect("--pp-partition-method divides the layers")),
        key("activation_checkpoint_interval", Int(0), "0", NoEffect(RECOMPUTE)),
        key("seed_layers", Bool, "false", NoEffect("initial weights are keyed by --seed and name")),
        key("pipe_partitioned grad_partitioned use_reentrant", Bool, "true", NoEffect("tunes communication of other back ends")),
    ] },
    Section { path: "expert_parallel", strict: false, keys: &[
        key("enabled", Bool, "false", Acts("whether autoep_size counts")),
        key("autoep_size", Int(1), "1", Acts("--expert-model-parallel-size")),
        key("expert_tensor_parallel_size top_k score_func score_apply route_norm route_scale routed_scaling_factor num_expert_groups \
             num_limited_groups load_balance_coeff use_grouped_mm disable_triton_grouped_mm combine_impl validate_folding_routing \
             preset_model moe_layer_pattern expert_pattern router_pattern expert_w1 expert_w2 expert_w3 num_experts_attr top_k_attr \
             has_shared_experts shared_experts_pattern shared_experts_gate_pattern", Any, "", NoEffect("the flags --moe-... say this")),
    ] },
    Section { path: "activation_checkpointing", strict: false, keys: &[
        key("partition_activations cpu_checkpointing contiguous_memory_optimization synchronize_checkpoint_boundary profile", Bool, "false", NoEffect(RECOMPUTE)),
        key("number_checkpoints", Int(1), "null", NoEffect(RECOMPUTE)),
    ] },
    Section { path: "tensorboard", strict: true, keys: &[
        key("enabled", Bool, "false", Acts("--tensorboard-dir OUTPUT_PATH/JOB_NAME, unless that is given")),
        key("output_path job_name", Text, "", Acts("the folder, see enabled")),
    ] },
    Section { path: "wandb", strict: true, keys: &[
        key("enabled", Bool, "false", Acts("--wandb-project PROJECT, --wandb-entity TEAM, unless they are given: a folder for `wandb sync`")),
        key("project team", Text, "", Acts("see enabled")),
        key("group", Text, "null", NoEffect("the run folder has no group")),
    ] },
    Section { path: "csv_monitor", strict: true, keys: &[
        key("enabled", Bool, "false", NoEffect("no CSV is written; --tensorboard-dir, --wandb-project and --mlflow-dir write files")),
        key("output_path job_name", Text, "", NoEffect("no CSV is written; --tensorboard-dir, --wandb-project and --mlflow-dir write files")),
    ] },
    Section { path: "comet", strict: true, keys: &[
        key("enabled", Bool, "false", NoEffect(SERVICE)),
        key("samples_log_interval project workspace api_key experiment_name experiment_key online mode", Any, "", NoEffect(SERVICE)),
    ] },
    Section { path: "comms_logger", strict: true, keys: &[
        key("enabled verbose debug", Bool, "false", NoEffect(PROFILER)),
        key("prof_all", Bool, "true", NoEffect(PROFILER)),
        key("prof_ops", Any, "", NoEffect(PROFILER)),
        key("profiler", Any, "", Ignored(SEED)),
    ] },
    Section { path: "flops_profiler", strict: false, keys: &[
        key("enabled", Bool, "false", NoEffect(PROFILER)),
        key("recompute_fwd_factor profile_step module_depth top_modules detailed output_file", Any, "", NoEffect(PROFILER)),
    ] },
    Section { path: "timers", strict: false, keys: &[] },
    Section { path: "timers.throughput", strict: true, keys: &[
        key("enabled synchronized", Bool, "true", NoEffect("every log line tells the time of an iteration")),
    ] },
    Section { path: "checkpoint", strict: false, keys: &[
        key("tag_validation", Word(&["Ignore", "Warn", "Fail", "IGNORE", "WARN", "FAIL", "ignore", "warn", "fail"]), "", NoEffect(CHECKPOINTS)),
        key("load_universal use_node_local_storage checkpoint_serialization", Bool, "", NoEffect(CHECKPOINTS)),
        key("writer parallel_write", Any, "", NoEffect(CHECKPOINTS)),
    ] },
    Section { path: "compile", strict: true, keys: &[
        key("deepcompile free_activation offload_activation offload_opt_states symmetric_memory debug_log offload_parameters \
             sync_before_reduce sync_after_reduce sync_before_allgather sync_after_allgather keep_all_input_tensors", Bool, "false", NoEffect(COMPILER)),
        key("double_buffer keep_int_input_tensors offload_activation_pin_memory", Bool, "true", NoEffect(COMPILER)),
        key("free_activation_threshold", Int(0), "10485760", NoEffect(COMPILER)),
        key("passes", Any, "null", NoEffect(COMPILER)),
    ] },
    Section { path: "pipeline_parallel", strict: false, keys: &[
        key("enabled stages", Any, "", Ignored("no section of DeepSpeed's, which passes over it (its own is pipeline); --pipeline-model-parallel-size makes stages")),
    ] },
];
