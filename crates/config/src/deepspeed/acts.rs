//! Keys beside optimizer, schedule and batch that set flags, and DeepSpeed's rules across them
//! (deepspeed/runtime/config.py, `_do_error_check`; runtime/zero/config.py).

use super::merge::{Merge, stated_by_user};
use super::node::Node;
use super::stated::{FLAG, find};
use crate::validate::NoticeKind;
use crate::validate::checker::Checker;
use crate::value::Value;

/// Precision and loss scale.
pub(super) fn precision(m: &mut Merge, c: &mut Checker) {
    const FP16: &str = "fp16.enabled";
    const BF16: &str = "bf16.enabled";
    if m.truth(FP16) == Some(true) && m.truth(BF16) == Some(true) {
        let what = format!("{} and {} exclude each other", m.shown(FP16), m.shown(BF16));
        c.invalid(&[FLAG], what).legal = Some("one of the two".into());
        return;
    }
    for (key, dest, other) in [(FP16, "fp16", "bf16"), (BF16, "bf16", "fp16")] {
        let Some(on) = m.truth(key) else { continue };
        if on && stated_by_user(c, other) && c.args.flag(other) && !c.args.flag(dest) {
            m.differ(key, format!("--{other}"));
        } else {
            m.put(c, key, dest, Value::Bool(on));
        }
    }
    let fp16 = m.truth(FP16) == Some(true) || (m.is_auto(FP16) && c.args.flag("fp16"));
    if fp16 {
        loss_scale(m, c);
    }
    match m.text("communication_data_type").as_deref() {
        Some("bf16" | "bfloat16") => m.put(c, "communication_data_type", "grad_reduce_in_bf16", Value::Bool(true)),
        Some("fp32" | "float32") => m.put(c, "communication_data_type", "grad_reduce_in_bf16", Value::Bool(false)),
        Some(_) => c.notice(
            NoticeKind::Adjusted,
            format!("{}: gradients travel in f32, which rounds nothing", m.shown("communication_data_type")),
        ),
        None => {}
    }
}

fn loss_scale(m: &mut Merge, c: &mut Checker) {
    const SCALE: &str = "fp16.loss_scale";
    const POWER: &str = "fp16.initial_scale_power";
    match m.number(SCALE) {
        Some(0.0) if stated_by_user(c, "loss_scale") => {
            let theirs = format!("--loss-scale {}", c.args.value("loss_scale"));
            m.differ(SCALE, theirs);
        }
        Some(0.0) | None => {}
        Some(scale) => m.put(c, SCALE, "loss_scale", Value::Float(scale)),
    }
    if m.number(SCALE).is_some_and(|scale| scale > 0.0) {
        return; // constant: what follows is of a dynamic scale
    }
    match m.int(POWER) {
        Some(power @ 0..=126) => m.put(c, POWER, "initial_loss_scale", Value::Float(2f64.powi(power as i32))),
        Some(_) => m.fault(c, POWER, "no power of two that f32 holds", "0 to 126"),
        None => m.default(c, POWER, "initial_loss_scale", Value::Float(65536.0)),
    }
    for (key, dest) in [("fp16.loss_scale_window", "loss_scale_window"), ("fp16.min_loss_scale", "min_loss_scale")] {
        if let Some(x) = m.number(key) {
            m.put(c, key, dest, Value::Float(x));
        }
    }
    if let Some(n) = m.int("fp16.hysteresis") {
        m.put(c, "fp16.hysteresis", "hysteresis", Value::Int(n));
    }
}

/// ZeRO, gradients, and the rules between them.
pub(super) fn zero(m: &mut Merge, c: &mut Checker, root: &Node) {
    const STAGE: &str = "zero_optimization.stage";
    if let Some(stage) = m.int(STAGE) {
        if stage == 0 && stated_by_user(c, "use_distributed_optimizer") && c.args.flag("use_distributed_optimizer") {
            m.differ(STAGE, "--use-distributed-optimizer, which is stage 1".into());
        }
        m.put(c, STAGE, "zero_stage", Value::Int(stage));
    }
    if let Some(on) = m.truth("zero_optimization.overlap_comm") {
        m.put(c, "zero_optimization.overlap_comm", "overlap_grad_reduce", Value::Bool(on));
    }
    if let Some(n) = m.int("zero_optimization.reduce_bucket_size").filter(|n| *n > 0) {
        // Larger than any buffer of a rank either way.
        let n = n.min(i64::from(i32::MAX));
        m.put(c, "zero_optimization.reduce_bucket_size", "ddp_bucket_size", Value::Int(n));
    }
    if let Some(norm) = m.number("gradient_clipping") {
        m.put(c, "gradient_clipping", "clip_grad", Value::Float(norm));
    }
    let stage = c.args.int("zero_stage").filter(|_| c.args.is_set("zero_stage")).unwrap_or(0);
    let predivided = m.number("gradient_predivide_factor").is_some_and(|f| f != 1.0);
    for (key, asked) in
        [("prescale_gradients", m.truth("prescale_gradients") == Some(true)), ("gradient_predivide_factor", predivided)]
    {
        if asked && stage > 0 {
            let what = format!("{} does not go with ZeRO stage {stage}", m.shown(key));
            let v = c.invalid(&[FLAG, "--zero-stage"], what);
            v.legal = Some(format!("the file without {key}, or stage 0"));
            v.why = Some("DeepSpeed refuses it where gradients are reduced and scattered".into());
        } else if asked {
            let why = "the mean over the ranks is the same but for rounding, and is taken in f32";
            c.notice(NoticeKind::NoEffect, format!("no effect: {} ({why})", m.shown(key)));
        }
    }
    const OP: &str = "gradient_allreduce_op";
    if m.text(OP).as_deref() == Some("sum") {
        let what = m.shown(OP);
        if stage == 3 {
            c.invalid(&[FLAG, "--zero-stage"], format!("{what} does not go with ZeRO stage 3"))
        } else {
            c.planned(&[FLAG], format!("{what}: sums of gradients without the mean are not there yet"))
        }
        .legal = Some(format!("{OP}: mean"));
    }
    offload(m, c, root, stage);
}

