//! Log lines to the letter of Megatron's, timers, metric files, FLOPs, and a loss curve for the terminal.
//!
//! Everything here turns numbers into text or bytes. Nothing decides which rank prints, and there is no global state:
//! one rank owns its [`Timers`], [`IntervalStats`] and writers.

pub mod console;
pub mod curve;
pub mod flops;
pub mod jsonl;
pub mod lines;
pub mod mlflow;
pub mod peaks;
pub mod progress_log;
pub mod prometheus;
mod proto;
pub mod pyfmt;
pub mod report;
pub mod scopes;
pub mod sinks;
pub mod stats;
pub mod step;
pub mod tensorboard;
pub mod timers;
pub mod timestamp;
pub mod trace;
pub mod training_line;
pub mod wandb;

use std::io;
use std::path::PathBuf;

pub use console::Console;
pub use curve::{Curve, Glyphs};
pub use flops::GptShape;
pub use jsonl::{JsonlWriter, Metric};
pub use mlflow::MlflowRun;
pub use peaks::peak_tflops;
pub use progress_log::{ProgressLog, Standing};
pub use prometheus::{Endpoint, EndpointError};
pub use report::{Report, RunState};
pub use scopes::{ScopeSink, SinkId};
pub use sinks::{ProfileWindow, SinkError, SinkOptions, Sinks};
pub use stats::{IntervalState, IntervalStats};
pub use step::StepMetrics;
pub use tensorboard::{
    EventFileError, EventWriter, MemoryScalars, Scalar, TrainingScalars, ValidationScalars, read_events,
};
pub use timers::{TimerReport, Timers};
pub use timestamp::Timestamp;
pub use trace::Trace;
pub use training_line::TrainingLine;
pub use wandb::{WandbNames, WandbRun};

/// A metrics file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {action} the metrics file {}: {source}; check that the folder exists, is writable and has space",
    path.display()
)]
pub struct MetricsFileError {
    /// What was attempted.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The operating system's answer.
    pub source: io::Error,
}
