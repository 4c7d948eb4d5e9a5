//! Optimizer, clipping, loss scale.

use super::checker::Checker;
use crate::settings::{LossScale, LrConfig, OptimConfig, Optimizer, ParamDtype, SchedulerOnLoad, WeightDecay};

pub(super) fn check(c: &mut Checker, lr: LrConfig, weight_decay: WeightDecay, dtype: ParamDtype) -> OptimConfig {
    let beta = |c: &mut Checker, dest| c.real(dest, "0 <= beta < 1", |b| (0.0..1.0).contains(&b)).unwrap_or(0.9);
    let optimizer = match c.args.text("optimizer") {
        Some("sgd") => Optimizer::Sgd { momentum: beta(c, "sgd_momentum") },
        other => {
            if let Some(name) = other.filter(|n| *n != "adam").map(str::to_string) {
                c.planned(&["--optimizer"], format!("--optimizer {name} is not there yet")).legal =
                    Some("adam, sgd".into());
            }
            Optimizer::Adam {
                beta1: beta(c, "adam_beta1"),
                beta2: beta(c, "adam_beta2"),
                eps: c.real_from("adam_eps", 0.0).unwrap_or(1e-8),
            }
        }
    };
    let either = |c: &Checker, a: &str, b: &str| c.args.flag(a) || c.args.flag(b);
    let command_line = either(c, "override_opt_param_scheduler", "override_lr_scheduler");
    let checkpoint = either(c, "use_checkpoint_opt_param_scheduler", "use_checkpoint_lr_scheduler");
    if command_line && checkpoint {
        let flags = ["--override-opt_param-scheduler", "--use-checkpoint-opt_param-scheduler"];
        c.invalid(&flags, "the schedule comes from the command line or from the checkpoint, not from both").legal =
            Some(flags.join(" or "));
    }
    OptimConfig {
        optimizer,
        lr,
        weight_decay,
        clip_grad: c.real_from("clip_grad", 0.0).unwrap_or(0.0),
        loss_scale: loss_scale(c, dtype),
        scheduler_on_load: match (command_line, checkpoint) {
            (true, _) => SchedulerOnLoad::CommandLine,
            (false, true) => SchedulerOnLoad::Checkpoint,
            (false, false) => SchedulerOnLoad::MustMatch,
        },
    }
}

fn loss_scale(c: &mut Checker, dtype: ParamDtype) -> LossScale {
    let above_zero = |c: &mut Checker, dest| c.real(dest, "above 0", |x| x > 0.0);
    if let Some(scale) = above_zero(c, "loss_scale") {
        return LossScale::Constant(scale);
    }
    if dtype != ParamDtype::Fp16 {
        return LossScale::None;
    }
    let initial = above_zero(c, "initial_loss_scale").unwrap_or(1.0);
    let min = above_zero(c, "min_loss_scale").unwrap_or(1.0);
    if min > initial {
        c.invalid(
            &["--min-loss-scale", "--initial-loss-scale"],
            format!("--min-loss-scale {min} is above --initial-loss-scale {initial}"),
        );
    }
    let window = c.real("loss_scale_window", "a whole number from 1", |w| w >= 1.0 && w.fract() == 0.0 && w < 1e15);
    LossScale::Dynamic {
        initial,
        min,
        window: window.unwrap_or(1000.0) as u64,
        hysteresis: c.count_from("hysteresis", 1).unwrap_or(2),
    }
}
