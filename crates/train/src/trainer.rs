//! One rank's model, optimizer, schedules and data.

use std::sync::Arc;

use ferrotron_config::Config;
use ferrotron_executor::Stage;
use ferrotron_models::ModelConfig;
use ferrotron_nn::Head;
use ferrotron_optim::{Guards, LossScaler, MicrobatchCalculator, Optimizer, ParamScheduler};
use ferrotron_runtime::Ctx;
use ferrotron_telemetry::Timers;
use ferrotron_tokenizer::Tokenizer;
use serde_json::{Map, Value};

use crate::batch::BatchSource;
use crate::{Progress, World};

/// A rank in training. Made by [`Trainer::new`] in [`crate::setup`].
pub struct Trainer {
    /// The validated command line.
    pub config: Config,
    /// All arguments, as a checkpoint stores them.
    pub arguments: Map<String, Value>,
    /// The model's shape.
    pub model: ModelConfig,
    /// The tokenizer.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Device, memory, groups, parameters.
    pub cx: Ctx,
    /// Layers.
    pub stage: Stage,
    /// The head, for logits; on the last stage.
    pub head: Option<Arc<Head>>,
    /// All ranks.
    pub world: World,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Learning rate and weight decay.
    pub scheduler: ParamScheduler,
    /// Loss scale.
    pub scaler: LossScaler,
    /// Thresholds that skip updates.
    pub guards: Guards,
    /// Batch sizes.
    pub batches: MicrobatchCalculator,
    /// Training, validation, test data.
    pub data: Sources,
    /// Counters.
    pub progress: Progress,
    /// Timers.
    pub timers: Timers,
    /// Length of the run in iterations.
    pub train_iters: u64,
    /// Steps to come before those that are graphs of the device; `None` when none will be.
    pub steps_before_graphs: Option<u64>,
    /// What the user should know about the data.
    pub notices: Vec<String>,
}

/// The three splits; one that is empty or not asked for is absent.
#[derive(Default)]
pub struct Sources {
    /// Training set.
    pub train: Option<BatchSource>,
    /// Validation set.
    pub valid: Option<BatchSource>,
    /// Test set.
    pub test: Option<BatchSource>,
}
