//! Learning rate and weight decay of all parameter groups, stepped together. (Megatron: `OptimizerParamScheduler`.)
//!
//! Steps are *samples*: an iteration advances by its global batch size, and a skipped update does not advance at all.
//! The scheduler moves after the optimizer, so iteration 1 trains at `lr(0)` and the logged rate is the next
//! iteration's.

use std::fmt;

use thiserror::Error;

use crate::lr::{LrDecayStyle, LrSchedule, WsdDecayStyle};
use crate::weight_decay::{WdIncrStyle, WdSchedule};

/// Why a schedule cannot be built or restored.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SchedulerError {
    /// A setting is outside its range, or contradicts another one.
    #[error("{flag}: {why}")]
    Setting {
        /// The flag, or flags, as typed.
        flag: &'static str,
        /// The values that disagree and the legal range.
        why: String,
    },
    /// The checkpoint was written under other settings.
    #[error(
        "the schedule of the checkpoint differs from the command line's: {}; repeat the checkpoint's settings, or add \
         --use-checkpoint-opt_param-scheduler to take the checkpoint's, or --override-opt_param-scheduler to take the \
         command line's",
        join(.0)
    )]
    CheckpointMismatch(
        /// Every setting that differs.
        Vec<Mismatch>,
    ),
}

/// One setting that differs between command line and checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The setting, in Megatron's words.
    pub name: &'static str,
    /// Value of this run.
    pub ours: String,
    /// Value in the checkpoint.
    pub checkpoint: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} here and {} in the checkpoint", self.name, self.ours, self.checkpoint)
    }
}

fn join(items: &[Mismatch]) -> String {
    items.iter().map(Mismatch::to_string).collect::<Vec<_>>().join(", ")
}

pub(crate) fn setting<T>(flag: &'static str, why: String) -> Result<T, SchedulerError> {
    Err(SchedulerError::Setting { flag, why })
}

/// Whose settings win when a checkpoint is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPolicy {
    /// They must be equal (Megatron's default).
    Match,
    /// The command line's (`--override-opt_param-scheduler`).
    Override,
    /// The checkpoint's (`--use-checkpoint-opt_param-scheduler`).
    UseCheckpoint,
}

impl LoadPolicy {
    /// The policy behind the two flags, which exclude each other.
    pub fn from_flags(override_scheduler: bool, use_checkpoint: bool) -> Result<LoadPolicy, SchedulerError> {
        match (override_scheduler, use_checkpoint) {
            (true, true) => setting(
                "--override-opt_param-scheduler",
                "cannot be combined with --use-checkpoint-opt_param-scheduler; give one of them".to_string(),
            ),
            (true, false) => Ok(LoadPolicy::Override),
            (false, true) => Ok(LoadPolicy::UseCheckpoint),
            (false, false) => Ok(LoadPolicy::Match),
        }
    }
}

/// What a parameter group changes. [`GroupOverride::default`] changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupOverride {
    /// Own upper bound of the learning rate.
    pub max_lr: Option<f64>,
    /// Own lower bound of the learning rate.
    pub min_lr: Option<f64>,
    /// Factor on the learning rate.
    pub lr_mult: f64,
    /// Own first weight decay.
    pub start_wd: Option<f64>,
    /// Own last weight decay.
    pub end_wd: Option<f64>,
    /// Factor on the weight decay: 0 for biases and other 1-D parameters.
    pub wd_mult: f64,
}

impl Default for GroupOverride {
    fn default() -> GroupOverride {
        GroupOverride { max_lr: None, min_lr: None, lr_mult: 1.0, start_wd: None, end_wd: None, wd_mult: 1.0 }
    }
}

/// Length of a run. Decay and warm-up lengths on the command line use the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainLength {
    /// `--train-iters`.
    Iterations(u64),
    /// `--train-samples`.
    Samples(u64),
}

/// Length of the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// `--lr-warmup-iters` or `--lr-warmup-samples`, in the unit of [`TrainLength`]; 0 for none.
    Count(u64),
    /// `--lr-warmup-fraction`: a share of the decay length.
    Fraction(f64),
}

/// The schedule as typed on the command line, before units are unified.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleArgs {
    /// `--train-iters` or `--train-samples`.
    pub length: TrainLength,
    /// Sequences per iteration (the final one, when the batch size is scheduled).
    pub global_batch_size: u64,
    /// `--lr`.
    pub lr: f64,
    /// `--min-lr`.
    pub min_lr: f64,
    /// `--lr-warmup-init`.
    pub lr_warmup_init: f64,
    /// `--lr-decay-style`.
    pub lr_decay_style: LrDecayStyle,
    /// `--lr-decay-iters` or `--lr-decay-samples`; the whole run when absent.
    pub lr_decay: Option<u64>,
    /// The warm-up flags.
    pub lr_warmup: Warmup,
    /// `--lr-wsd-decay-iters` or `--lr-wsd-decay-samples`.
    pub lr_wsd_decay: Option<u64>,
    /// `--lr-wsd-decay-style`.
    pub lr_wsd_decay_style: WsdDecayStyle,
    /// `--weight-decay`.
    pub weight_decay: f64,
    /// `--start-weight-decay`, only with a growing weight decay.
    pub start_weight_decay: Option<f64>,
    /// `--end-weight-decay`, only with a growing weight decay.
    pub end_weight_decay: Option<f64>,
    /// `--weight-decay-incr-style`.
    pub weight_decay_incr_style: WdIncrStyle,
}

