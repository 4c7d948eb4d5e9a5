//! Learning rate as a function of the samples seen so far. (Megatron: `OptimizerParamScheduler.get_lr`.)
//!
//! With n samples, W warm-up, D decay length, and r = (n − W)/(D − W):
//! warm-up (W > 0, n ≤ W) is linear from `init_lr` to `max_lr`; afterwards
//! lr = min + c·(max − min), c = 1 − r (linear), ½(cos πr + 1) (cosine), or flat and then falling over the last
//! `wsd_decay_steps` (WSD); n > D gives `min_lr`. `constant` ignores D; inverse square root is max·√W/√n, at least min.
//!
//! Every expression keeps Megatron's order of f64 operations, because a resumed run must see the same bits. Cosine and
//! powers come from the platform's C library, as they do in Python.

use std::f64::consts::PI;
use std::fmt;
use std::hint::black_box;

use crate::scheduler::{SchedulerError, setting};

/// Shape of the decay after the warm-up (`--lr-decay-style`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LrDecayStyle {
    /// `max_lr` for ever, also past the end of the decay.
    Constant,
    /// Straight line to `min_lr`.
    Linear,
    /// Half a cosine to `min_lr`.
    Cosine,
    /// max_lr·√warmup/√n, never below `min_lr`.
    InverseSquareRoot,
    /// Warm-up, stable, decay: flat until the last `wsd_decay_steps`.
    Wsd,
}

impl LrDecayStyle {
    const ALL: [LrDecayStyle; 5] = [
        LrDecayStyle::Constant,
        LrDecayStyle::Linear,
        LrDecayStyle::Cosine,
        LrDecayStyle::InverseSquareRoot,
        LrDecayStyle::Wsd,
    ];

    /// Megatron's spelling, on the command line and in checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            LrDecayStyle::Constant => "constant",
            LrDecayStyle::Linear => "linear",
            LrDecayStyle::Cosine => "cosine",
            LrDecayStyle::InverseSquareRoot => "inverse-square-root",
            LrDecayStyle::Wsd => "WSD",
        }
    }

    /// Inverse of [`LrDecayStyle::name`].
    pub fn parse(name: &str) -> Option<LrDecayStyle> {
        Self::ALL.into_iter().find(|style| style.name() == name)
    }
}

impl fmt::Display for LrDecayStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Shape of the last phase of [`LrDecayStyle::Wsd`] (`--lr-wsd-decay-style`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WsdDecayStyle {
    /// 1 − q over the annealing fraction q.
    Linear,
    /// ½(cos πq + 1).
    Cosine,
    /// 2·0.5^q − 1.
    Exponential,
    /// 1 − √q.
    MinusSqrt,
}

impl WsdDecayStyle {
    const ALL: [WsdDecayStyle; 4] =
        [WsdDecayStyle::Linear, WsdDecayStyle::Cosine, WsdDecayStyle::Exponential, WsdDecayStyle::MinusSqrt];

    /// Megatron's spelling on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            WsdDecayStyle::Linear => "linear",
            WsdDecayStyle::Cosine => "cosine",
            WsdDecayStyle::Exponential => "exponential",
            WsdDecayStyle::MinusSqrt => "minus_sqrt",
        }
    }

    /// Inverse of [`WsdDecayStyle::name`].
    pub fn parse(name: &str) -> Option<WsdDecayStyle> {
        Self::ALL.into_iter().find(|style| style.name() == name)
    }
}

impl fmt::Display for WsdDecayStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings of the learning rate. All lengths are in samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrSchedule {
    /// Rate at sample 0 of the warm-up (`--lr-warmup-init`).
    pub init_lr: f64,
    /// Rate at the end of the warm-up (`--lr`).
    pub max_lr: f64,
    /// Rate at the end of the decay (`--min-lr`).
    pub min_lr: f64,
    /// Length of the warm-up. Fractional when it comes from `--lr-warmup-fraction`.
    pub warmup_steps: f64,
    /// Sample at which the decay ends.
    pub decay_steps: u64,
    /// Shape of the decay.
    pub decay_style: LrDecayStyle,
    /// Length of the last phase of [`LrDecayStyle::Wsd`], which requires it.
    pub wsd_decay_steps: Option<u64>,
    /// Shape of that phase.
    pub wsd_decay_style: WsdDecayStyle,
}

