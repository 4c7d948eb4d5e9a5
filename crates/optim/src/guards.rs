//! Whether a step's update may be applied, decided once at the end of the step and before the optimizer.
//!
//! Under pipeline schedules backward passes have already run when a later micro-batch's loss appears, so the decision
//! cannot be taken earlier. All ranks must call [`Guards::decide`] with the same, already reduced statistics (maximum
//! over ranks): the function is pure, so they then decide alike without another message.

use std::fmt;

use thiserror::Error;

/// A threshold that cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{flag} {value}: the threshold must be a positive number (inf switches the guard off)")]
pub struct GuardError {
    /// The flag.
    pub flag: &'static str,
    /// Its value.
    pub value: f64,
}

/// What is known at the end of a step, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Loss of the step, unscaled.
    pub loss: f64,
    /// Global gradient norm after unscaling and before clipping; absent when nothing computed it.
    pub grad_norm: Option<f64>,
    /// The loss scaler's check found an infinite or NaN gradient.
    pub found_inf: bool,
}

/// Why an update is skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SkipReason {
    /// The scaled gradients overflowed; the loss scale will shrink.
    GradientOverflow,
    /// The loss is NaN or infinite, under `--loss-spike-threshold`.
    NonFiniteLoss {
        /// The loss.
        loss: f64,
    },
    /// The loss is above `--loss-spike-threshold`.
    LossSpike {
        /// The loss.
        loss: f64,
        /// The threshold.
        threshold: f64,
    },
    /// The gradient norm is NaN or infinite, under `--grad-norm-skip-threshold`.
    NonFiniteGradNorm {
        /// The norm.
        grad_norm: f64,
    },
    /// The gradient norm is above `--grad-norm-skip-threshold`.
    GradNorm {
        /// The norm.
        grad_norm: f64,
        /// The threshold.
        threshold: f64,
    },
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SkipReason::GradientOverflow => write!(f, "gradients overflowed under the loss scale"),
            SkipReason::NonFiniteLoss { loss } => write!(f, "loss is {loss}"),
            SkipReason::LossSpike { loss, threshold } => {
                write!(f, "loss {loss} is above --loss-spike-threshold {threshold}")
            }
            SkipReason::NonFiniteGradNorm { grad_norm } => write!(f, "gradient norm is {grad_norm}"),
            SkipReason::GradNorm { grad_norm, threshold } => {
                write!(f, "gradient norm {grad_norm} is above --grad-norm-skip-threshold {threshold}")
            }
        }
    }
}

/// What to do with the gradients of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Run the optimizer.
    Apply,
    /// Leave parameters, optimizer state and schedule as they are; count a skipped iteration.
    Skip(SkipReason),
}

/// The thresholds. Without any, only a gradient overflow skips a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guards {
    loss_spike_threshold: Option<f64>,
    grad_norm_skip_threshold: Option<f64>,
}

impl Guards {
    /// Guards from `--loss-spike-threshold` and `--grad-norm-skip-threshold`; absent or infinite means off.
    pub fn new(loss_spike_threshold: Option<f64>, grad_norm_skip_threshold: Option<f64>) -> Result<Guards, GuardError> {
        let threshold = |flag, value: Option<f64>| match value {
            None => Ok(None),
            Some(f64::INFINITY) => Ok(None),
            Some(value) if value > 0.0 => Ok(Some(value)),
            Some(value) => Err(GuardError { flag, value }),
        };
        Ok(Guards {
            loss_spike_threshold: threshold("--loss-spike-threshold", loss_spike_threshold)?,
            grad_norm_skip_threshold: threshold("--grad-norm-skip-threshold", grad_norm_skip_threshold)?,
        })
    }

    /// The first reason to skip in the order overflow, loss, gradient norm; values equal to a threshold pass.
    pub fn decide(&self, stats: &StepStats) -> Decision {
        if stats.found_inf {
            return Decision::Skip(SkipReason::GradientOverflow);
        }
        if let Some(threshold) = self.loss_spike_threshold {
            let loss = stats.loss;
            if !loss.is_finite() {
                return Decision::Skip(SkipReason::NonFiniteLoss { loss });
            }
            if loss > threshold {
                return Decision::Skip(SkipReason::LossSpike { loss, threshold });
            }
        }
        if let (Some(threshold), Some(grad_norm)) = (self.grad_norm_skip_threshold, stats.grad_norm) {
            if !grad_norm.is_finite() {
                return Decision::Skip(SkipReason::NonFiniteGradNorm { grad_norm });
            }
            if grad_norm > threshold {
                return Decision::Skip(SkipReason::GradNorm { grad_norm, threshold });
            }
        }
        Decision::Apply
    }
}