impl ScheduleArgs {
    /// Both schedules in samples. (Megatron: `get_optimizer_param_scheduler`.)
    ///
    /// Fails on lengths that overflow and on weight-decay flags that contradict the style.
    pub fn resolve(&self) -> Result<(LrSchedule, WdSchedule), SchedulerError> {
        let (length, samples_per_unit) = match self.length {
            TrainLength::Iterations(n) => (n, self.global_batch_size),
            TrainLength::Samples(n) => (n, 1),
        };
        let in_samples = |flag: &'static str, count: u64| {
            count.checked_mul(samples_per_unit).ok_or_else(|| SchedulerError::Setting {
                flag,
                why: format!("{count} iterations of {samples_per_unit} samples overflow 64 bits"),
            })
        };
        let decay_steps = in_samples("--lr-decay-iters", self.lr_decay.unwrap_or(length))?;
        let warmup_steps = match self.lr_warmup {
            Warmup::Count(count) => in_samples("--lr-warmup-iters", count)? as f64,
            Warmup::Fraction(fraction) => fraction * decay_steps as f64,
        };
        let wsd_decay_steps = self.lr_wsd_decay.map(|n| in_samples("--lr-wsd-decay-iters", n)).transpose()?;
        let (start_wd, end_wd) = self.weight_decay_bounds()?;
        let lr = LrSchedule {
            init_lr: self.lr_warmup_init,
            max_lr: self.lr,
            min_lr: self.min_lr,
            warmup_steps,
            decay_steps,
            decay_style: self.lr_decay_style,
            wsd_decay_steps,
            wsd_decay_style: self.lr_wsd_decay_style,
        };
        let incr_steps = in_samples("--train-iters", length)?;
        let wd = WdSchedule { start_wd, end_wd, incr_steps, incr_style: self.weight_decay_incr_style };
        Ok((lr, wd))
    }

    fn weight_decay_bounds(&self) -> Result<(f64, f64), SchedulerError> {
        let flag = "--weight-decay-incr-style";
        match (self.weight_decay_incr_style, self.start_weight_decay, self.end_weight_decay) {
            (WdIncrStyle::Constant, None, None) => Ok((self.weight_decay, self.weight_decay)),
            (WdIncrStyle::Constant, _, _) => setting(
                flag,
                "constant excludes --start-weight-decay and --end-weight-decay; drop them or choose linear or cosine"
                    .to_string(),
            ),
            (_, Some(start), Some(end)) => Ok((start, end)),
            (style, start, end) => setting(
                flag,
                format!(
                    "{style} needs --start-weight-decay and --end-weight-decay, given are {} and {}",
                    start.map_or("none".to_string(), |v| v.to_string()),
                    end.map_or("none".to_string(), |v| v.to_string()),
                ),
            ),
        }
    }
}

/// What a checkpoint keeps, under Megatron's key names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerState {
    /// Upper bound of the learning rate.
    pub max_lr: f64,
    /// Length of the warm-up in samples.
    pub lr_warmup_steps: f64,
    /// Samples seen.
    pub num_steps: u64,
    /// Shape of the decay.
    pub lr_decay_style: LrDecayStyle,
    /// Sample at which the decay ends.
    pub lr_decay_steps: u64,
    /// Lower bound of the learning rate.
    pub min_lr: f64,
    /// First weight decay.
    pub start_wd: f64,
    /// Last weight decay.
    pub end_wd: f64,
    /// Shape of the growth of weight decay.
    pub wd_incr_style: WdIncrStyle,
    /// Length of that growth in samples.
    pub wd_incr_steps: u64,
}

/// Learning rate and weight decay of a run at its current sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamScheduler {
    lr: LrSchedule,
    wd: WdSchedule,
    num_steps: u64,
}

impl ParamScheduler {
    /// A scheduler at sample 0. Fails when the two schedules are not valid.
    pub fn new(lr: LrSchedule, wd: WdSchedule) -> Result<ParamScheduler, SchedulerError> {
        lr.validate()?;
        wd.validate()?;
        Ok(ParamScheduler { lr, wd, num_steps: 0 })
    }

    /// A scheduler at sample 0 from command-line units.
    pub fn from_args(args: &ScheduleArgs) -> Result<ParamScheduler, SchedulerError> {
        let (lr, wd) = args.resolve()?;
        ParamScheduler::new(lr, wd)
    }