impl LrSchedule {
    /// Learning rate after `num_steps` samples, between the bounds of this schedule.
    pub fn at(&self, num_steps: u64) -> f64 {
        self.at_between(num_steps, self.max_lr, self.min_lr)
    }

    /// Learning rate after `num_steps` samples for a parameter group that has its own `max_lr` and `min_lr`.
    pub fn at_between(&self, num_steps: u64, max_lr: f64, min_lr: f64) -> f64 {
        let n = num_steps as f64;
        let warmup = self.warmup_steps;
        let decay = self.decay_steps as f64;
        if warmup > 0.0 && n <= warmup {
            return self.init_lr + (max_lr - self.init_lr) * n / warmup;
        }
        if self.decay_style == LrDecayStyle::Constant {
            return max_lr;
        }
        if n > decay {
            return min_lr;
        }
        let decay_ratio = (n - warmup) / (decay - warmup);
        let coeff = match self.decay_style {
            LrDecayStyle::InverseSquareRoot => {
                return min_lr.max(max_lr * warmup.max(1.0).sqrt() / n.max(1.0).sqrt());
            }
            LrDecayStyle::Constant => 1.0,
            LrDecayStyle::Linear => 1.0 - decay_ratio,
            LrDecayStyle::Cosine => 0.5 * ((PI * decay_ratio).cos() + 1.0),
            LrDecayStyle::Wsd => self.wsd_coefficient(n),
        };
        min_lr + coeff * (max_lr - min_lr)
    }

    /// Checks what Megatron asserts: 0 ≤ min ≤ max, init ≤ max, warm-up shorter than decay, WSD length given; and that
    /// rates are finite.
    pub fn validate(&self) -> Result<(), SchedulerError> {
        let rates = [("--lr", self.max_lr), ("--min-lr", self.min_lr), ("--lr-warmup-init", self.init_lr)];
        for (flag, rate) in rates {
            if !rate.is_finite() {
                return setting(flag, format!("{rate} is not a finite number"));
            }
        }
        if self.min_lr < 0.0 {
            return setting("--min-lr", format!("{} is negative", self.min_lr));
        }
        if self.max_lr < self.min_lr {
            return setting("--min-lr", format!("{} is above --lr {}", self.min_lr, self.max_lr));
        }
        if self.init_lr > self.max_lr {
            return setting("--lr-warmup-init", format!("{} is above --lr {}", self.init_lr, self.max_lr));
        }
        if self.decay_steps == 0 {
            return setting("--lr-decay-iters", "the decay must be longer than 0 samples".to_string());
        }
        if !(self.warmup_steps >= 0.0 && self.warmup_steps < self.decay_steps as f64) {
            return setting(
                "--lr-warmup-iters, --lr-warmup-samples, --lr-warmup-fraction",
                format!(
                    "a warm-up of {} samples must be at least 0 and shorter than the decay of {} samples",
                    self.warmup_steps, self.decay_steps
                ),
            );
        }
        if self.decay_style != LrDecayStyle::Wsd {
            return Ok(());
        }
        match self.wsd_decay_steps {
            None => setting(
                "--lr-decay-style",
                "WSD needs --lr-wsd-decay-iters or --lr-wsd-decay-samples, the length of its last phase".to_string(),
            ),
            Some(_) => Ok(()),
        }
    }

    fn wsd_coefficient(&self, n: f64) -> f64 {
        // A missing length means "no last phase"; `ParamScheduler` rejects it before it gets here.
        let length = self.wsd_decay_steps.unwrap_or(0) as f64;
        let anneal_start = self.decay_steps as f64 - length;
        if n <= anneal_start {
            return 1.0;
        }
        let ratio = (n - anneal_start) / length;
        match self.wsd_decay_style {
            WsdDecayStyle::Linear => 1.0 - ratio,
            WsdDecayStyle::Cosine => 0.5 * ((PI * ratio).cos() + 1.0),
            // The base is hidden from the compiler: it turns 0.5^q into exp2(-q), which may round differently.
            WsdDecayStyle::Exponential => 2.0 * black_box(0.5_f64).powf(ratio) - 1.0,
            WsdDecayStyle::MinusSqrt => 1.0 - ratio.sqrt(),
        }
    }
}
