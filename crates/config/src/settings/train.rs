//! Training settings.

use ferrotron_base::DType;
use serde::Serialize;

/// Batches, length, precision, recomputation, exits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainConfig {
    /// Sequences of one forward pass on one data-parallel rank.
    pub micro_batch_size: usize,
    /// Sequences of one optimizer step over all ranks: the final size when a plan grows it.
    pub global_batch_size: usize,
    /// How the global batch size changes over the run.
    pub batch_plan: BatchPlan,
    /// Round a batch that does not divide down, instead of refusing it.
    pub decrease_batch_size_if_needed: bool,
    /// Length of the run.
    pub length: RunLength,
    /// Iterations whose batch is read and dropped.
    pub iterations_to_skip: Vec<u64>,
    /// Only evaluate.
    pub skip_train: bool,
    /// Seed of weights, dropout and data order.
    pub seed: u64,
    /// Devices that sum faster without a fixed order keep it all the same. The CPU always does.
    pub deterministic: bool,
    /// Storage type of parameters and activations; main gradients and optimizer state are f32.
    pub params_dtype: ParamDtype,
    /// Stop when loss or gradients are not finite (off under dynamic loss scaling, which skips the step).
    pub check_for_nan: bool,
    /// Skip the update of a step whose loss exceeds this.
    pub loss_spike_threshold: Option<f64>,
    /// Skip the update of a step whose gradient norm exceeds this.
    pub grad_norm_skip_threshold: Option<f64>,
    /// What backward computes again.
    pub recompute: Recompute,
    /// Steps of a run before those whose forward and backward are one CUDA graph; `None`: none are.
    pub steps_before_graphs: Option<u64>,
    /// When to leave early.
    pub exit: ExitConfig,
}

/// How the global batch size changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchPlan {
    /// Never.
    Constant,
    /// `--rampup-batch-size`: from `start` by `increment` to the global batch size over `samples`.
    Rampup {
        /// First size.
        start: u64,
        /// Growth.
        increment: u64,
        /// Samples until the final size.
        samples: u64,
    },
    /// `--step-batch-size-schedule`, first step at 0.
    Steps(Vec<BatchStep>),
}

/// One step of a batch-size schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchStep {
    /// Samples consumed from which the size holds (the flag's tokens, divided by the sequence length, rounded down).
    pub from_samples: u64,
    /// Size.
    pub global_batch_size: u64,
}

/// Length of the run; schedules count in the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunLength {
    /// `--train-iters`.
    Iterations(u64),
    /// `--train-samples`.
    Samples(u64),
}

/// Storage type of parameters and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamDtype {
    /// Neither `--fp16` nor `--bf16`.
    Fp32,
    /// `--fp16`.
    Fp16,
    /// `--bf16`.
    Bf16,
}

impl ParamDtype {
    /// The element type.
    pub const fn dtype(self) -> DType {
        match self {
            ParamDtype::Fp32 => DType::F32,
            ParamDtype::Fp16 => DType::F16,
            ParamDtype::Bf16 => DType::BF16,
        }
    }

    /// Upstream's name, as its arguments dump prints it.
    pub const fn torch_name(self) -> &'static str {
        match self {
            ParamDtype::Fp32 => "torch.float32",
            ParamDtype::Fp16 => "torch.float16",
            ParamDtype::Bf16 => "torch.bfloat16",
        }
    }
}

/// Which activations backward computes again instead of keeping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Keep all.
    None,
    /// These modules of every layer.
    Selective(Vec<RecomputeModule>),
    /// Whole layers.
    Full {
        /// Which layers.
        method: RecomputeMethod,
        /// Layers per block (uniform), or recomputed layers per stage (block).
        num_layers: usize,
    },
}

/// A part of a layer that can be recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecomputeModule {
    /// Scores, softmax, dropout and weighted sum.
    CoreAttn,
    /// The whole feed-forward network.
    Mlp,
    /// The norms.
    Layernorm,
}

/// How full recomputation chooses layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecomputeMethod {
    /// All layers, in blocks of n whose input is kept.
    Uniform,
    /// The first n layers of each stage, one by one.
    Block,
    /// The first n of all virtual stages of a pipeline rank, taken from each in turn.
    BlockOfRank,
}

/// When to leave early. All leave after a save, if saving is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExitConfig {
    /// Leave after an iteration divisible by this.
    pub interval: Option<u64>,
    /// Leave after so many minutes.
    pub duration_in_mins: Option<u64>,
    /// Save and leave on `signal` (`--exit-signal-handler`).
    pub signal_handler: bool,
    /// The signal.
    pub signal: ExitSignal,
}

/// Signals that can end a run cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ExitSignal {
    /// Terminate, the default.
    #[serde(rename = "SIGTERM")]
    Term,
    /// Interrupt.
    #[serde(rename = "SIGINT")]
    Int,
    /// Hang up.
    #[serde(rename = "SIGHUP")]
    Hup,
    /// User signal 1.
    #[serde(rename = "SIGUSR1")]
    Usr1,
    /// User signal 2.
    #[serde(rename = "SIGUSR2")]
    Usr2,
}
