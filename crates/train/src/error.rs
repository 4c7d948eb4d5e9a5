//! What can end a run.

/// Result of the training loop.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device, a kernel, or the code around it.
    #[error(transparent)]
    Device(#[from] ferrotron_device::Error),
    /// No device of the kind that was asked for.
    #[error(transparent)]
    NoDevice(Box<ferrotron_device::ProbeError>),
    /// Data files or samplers.
    #[error(transparent)]
    Data(Box<ferrotron_data::Error>),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(Box<ferrotron_tokenizer::Error>),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(Box<ferrotron_checkpoint::Error>),
    /// A published model.
    #[error(transparent)]
    Published(Box<ferrotron_published::Error>),
    /// A checkpoint of Megatron-LM.
    #[error(transparent)]
    Foreign(Box<ferrotron_foreign::Error>),
    /// Learning-rate or weight-decay schedule.
    #[error(transparent)]
    Scheduler(Box<ferrotron_optim::SchedulerError>),
    /// Batch-size schedule.
    #[error(transparent)]
    BatchSize(#[from] ferrotron_optim::BatchSizeError),
    /// Loss scaling.
    #[error(transparent)]
    LossScale(#[from] ferrotron_optim::loss_scale::LossScaleError),
    /// Thresholds that skip updates.
    #[error(transparent)]
    Guard(#[from] ferrotron_optim::guards::GuardError),
    /// A metrics file.
    #[error(transparent)]
    Metrics(#[from] ferrotron_telemetry::MetricsFileError),
    /// The report, the metrics port or the run folder.
    #[error(transparent)]
    Sink(#[from] ferrotron_telemetry::SinkError),
    /// Standard output is gone.
    #[error("cannot write the log: {0}")]
    Log(#[from] std::io::Error),
    /// Loss or gradients are not finite.
    #[error(
        "iteration {iteration}: {what} is not finite ({value}){about}; the last good iteration is {last_good}. Resume from the \
         last checkpoint with a lower --lr or --clip-grad, skip such steps with --loss-spike-threshold or \
         --grad-norm-skip-threshold, or let them pass with --no-check-for-nan-in-loss-and-grad"
    )]
    NotFinite {
        /// The iteration, from 1.
        iteration: u64,
        /// Loss or gradient norm.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The iteration before.
        last_good: u64,
        /// What is known of its origin.
        about: String,
    },
    /// A setting that only shows to be wrong when data, tokenizer or checkpoint are known.
    #[error("{0}")]
    Setting(String),
}

impl Error {
    /// True when another rank failed first, and this one only ends with it.
    pub fn is_of_peer(&self) -> bool {
        matches!(self, Error::Device(ferrotron_device::Error::Aborted(_)))
    }
}

/// Large errors travel boxed, so that a `Result` stays small.
macro_rules! boxed {
    ($($variant:ident: $error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(e: $error) -> Error {
                Error::$variant(Box::new(e))
            }
        }
    )*};
}

boxed! {
    NoDevice: ferrotron_device::ProbeError,
    Data: ferrotron_data::Error,
    Tokenizer: ferrotron_tokenizer::Error,
    Checkpoint: ferrotron_checkpoint::Error,
    Published: ferrotron_published::Error,
    Foreign: ferrotron_foreign::Error,
    Scheduler: ferrotron_optim::SchedulerError,
}
