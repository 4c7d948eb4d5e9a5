//! Keys of the top level.

use super::Fate::{Acts, Ignored, NoEffect, Old, Refused};
use super::Shape::{Any, Bool, Feature, Int, Real, Text, Word};
use super::{Section, key};

const WIRE: &[&str] = &["fp16", "fp32", "bf16", "float16", "float32", "bfloat16"];

#[rustfmt::skip]
pub(super) static SECTIONS: &[Section] = &[Section { path: "", strict: false, keys: &[
    // batch
    key("train_batch_size", Int(1), "", Acts("--global-batch-size")),
    key("train_micro_batch_size_per_gpu", Int(1), "", Acts("--micro-batch-size")),
    key("gradient_accumulation_steps", Int(1), "", Acts("must be --global-batch-size / (--micro-batch-size x data-parallel ranks); states one of the two")),
    key("sequence_parallel_size", Int(1), "1", Acts("--ds-sequence-parallel-size")),
    key("managed_gradient_accumulation", Bool, "true", NoEffect("the loop here always knows where a batch ends")),
    key("dataloader_drop_last", Bool, "false", NoEffect("every batch is whole here")),
    // gradients
    key("gradient_clipping", Real, "", Acts("--clip-grad")),
    key("communication_data_type", Word(WIRE), "null", Acts("bf16: --grad-reduce-in-bf16; fp32: without it; fp16: gradients travel in f32, with a note")),
    key("seq_parallel_communication_data_type", Word(WIRE), "fp32", NoEffect("gradients of sequence-parallel ranks are summed in f32")),
    key("prescale_gradients", Bool, "false", Acts("refused with ZeRO, as DeepSpeed does; else the mean is the same but for rounding, in f32")),
    key("gradient_predivide_factor", Real, "1", Acts("refused with ZeRO unless 1, as DeepSpeed does; else the mean is the same but for rounding, in f32")),
    key("gradient_allreduce_op", Word(&["mean", "sum"]), "mean", Acts("mean; sum is refused with ZeRO-3, as DeepSpeed does, and else not there yet")),
    key("sparse_gradients", Bool, "false", Refused("gradients of embeddings are dense here", "sparse_gradients: false")),
    key("disable_allgather", Bool, "false", NoEffect("DeepSpeed itself reads it no more")),
    // ZeRO beside its section
    key("zero_allow_untested_optimizer", Bool, "false", NoEffect("every optimizer here is tested under ZeRO")),
    key("zero_force_ds_cpu_optimizer", Bool, "true", NoEffect("concerns offloading, which is not there")),
    // precision beside its sections
    key("amp", Feature, "", Refused("Apex AMP is not supported, and does not go with ZeRO in DeepSpeed", "the section fp16 or bf16")),
    key("torch_autocast", Feature, "", Refused("torch.autocast is not supported", "the section fp16 or bf16")),
    // logs
    key("steps_per_print", Int(1), "", Acts("--log-interval, unless that is given")),
    key("wall_clock_breakdown", Bool, "false", Acts("--timing-log-level 1, unless that is given")),
    key("memory_breakdown", Bool, "false", NoEffect("--log-memory-interval reports memory")),
    key("dump_state", Bool, "false", NoEffect("the arguments are always printed, and --print-config tells where they come from")),
    key("log_level", Text, "", NoEffect("there is one level of messages")),
    key("vocabulary_size", Int(1), "null", NoEffect("DeepSpeed only warns with it; --make-vocab-size-divisible-by pads")),
    key("graph_harvesting", Bool, "false", NoEffect("--cuda-graph-impl local makes graphs of whole steps")),
    // what changes training
    key("elasticity", Feature, "", Refused("elastic batch sizes are not supported: they would replace the three batch sizes", "elasticity.enabled: false, and --micro-batch-size, --global-batch-size")),
    key("hybrid_engine", Feature, "", Refused("the engine for reinforcement learning is not supported", "hybrid_engine.enabled: false")),
    key("quantize_training", Feature, "", Refused("quantised training (MoQ) is not supported", "quantize_training.enabled: false")),
    key("eigenvalue", Feature, "", Refused("eigenvalues of MoQ are not supported", "eigenvalue.enabled: false")),
    key("compression_training", Feature, "", Refused("pruning, quantisation and layer reduction are not supported", "the file without compression_training")),
    key("sparse_attention", Feature, "", Refused("block-sparse attention is not supported", "the file without sparse_attention")),
    key("progressive_layer_drop", Feature, "", Refused("dropping layers is not supported", "progressive_layer_drop.enabled: false")),
    key("data_efficiency", Feature, "", Refused("curriculum sampling and random-LTD are not supported", "data_efficiency.enabled: false")),
    key("curriculum_learning", Feature, "", Refused("a curriculum of sequence lengths is not supported", "curriculum_learning.enabled: false")),
    // what surrounds it
    key("autotuning", Feature, "", Ignored("there is no autotuner; --dry-run tells memory and collectives of a layout")),
    key("nebula datastates_ckpt", Feature, "", NoEffect("checkpoints are crash-safe and in one format here")),
    key("weight_quantization", Feature, "", NoEffect("concerns inference")),
    key("use_data_before_expert_parallelism", Bool, "false", NoEffect("the order of ranks is Megatron's")),
    key("bfloat16", Any, "", Old("bf16.enabled")),
] }];
