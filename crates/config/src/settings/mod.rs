//! The immutable [`Config`]: what a run means, in enums and numbers. Made by [`crate::validate`] only.

mod data;
mod model;
mod optim;
mod run;
mod train;

pub use data::{BlendItem, DataConfig, DataSource, DataloaderKind, Split, TokenizerConfig, TokenizerKind};
pub use model::{
    Activation, ModelConfig, MoeConfig, NormConfig, NormKind, PositionKind, RopeConfig, RopeScaling, SlidingWindow,
    VocabConfig,
};
pub use optim::{
    LossScale, LrConfig, LrDecayStyle, OptimConfig, Optimizer, SchedulerOnLoad, Warmup, WdIncrStyle, WeightDecay,
    WsdDecay, WsdDecayStyle,
};
pub use run::{
    CheckpointConfig, CheckpointFormat, DeviceKind, EvalConfig, LogConfig, ParallelConfig, ProfileConfig,
    TimingLogOption, WandbConfig,
};
pub use train::{
    BatchPlan, BatchStep, ExitConfig, ExitSignal, ParamDtype, Recompute, RecomputeMethod, RecomputeModule, RunLength,
    TrainConfig,
};

use serde::Serialize;

/// Everything a run needs to know, grouped as the crates that use it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Shape and numerics of the model.
    pub model: ModelConfig,
    /// Batches, length, precision, recomputation, exits.
    pub train: TrainConfig,
    /// Optimizer, schedules, loss scale.
    pub optim: OptimConfig,
    /// Where tokens come from.
    pub data: DataConfig,
    /// Saving and loading.
    pub checkpoint: CheckpointConfig,
    /// Validation runs.
    pub eval: EvalConfig,
    /// What is logged, and how often.
    pub log: LogConfig,
    /// Mesh of ranks.
    pub parallel: ParallelConfig,
    /// Where the run executes.
    pub device: DeviceKind,
}
