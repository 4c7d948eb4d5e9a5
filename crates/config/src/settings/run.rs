//! Settings around the training step: checkpoints, evaluation, logs, the mesh, the device.

use std::path::PathBuf;

use serde::Serialize;

/// Saving and loading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointConfig {
    /// Folder to save into.
    pub save: Option<PathBuf>,
    /// Iterations between saves; `None` saves at the end only.
    pub save_interval: Option<u64>,
    /// Keep only checkpoints at multiples of this, and the newest.
    pub save_retain_interval: Option<u64>,
    /// Save the optimizer state.
    pub save_optim: bool,
    /// Save the random state.
    pub save_rng: bool,
    /// Folder to load from.
    pub load: Option<PathBuf>,
    /// Folder to take first weights from when `load` has none.
    pub pretrained: Option<PathBuf>,
    /// Load this iteration instead of the newest.
    pub step: Option<u64>,
    /// Start at iteration 0 with loaded weights, without optimizer and random state.
    pub finetune: bool,
    /// Load the optimizer state.
    pub load_optim: bool,
    /// Load the random state.
    pub load_rng: bool,
    /// Take the model shape from the checkpoint where the command line is silent.
    pub use_checkpoint_args: bool,
    /// An empty `load` is an error even when it equals `save`.
    pub exit_on_missing: bool,
    /// Count on from this iteration after loading.
    pub override_iteration: Option<u64>,
    /// `--ckpt-format` as asked; see its notice for what is written.
    pub format: CheckpointFormat,
}

/// Checkpoint formats that upstream knows, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointFormat {
    /// Sharded safetensors with a manifest.
    Native,
    /// Megatron's legacy `torch`.
    Torch,
    /// PyTorch distributed checkpoint as Megatron writes it.
    TorchDist,
}

/// Validation runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvalConfig {
    /// Iterations between validations; `None` validates at the end only.
    pub interval: Option<u64>,
    /// Batches of one validation; 0 turns it off.
    pub iters: u64,
    /// First iteration that may validate.
    pub start_at_iter: Option<u64>,
    /// Global batch size of validation.
    pub global_batch_size: usize,
    /// Micro-batch size of validation.
    pub micro_batch_size: usize,
    /// Run over the whole validation set.
    pub full_validation: bool,
}

/// What is logged, and how often.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogConfig {
    /// Iterations between log lines.
    pub interval: u64,
    /// Log the norm of the parameters.
    pub params_norm: bool,
    /// Log model FLOP/s.
    pub throughput: bool,
    /// Append to `progress.txt` in the save folder.
    pub progress: bool,
    /// Count zero gradients.
    pub num_zeros_in_grad: bool,
    /// Iterations between memory reports.
    pub memory_interval: Option<u64>,
    /// 0 none, 1 coarse, 2 fine.
    pub timing_level: u8,
    /// How timers of ranks are combined.
    pub timing_option: TimingLogOption,
    /// TensorBoard folder.
    pub tensorboard_dir: Option<PathBuf>,
    /// Iterations between TensorBoard points.
    pub tensorboard_interval: u64,
    /// Timers to TensorBoard.
    pub timers_to_tensorboard: bool,
    /// Loss scale to TensorBoard.
    pub loss_scale_to_tensorboard: bool,
    /// Validation perplexity to TensorBoard.
    pub validation_ppl_to_tensorboard: bool,
    /// Memory to TensorBoard.
    pub memory_to_tensorboard: bool,
    /// World size to TensorBoard.
    pub world_size_to_tensorboard: bool,
    /// HTML page of the run.
    pub report: Option<PathBuf>,
    /// Port of the Prometheus endpoint.
    pub prometheus_port: Option<u16>,
    /// A line for people on standard error, when that is a terminal.
    pub console: bool,
    /// Peak of one device in TFLOP/s, of which MFU is a share; `None` takes what is known of the device.
    pub peak_tflops: Option<f64>,
    /// Weights & Biases run folder.
    pub wandb: Option<WandbConfig>,
    /// Folder of MLflow's file store, and the experiment in it.
    pub mlflow: Option<(PathBuf, String)>,
    /// Chrome trace.
    pub profile: Option<ProfileConfig>,
    /// Every scope as an NVTX range.
    pub nvtx_ranges: bool,
}

/// A Weights & Biases run folder (`wandb sync` sends it; this program does not).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WandbConfig {
    /// `--wandb-project`.
    pub project: String,
    /// `--wandb-entity`; empty for the account's own.
    pub entity: String,
    /// `--wandb-exp-name`; empty lets the server choose.
    pub name: String,
    /// Folder in which `wandb/offline-run-...` is made.
    pub folder: PathBuf,
}

/// A trace of named scopes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProfileConfig {
    /// First traced iteration, counted from 0 as upstream does.
    pub start: u64,
    /// First iteration that is not traced any more.
    pub end: u64,
    /// Ranks that write a trace.
    pub ranks: Vec<u64>,
    /// Folder of the traces, `trace-rank<N>.json`.
    pub folder: PathBuf,
}

/// How timers of ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimingLogOption {
    /// Slowest rank.
    Max,
    /// Fastest and slowest.
    Minmax,
    /// Every rank.
    All,
}

/// Mesh of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParallelConfig {
    /// Ranks in all: tp * pp * cp * dp.
    pub world_size: usize,
    /// Tensor parallel size.
    pub tp: usize,
    /// Pipeline stages.
    pub pp: usize,
    /// Context parallel size.
    pub cp: usize,
    /// Expert parallel size (a share of tp * cp * dp).
    pub ep: usize,
    /// Ranks that share an expert's matrices: tp, or 1.
    pub etp: usize,
    /// Data parallel size.
    pub dp: usize,
    /// Chunks of layers on each stage; 1 without interleaving.
    pub virtual_stages: usize,
    /// Layers of each virtual stage, in the order of the model: chunk 0 of every stage, then chunk 1 of every stage …
    pub stage_layers: Vec<usize>,
    /// Order of forwards and backwards.
    pub schedule: ferrotron_schedule::Kind,
    /// Micro-batches that pass one chunk before the next chunk's turn.
    pub microbatch_group: usize,
    /// Norms and dropout are sharded over the sequence. Off at tp 1.
    pub sequence_parallel: bool,
    /// Optimizer state is sharded over data parallel ranks.
    pub distributed_optimizer: bool,
    /// Copies of the sharded optimizer state: each lies on an equal part of the data parallel ranks.
    pub optimizer_instances: usize,
    /// `--zero-stage`, if written.
    pub zero_stage: Option<u8>,
    /// Buckets of gradients leave during backward.
    pub overlap_grad_reduce: bool,
    /// Buckets of parameters arrive during the next forward.
    pub overlap_param_gather: bool,
    /// Gradients travel as bf16.
    pub grad_reduce_in_bf16: bool,
    /// Elements of a gradient bucket; upstream's rule when absent.
    pub ddp_bucket_size: Option<usize>,
    /// The loss is averaged over all tokens of the global batch, not over those of each micro-batch.
    pub per_token_loss: bool,
    /// Seconds after which a wait for other ranks is an error.
    pub timeout_seconds: u64,
    /// The same, once training has begun.
    pub timeout_seconds_after_init: u64,
    /// Ranks as threads of this process; 0 when ranks are processes.
    pub thread_ranks: usize,
    /// Network interface between processes.
    pub interface: Option<String>,
}

/// Where the run executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host.
    Cpu,
    /// Ascend.
    Npu,
    /// NVIDIA.
    Cuda,
    /// The first that is there: npu, cuda, cpu.
    Auto,
}