/// What DeepSpeed demands of offloading, which is planned here.
fn offload(m: &Merge, c: &mut Checker, root: &Node, stage: i64) {
    for section in ["offload_param", "offload_optimizer"] {
        let path = |name: &str| format!("zero_optimization.{section}.{name}");
        let device = find(root, &path("device")).and_then(Node::text).unwrap_or("none");
        if device == "nvme" && find(root, &path("nvme_path")).and_then(Node::text).is_none() {
            let what = format!("{} is nvme, but {} is not stated ({})", path("device"), path("nvme_path"), m.file());
            c.invalid(&[FLAG], what).legal = Some("a folder on the NVMe drive".into());
        }
        let part = find(root, &path("ratio")).and_then(Node::number).is_some_and(|ratio| ratio < 1.0);
        let needs = match section {
            "offload_param" if device != "none" => Some(path("device")),
            "offload_optimizer" if part => Some(path("ratio")),
            _ => None,
        };
        if let Some(key) = needs.filter(|_| stage != 3) {
            let what = format!("{key} needs ZeRO stage 3, not {stage} ({})", m.file());
            c.invalid(&[FLAG, "--zero-stage"], what).legal = Some("zero_optimization.stage: 3".into());
        }
    }
}

/// Sizes of the mesh of ranks.
pub(super) fn layout(m: &mut Merge, c: &mut Checker) {
    const TP: &str = "tensor_model_parallel_size";
    for key in ["tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size"] {
        if let Some(n) = m.int(key).filter(|n| *n > 0) {
            m.put(c, key, TP, Value::Int(n));
        }
    }
    if let Some(n) = m.int("sequence_parallel_size") {
        m.put(c, "sequence_parallel_size", "ds_sequence_parallel_size", Value::Int(n));
    }
    const STAGES: &str = "pipeline.stages";
    match m.int(STAGES) {
        Some(n) => m.put(c, STAGES, "pipeline_model_parallel_size", Value::Int(n)),
        None => m.fault(c, STAGES, "no number of stages", "a whole number, or \"auto\""),
    }
    if m.truth("expert_parallel.enabled") == Some(true)
        && let Some(n) = m.int("expert_parallel.autoep_size")
    {
        m.put(c, "expert_parallel.autoep_size", "expert_model_parallel_size", Value::Int(n));
    }
}

/// Logs: the command line's own wishes hold, two writers do not contradict each other.
pub(super) fn logs(m: &mut Merge, c: &mut Checker) {
    if let Some(n) = m.int("steps_per_print") {
        m.fill(c, "steps_per_print", "log_interval", Value::Int(n));
    }
    if m.truth("wall_clock_breakdown") == Some(true) {
        m.fill(c, "wall_clock_breakdown", "timing_log_level", Value::Int(1));
    }
    if m.truth("tensorboard.enabled") == Some(true) {
        let folder = m.text("tensorboard.output_path").unwrap_or_default();
        let job = m.text("tensorboard.job_name").unwrap_or_else(|| "DeepSpeedJobName".into());
        let path = std::path::Path::new(&folder).join(job).display().to_string();
        m.fill(c, "tensorboard.enabled", "tensorboard_dir", Value::Str(path));
    }
    if m.truth("wandb.enabled") == Some(true) {
        let project = m.text("wandb.project").unwrap_or_else(|| "deepspeed".into());
        m.fill(c, "wandb.enabled", "wandb_project", Value::Str(project));
        if let Some(team) = m.text("wandb.team") {
            m.fill(c, "wandb.team", "wandb_entity", Value::Str(team));
        }
    }
}
