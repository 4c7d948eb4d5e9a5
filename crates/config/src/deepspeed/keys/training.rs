//! Sections of precision, optimizer and schedule.

use super::Fate::{Acts, NoEffect, Planned, Refused};
use super::Shape::{Any, Bool, Int, Real, Text, Word};
use super::{Section, key};

const DTYPES: &[&str] = &["fp32", "fp16", "bf16", "float32", "float16", "bfloat16"];
const ONE_BIT: (&str, &str) = ("belongs to the 1-bit optimizers, which are not supported", "optimizer.type AdamW");
const LAMB: (&str, &str) = ("LAMB is not there yet", "optimizer.type AdamW");
const NOT_CONSTANT: (&str, &str) = (
    "DeepSpeed's warm-up is not there yet: its first two updates are at the lowest rate, Megatron's rise from the first on",
    "the file without scheduler, and --lr-warmup-iters, --lr-decay-style, --min-lr",
);

#[rustfmt::skip]
pub(super) static SECTIONS: &[Section] = &[
    Section { path: "fp16", strict: true, keys: &[
        key("enabled", Bool, "", Acts("--fp16")),
        key("loss_scale", Real, "", Acts("--loss-scale; 0: dynamic")),
        key("initial_scale_power", Int(0), "", Acts("--initial-loss-scale 2^n; 16 where the file turns fp16 on and neither states it")),
        key("loss_scale_window", Int(1), "", Acts("--loss-scale-window")),
        key("hysteresis", Int(1), "", Acts("--hysteresis")),
        key("min_loss_scale", Int(1), "", Acts("--min-loss-scale. There Megatron goes on, DeepSpeed stops")),
        key("auto_cast", Bool, "false", NoEffect("the model's inputs are token numbers")),
        key("consecutive_hysteresis", Bool, "false", Planned("filling the hysteresis up on every good step is not there yet", "consecutive_hysteresis: false")),
        key("fp16_master_weights_and_grads", Bool, "false", Refused("master weights and main gradients are f32 here", "fp16_master_weights_and_grads: false")),
    ] },
    Section { path: "bf16", strict: true, keys: &[
        key("enabled", Bool, "", Acts("--bf16")),
        key("immediate_grad_update", Bool, "false", NoEffect("gradients are added up as they come")),
        key("check_grad_overflow", Bool, "true", NoEffect("--no-check-for-nan-in-loss-and-grad turns the check off")),
        key("bf16_master_weights_and_grads bf16_optimizer_states", Bool, "false", Planned("master weights, main gradients and optimizer state below f32 are not there yet", "--zero-stage 1 or 3, which shards them")),
    ] },
    Section { path: "data_types", strict: false, keys: &[
        key("grad_accum_dtype", Word(DTYPES), "fp32", Planned("main gradients other than f32 are not there yet", "grad_accum_dtype: fp32")),
        key("param_dtype", Word(DTYPES), "null", Planned("a parameter type beside fp16 and bf16 is not there yet", "the section fp16 or bf16")),
        key("buffer_dtype", Word(DTYPES), "null", NoEffect("there are no buffers beside tables of positions, which are f32")),
    ] },
    Section { path: "optimizer", strict: false, keys: &[
        key("type", Text, "", Acts("--optimizer; Adam is AdamW, as in DeepSpeed. Lion, Lamb, Adagrad, Muon are not there yet; 1-bit and mu optimizers are refused")),
        key("legacy_fusion", Bool, "false", NoEffect("there is one update kernel")),
    ] },
    Section { path: "optimizer.params", strict: true, keys: &[
        key("lr", Real, "", Acts("--lr; 1e-3 where neither states it")),
        key("betas", Any, "", Acts("--adam-beta1, --adam-beta2; 0.9 and 0.999 where neither states them")),
        key("eps", Real, "", Acts("--adam-eps; 1e-8 where neither states it")),
        key("weight_decay", Real, "", Acts("--weight-decay; 0 where neither states it. As in Megatron, not of biases and norms")),
        key("momentum", Real, "", Acts("--sgd-momentum; 0 where neither states it")),
        key("adam_w_mode", Bool, "true", Acts("false with a weight decay: not there yet; without one it is the same")),
        key("bias_correction", Bool, "true", Planned("Adam without bias correction is not there yet", "bias_correction: true")),
        key("max_grad_norm", Real, "", Acts("--clip-grad, where gradient_clipping does not state it")),
        key("torch_adam fused foreach capturable differentiable", Bool, "false", NoEffect("there is one update kernel")),
        key("set_grad_none", Bool, "true", NoEffect("there is one buffer of gradients")),
        key("dampening", Real, "0", Planned("SGD with dampening is not there yet", "dampening: 0")),
        key("amsgrad nesterov maximize", Bool, "false", Refused("is not supported", "the value false")),
        key("muon_lr adam_lr ns_method", Any, "", Planned("Muon is not there yet", "optimizer.type AdamW")),
        key("max_coeff min_coeff", Any, "", Planned(LAMB.0, LAMB.1)),
        key("freeze_step cuda_aware comm_backend_name var_freeze_step var_update_scaler local_step_scaler local_step_clipper coeff_beta factor_max factor_min factor_threshold",
            Any, "", Refused(ONE_BIT.0, ONE_BIT.1)),
    ] },
    Section { path: "scheduler", strict: false, keys: &[
        key("type", Text, "", Acts("WarmupLR and WarmupDecayLR whose lowest rate is the highest: --lr-decay-style constant. Others are not there yet")),
    ] },
    Section { path: "scheduler.params", strict: true, keys: &[
        key("warmup_min_lr", Any, "", Acts("with warmup_max_lr: the constant rate, if they are equal")),
        key("warmup_max_lr", Any, "", Acts("--lr, if the rate is constant")),
        key("warmup_num_steps total_num_steps", Int(1), "", Planned(NOT_CONSTANT.0, NOT_CONSTANT.1)),
        key("warmup_type", Word(&["log", "linear"]), "log", Planned(NOT_CONSTANT.0, NOT_CONSTANT.1)),
        key("warmup_min_ratio cos_min_ratio", Real, "", Planned(NOT_CONSTANT.0, NOT_CONSTANT.1)),
        key("last_batch_iteration", Int(-1), "-1", NoEffect("the schedule is resumed from the checkpoint")),
        key("lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase \
             cycle_min_lr cycle_max_lr cycle_first_step_size cycle_second_step_size cycle_first_stair_count cycle_second_stair_count \
             decay_step_size decay_lr_rate cycle_min_mom cycle_max_mom decay_mom_rate cycle_momentum",
            Any, "", Planned("LRRangeTest and OneCycle are not there yet", "the file without scheduler, and --lr-decay-style")),
    ] },
];
