//! Weight decay as a function of the samples seen so far. (Megatron: `OptimizerParamScheduler.get_wd`.)
//!
//! With t = n/N, the decay rises from `start_wd` to `end_wd`: wd = start + c·(end − start), c = t (linear) or
//! ½(cos π(1 − t) + 1) (cosine), and stays at `end_wd` once n > N.

use std::f64::consts::PI;
use std::fmt;

use crate::scheduler::{SchedulerError, setting};

/// How weight decay grows (`--weight-decay-incr-style`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WdIncrStyle {
    /// One value; start and end are equal.
    Constant,
    /// Straight line.
    Linear,
    /// Half a cosine.
    Cosine,
}

impl WdIncrStyle {
    const ALL: [WdIncrStyle; 3] = [WdIncrStyle::Constant, WdIncrStyle::Linear, WdIncrStyle::Cosine];

    /// Megatron's spelling, on the command line and in checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            WdIncrStyle::Constant => "constant",
            WdIncrStyle::Linear => "linear",
            WdIncrStyle::Cosine => "cosine",
        }
    }

    /// Inverse of [`WdIncrStyle::name`].
    pub fn parse(name: &str) -> Option<WdIncrStyle> {
        Self::ALL.into_iter().find(|style| style.name() == name)
    }
}

impl fmt::Display for WdIncrStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings of the weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WdSchedule {
    /// Value at sample 0 (`--start-weight-decay`).
    pub start_wd: f64,
    /// Value from `incr_steps` on (`--end-weight-decay`).
    pub end_wd: f64,
    /// Length of the growth in samples.
    pub incr_steps: u64,
    /// Shape of the growth.
    pub incr_style: WdIncrStyle,
}

impl WdSchedule {
    /// Checks 0 ≤ start ≤ end, equal ends for `constant`, and a length for a growing decay.
    pub fn validate(&self) -> Result<(), SchedulerError> {
        let flag = "--weight-decay, --start-weight-decay, --end-weight-decay";
        if !(self.start_wd >= 0.0 && self.end_wd >= self.start_wd && self.end_wd.is_finite()) {
            return setting(flag, format!("0 <= start {} <= end {} does not hold", self.start_wd, self.end_wd));
        }
        if self.incr_style == WdIncrStyle::Constant && self.start_wd != self.end_wd {
            return setting(flag, format!("constant needs start {} equal to end {}", self.start_wd, self.end_wd));
        }
        if self.incr_style != WdIncrStyle::Constant && self.incr_steps == 0 {
            return setting("--weight-decay-incr-style", format!("{} over 0 samples", self.incr_style));
        }
        Ok(())
    }

    /// Weight decay after `num_steps` samples.
    pub fn at(&self, num_steps: u64) -> f64 {
        self.at_between(num_steps, self.start_wd, self.end_wd)
    }

    /// Weight decay after `num_steps` samples for a parameter group that has its own start and end.
    pub fn at_between(&self, num_steps: u64, start_wd: f64, end_wd: f64) -> f64 {
        if num_steps > self.incr_steps {
            return end_wd;
        }
        let ratio = num_steps as f64 / self.incr_steps as f64;
        let coeff = match self.incr_style {
            WdIncrStyle::Constant => return end_wd,
            WdIncrStyle::Linear => ratio,
            WdIncrStyle::Cosine => 0.5 * ((PI * (1.0 - ratio)).cos() + 1.0),
        };
        start_wd + coeff * (end_wd - start_wd)
    }
}
