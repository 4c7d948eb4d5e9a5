//! The other lines that users of Megatron grep for: evaluation, events, checkpoints, start-up facts.
//!
//! Functions return text without the final newline; some texts have several lines or end with a space, as Megatron's.

use std::fmt;
use std::path::Path;

use crate::pyfmt::{exp_upper, fixed};
use crate::timestamp::Timestamp;

/// When an evaluation takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationPoint {
    /// Every `--eval-interval` iterations.
    During(u64),
    /// After training, on the validation set.
    FinalValidation(u64),
    /// After training, on the test set.
    FinalTest(u64),
}

impl fmt::Display for EvaluationPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvaluationPoint::During(iteration) => write!(f, "iteration {iteration}"),
            EvaluationPoint::FinalValidation(iteration) => write!(f, "iteration {iteration} on validation set"),
            EvaluationPoint::FinalTest(iteration) => write!(f, "iteration {iteration} on test set"),
        }
    }
}

/// Perplexity of a loss; losses above 20 are cut, as Megatron does.
pub fn perplexity(loss: f64) -> f64 {
    // Python's min(20, loss) keeps 20 when the loss is NaN.
    if loss < 20.0 { loss.exp() } else { 20.0_f64.exp() }
}

/// The evaluation line between two rulers of dashes. `set` names one of several validation sets
/// (`--multiple-validation-sets`).
pub fn evaluation(point: EvaluationPoint, set: Option<&str>, losses: &[(String, f64)]) -> String {
    let suffix = set.map_or(String::new(), |name| format!("-{name}"));
    let mut line = format!(" validation{suffix} loss at {point} | ");
    for (name, loss) in losses {
        line += &format!("{name} value: {} | {name} PPL: {} | ", exp_upper(*loss, 6), exp_upper(perplexity(*loss), 6));
    }
    let ruler = "-".repeat(line.chars().count() + 1);
    format!("{ruler}\n{line}\n{ruler}")
}

/// Milestones of a run, printed with their time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Ranks know each other.
    Initialized,
    /// Model, optimizer and schedule exist (and the checkpoint is loaded).
    ModelBuilt,
    /// Data loaders exist.
    DataBuilt,
    /// The loop begins.
    TrainingStarts,
    /// The loop has ended by itself.
    TrainingDone,
    /// `--exit-interval`.
    ExitAtIteration(u64),
    /// `--exit-duration-in-mins`, with the minutes that have passed.
    ExitAfterMinutes(f64),
    /// `--exit-signal-handler`; Megatron names SIGTERM whatever the signal.
    ExitOnSignal,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Initialized => write!(f, "after megatron is initialized"),
            Event::ModelBuilt => write!(f, "after model, optimizer, and learning rate scheduler are built"),
            Event::DataBuilt => write!(f, "after dataloaders are built"),
            Event::TrainingStarts => write!(f, "before the start of training step"),
            Event::TrainingDone => write!(f, "after training is done"),
            Event::ExitAtIteration(iteration) => write!(f, "exiting program at iteration {iteration}"),
            // `{:?}` prints the shortest digits that read back equal, as Python's str() of a float.
            Event::ExitAfterMinutes(minutes) => write!(f, "exiting program after {minutes:?} minutes"),
            Event::ExitOnSignal => write!(f, "exiting program after receiving SIGTERM."),
        }
    }
}

/// `[event] datetime: time `, with its trailing space.
pub fn event(event: Event, time: Timestamp) -> String {
    format!("[{event}] datetime: {time} ")
}

/// Position in the model-parallel grid, as checkpoint lines show it. Ranks count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelParallelRank {
    /// Rank in the tensor-parallel group.
    pub tensor_rank: usize,
    /// Size of that group.
    pub tensor_size: usize,
    /// Rank in the pipeline-parallel group.
    pub pipeline_rank: usize,
    /// Size of that group.
    pub pipeline_size: usize,
}

impl fmt::Display for ModelParallelRank {
    /// Megatron counts from 1 here; its weight-rematerialisation axis (gtp_remat) always has size 1 in Ferrotron.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (t, p) = (self.tensor_rank + 1, self.pipeline_rank + 1);
        write!(f, "[ t {t}/{}, gtp_remat 1/1, p {p}/{} ]", self.tensor_size, self.pipeline_size)
    }
}

/// Before a checkpoint is written; `format` is `--ckpt-format`.
pub fn saving_checkpoint(time: Timestamp, iteration: u64, folder: &Path, format: &str) -> String {
    format!("[{time}] saving checkpoint at iteration {iteration:7} to {} in {format} format", folder.display())
}

/// After a checkpoint is complete.
pub fn saved_checkpoint(time: Timestamp, iteration: u64, folder: &Path, rank: ModelParallelRank) -> String {
    format!("  [{time}] successfully saved checkpoint from iteration {iteration:7} to {} {rank}", folder.display())
}

/// After a checkpoint has been loaded.
pub fn loaded_checkpoint(folder: &Path, rank: ModelParallelRank, iteration: u64) -> String {
    format!("  successfully loaded checkpoint from {} {rank} at iteration {iteration}", folder.display())
}

/// `--load` names a folder without a checkpoint: two lines.
pub fn no_checkpoint(folder: &Path) -> String {
    format!(
        "WARNING: could not find the metadata file {}/latest_checkpointed_iteration.txt\n    \
         will not load any checkpoints and will start from random",
        folder.display()
    )
}

/// Parameters of one model-parallel rank (0-based ranks).
pub fn parameter_count(tensor_rank: usize, pipeline_rank: usize, parameters: u64) -> String {
    format!(
        " > number of parameters on (tensor, gtp_weight_remat, pipeline) model parallel rank \
         ({tensor_rank}, 0, {pipeline_rank}): {parameters}"
    )
}

/// Device memory of a rank in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// In use now.
    pub allocated: u64,
    /// Most in use so far.
    pub max_allocated: u64,
    /// Held by the pool now.
    pub reserved: u64,
    /// Most held so far.
    pub max_reserved: u64,
}

/// Memory after some iterations, in units of 2²⁰ bytes.
pub fn memory(rank: usize, iterations: u64, report: MemoryReport) -> String {
    let mb = |bytes: u64| fixed(bytes as f64 / 1_048_576.0, 2);
    format!(
        "[Rank {rank}] (after {iterations} iterations) memory (MB) | allocated: {} | max allocated: {} | reserved: {} \
         | max reserved: {}",
        mb(report.allocated),
        mb(report.max_allocated),
        mb(report.reserved),
        mb(report.max_reserved)
    )
}