    /// Advances by `increment` samples: the running global batch size after an applied update, nothing after a skip.
    pub fn step(&mut self, increment: u64) {
        self.num_steps = self.num_steps.saturating_add(increment);
    }

    /// Samples seen.
    pub fn num_steps(&self) -> u64 {
        self.num_steps
    }

    /// Learning rate of parameters without overrides.
    pub fn lr(&self) -> f64 {
        self.lr.at(self.num_steps)
    }

    /// Weight decay of parameters without overrides.
    pub fn wd(&self) -> f64 {
        self.wd.at(self.num_steps)
    }

    /// Learning rate of a parameter group.
    pub fn group_lr(&self, group: &GroupOverride) -> f64 {
        let max_lr = group.max_lr.unwrap_or(self.lr.max_lr);
        let min_lr = group.min_lr.unwrap_or(self.lr.min_lr);
        self.lr.at_between(self.num_steps, max_lr, min_lr) * group.lr_mult
    }

    /// Weight decay of a parameter group.
    pub fn group_wd(&self, group: &GroupOverride) -> f64 {
        let start_wd = group.start_wd.unwrap_or(self.wd.start_wd);
        let end_wd = group.end_wd.unwrap_or(self.wd.end_wd);
        self.wd.at_between(self.num_steps, start_wd, end_wd) * group.wd_mult
    }

    /// The learning-rate settings in use.
    pub fn lr_schedule(&self) -> &LrSchedule {
        &self.lr
    }

    /// The weight-decay settings in use.
    pub fn wd_schedule(&self) -> &WdSchedule {
        &self.wd
    }

    /// What a checkpoint keeps.
    pub fn state(&self) -> SchedulerState {
        SchedulerState {
            max_lr: self.lr.max_lr,
            lr_warmup_steps: self.lr.warmup_steps,
            num_steps: self.num_steps,
            lr_decay_style: self.lr.decay_style,
            lr_decay_steps: self.lr.decay_steps,
            min_lr: self.lr.min_lr,
            start_wd: self.wd.start_wd,
            end_wd: self.wd.end_wd,
            wd_incr_style: self.wd.incr_style,
            wd_incr_steps: self.wd.incr_steps,
        }
    }

    /// Restores the position of a checkpoint, and its settings as `policy` says. Nothing changes on an error.
    ///
    /// `init_lr` and the WSD settings are not in a checkpoint, so they stay this run's, as in Megatron.
    pub fn load_state(&mut self, state: &SchedulerState, policy: LoadPolicy) -> Result<(), SchedulerError> {
        let ours = self.state();
        let merged = match policy {
            LoadPolicy::Override => SchedulerState { num_steps: state.num_steps, ..ours },
            LoadPolicy::UseCheckpoint => *state,
            LoadPolicy::Match => {
                let mismatches = compare(&ours, state);
                if !mismatches.is_empty() {
                    return Err(SchedulerError::CheckpointMismatch(mismatches));
                }
                *state
            }
        };
        let lr = LrSchedule {
            max_lr: merged.max_lr,
            min_lr: merged.min_lr,
            warmup_steps: merged.lr_warmup_steps,
            decay_steps: merged.lr_decay_steps,
            decay_style: merged.lr_decay_style,
            ..self.lr
        };
        let wd = WdSchedule {
            start_wd: merged.start_wd,
            end_wd: merged.end_wd,
            incr_steps: merged.wd_incr_steps,
            incr_style: merged.wd_incr_style,
        };
        *self = ParamScheduler { num_steps: merged.num_steps, ..ParamScheduler::new(lr, wd)? };
        Ok(())
    }
}

fn compare(ours: &SchedulerState, theirs: &SchedulerState) -> Vec<Mismatch> {
    let rows = [
        ("learning rate", ours.max_lr.to_string(), theirs.max_lr.to_string()),
        ("minimum learning rate", ours.min_lr.to_string(), theirs.min_lr.to_string()),
        ("warmup samples", ours.lr_warmup_steps.to_string(), theirs.lr_warmup_steps.to_string()),
        ("decay samples", ours.lr_decay_steps.to_string(), theirs.lr_decay_steps.to_string()),
        ("learning rate decay style", ours.lr_decay_style.to_string(), theirs.lr_decay_style.to_string()),
        ("start weight decay", ours.start_wd.to_string(), theirs.start_wd.to_string()),
        ("end weight decay", ours.end_wd.to_string(), theirs.end_wd.to_string()),
        ("weight decay samples", ours.wd_incr_steps.to_string(), theirs.wd_incr_steps.to_string()),
        ("weight decay incr style", ours.wd_incr_style.to_string(), theirs.wd_incr_style.to_string()),
    ];
    // f64's Display is the shortest text that reads back to the same bits, so unequal texts mean unequal values.
    let differs = |(name, ours, checkpoint): (&'static str, String, String)| {
        (ours != checkpoint).then_some(Mismatch { name, ours, checkpoint })
    };
    rows.into_iter().filter_map(differs).collect()
}
