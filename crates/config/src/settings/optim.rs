//! Optimizer and schedule settings. The formulas live with the optimizer; here are the numbers.

use serde::Serialize;

/// Optimizer, schedules, loss scale.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptimConfig {
    /// Update rule.
    pub optimizer: Optimizer,
    /// Learning rate.
    pub lr: LrConfig,
    /// Weight decay.
    pub weight_decay: WeightDecay,
    /// Largest global gradient norm; 0 turns clipping off.
    pub clip_grad: f64,
    /// Loss scaling.
    pub loss_scale: LossScale,
    /// What a loaded checkpoint's schedule does.
    pub scheduler_on_load: SchedulerOnLoad,
}

/// Update rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// AdamW (decoupled decay), as upstream's `adam`.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
    },
    /// SGD with momentum.
    Sgd {
        /// Momentum.
        momentum: f64,
    },
}

/// Learning-rate schedule. Counts are in the unit of the run's length (iterations or samples).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LrConfig {
    /// Peak.
    pub lr: f64,
    /// Floor.
    pub min_lr: f64,
    /// Start of the warm-up.
    pub warmup_init: f64,
    /// Warm-up length.
    pub warmup: Warmup,
    /// Shape of the decay.
    pub decay_style: LrDecayStyle,
    /// Length of the decay, warm-up included; the whole run unless stated.
    pub decay: u64,
    /// The annealing phase of `WSD`.
    pub wsd: Option<WsdDecay>,
}

/// Warm-up length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmup {
    /// In the unit of the run's length; 0 for none.
    Count(u64),
    /// A share of the decay length.
    Fraction(f64),
}

/// Shape of the learning-rate decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LrDecayStyle {
    /// None.
    Constant,
    /// A line to the floor.
    Linear,
    /// Half a cosine.
    Cosine,
    /// lr * sqrt(warm-up / n).
    InverseSquareRoot,
    /// Warm-up, stable, decay.
    Wsd,
}

/// The annealing phase of `WSD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WsdDecay {
    /// Length, in the unit of the run's length.
    pub length: u64,
    /// Shape.
    pub style: WsdDecayStyle,
}

/// Shape of WSD's annealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WsdDecayStyle {
    /// 2 * 0.5^q - 1.
    Exponential,
    /// 1 - q.
    Linear,
    /// Half a cosine.
    Cosine,
    /// 1 - sqrt(q).
    MinusSqrt,
}

/// Weight decay: constant when both ends are equal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WeightDecay {
    /// First value.
    pub start: f64,
    /// Last value.
    pub end: f64,
    /// How it grows.
    pub incr_style: WdIncrStyle,
    /// Decay the query and key norms too (other 1-D parameters and biases are never decayed).
    pub qk_layernorm: bool,
}

/// How weight decay grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WdIncrStyle {
    /// Not at all.
    Constant,
    /// On a line.
    Linear,
    /// On half a cosine.
    Cosine,
}

/// Loss scaling; only fp16 needs it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossScale {
    /// The loss as it is.
    None,
    /// `--loss-scale`.
    Constant(f64),
    /// Grows after `window` good steps, shrinks after `hysteresis` overflows.
    Dynamic {
        /// First scale.
        initial: f64,
        /// Floor.
        min: f64,
        /// Good steps until it doubles.
        window: u64,
        /// Overflows until it halves.
        hysteresis: u64,
    },
}

/// What a loaded checkpoint's learning-rate and weight-decay schedule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerOnLoad {
    /// It must equal the command line's.
    MustMatch,
    /// The command line wins (`--override-opt_param-scheduler`).
    CommandLine,
    /// The checkpoint wins (`--use-checkpoint-opt_param-scheduler`).
    Checkpoint,
}
