//! Optimizer, schedules, batch sizes, loss scale, guards.

use ferrotron_config::settings::{self, Config};
use ferrotron_device::ops::AdamConfig;
use ferrotron_optim::scheduler::{TrainLength, Warmup};
use ferrotron_optim::{
    BatchSchedule, DynamicLossScaleSettings, Guards, LossScaler, LrDecayStyle, OptimizerKind, ScheduleArgs,
    WdIncrStyle, WsdDecayStyle,
};

use crate::Result;

/// The update rule.
pub fn optimizer_kind(c: &Config) -> OptimizerKind {
    match c.optim.optimizer {
        settings::Optimizer::Adam { beta1, beta2, eps } => OptimizerKind::Adam(AdamConfig {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            eps: eps as f32,
            decoupled: true,
        }),
        settings::Optimizer::Sgd { momentum } => OptimizerKind::Sgd { momentum: momentum as f32 },
    }
}

/// Learning rate and weight decay.
pub fn schedule_args(c: &Config) -> ScheduleArgs {
    let (lr, wd) = (&c.optim.lr, &c.optim.weight_decay);
    let grows = wd.incr_style != settings::WdIncrStyle::Constant;
    ScheduleArgs {
        length: match c.train.length {
            settings::RunLength::Iterations(n) => TrainLength::Iterations(n),
            settings::RunLength::Samples(n) => TrainLength::Samples(n),
        },
        global_batch_size: c.train.global_batch_size as u64,
        lr: lr.lr,
        min_lr: lr.min_lr,
        lr_warmup_init: lr.warmup_init,
        lr_decay_style: match lr.decay_style {
            settings::LrDecayStyle::Constant => LrDecayStyle::Constant,
            settings::LrDecayStyle::Linear => LrDecayStyle::Linear,
            settings::LrDecayStyle::Cosine => LrDecayStyle::Cosine,
            settings::LrDecayStyle::InverseSquareRoot => LrDecayStyle::InverseSquareRoot,
            settings::LrDecayStyle::Wsd => LrDecayStyle::Wsd,
        },
        lr_decay: Some(lr.decay),
        lr_warmup: match lr.warmup {
            settings::Warmup::Count(n) => Warmup::Count(n),
            settings::Warmup::Fraction(f) => Warmup::Fraction(f),
        },
        lr_wsd_decay: lr.wsd.as_ref().map(|w| w.length),
        lr_wsd_decay_style: match lr.wsd.as_ref().map(|w| w.style) {
            None | Some(settings::WsdDecayStyle::Exponential) => WsdDecayStyle::Exponential,
            Some(settings::WsdDecayStyle::Linear) => WsdDecayStyle::Linear,
            Some(settings::WsdDecayStyle::Cosine) => WsdDecayStyle::Cosine,
            Some(settings::WsdDecayStyle::MinusSqrt) => WsdDecayStyle::MinusSqrt,
        },
        weight_decay: wd.start,
        start_weight_decay: grows.then_some(wd.start),
        end_weight_decay: grows.then_some(wd.end),
        weight_decay_incr_style: match wd.incr_style {
            settings::WdIncrStyle::Constant => WdIncrStyle::Constant,
            settings::WdIncrStyle::Linear => WdIncrStyle::Linear,
            settings::WdIncrStyle::Cosine => WdIncrStyle::Cosine,
        },
    }
}

/// How the global batch size changes.
pub fn batch_schedule(c: &Config) -> Result<BatchSchedule> {
    let size = c.train.global_batch_size as u64;
    Ok(match &c.train.batch_plan {
        settings::BatchPlan::Constant => BatchSchedule::Constant { global_batch_size: size },
        &settings::BatchPlan::Rampup { start, increment, samples } => {
            BatchSchedule::rampup(start, increment, samples, size)?
        }
        settings::BatchPlan::Steps(steps) => {
            BatchSchedule::Steps(steps.iter().map(|s| (s.from_samples, s.global_batch_size)).collect())
        }
    })
}

/// Loss scaling.
pub fn loss_scaler(c: &Config) -> Result<LossScaler> {
    Ok(match c.optim.loss_scale {
        settings::LossScale::None => LossScaler::constant(1.0)?,
        settings::LossScale::Constant(scale) => LossScaler::constant(scale as f32)?,
        settings::LossScale::Dynamic { initial, min, window, hysteresis } => {
            LossScaler::dynamic(DynamicLossScaleSettings {
                initial_scale: initial as f32,
                min_scale: min as f32,
                growth_interval: window,
                hysteresis,
                ..DynamicLossScaleSettings::MEGATRON
            })?
        }
    })
}

/// Thresholds that skip updates.
pub fn guards(c: &Config) -> Result<Guards> {
    Ok(Guards::new(c.train.loss_spike_threshold, c.train.grad_norm_skip_threshold)?)
}
