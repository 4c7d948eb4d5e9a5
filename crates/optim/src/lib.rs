//! Optimizers over flat ranges, learning-rate and weight-decay schedules, loss scaling, batch-size schedules.
//!
//! The modules here decide *numbers* on the host, in Megatron's order of operations, so that a schedule equals
//! Megatron's to the last bit: [`scheduler`] (built from [`lr`] and [`weight_decay`]), [`batch_size`],
//! [`loss_scale`] and [`guards`]. [`optimizer`] holds the state on the device and runs the update.

pub mod batch_size;
pub mod guards;
pub mod loss_scale;
pub mod lr;
pub mod optimizer;
pub mod scheduler;
pub mod weight_decay;

pub use batch_size::{Batch, BatchSchedule, BatchSizeError, MicrobatchCalculator};
pub use guards::{Decision, Guards, SkipReason, StepStats};
pub use loss_scale::{DynamicLossScale, DynamicLossScaleSettings, LossScaler, LossScalerState};
pub use lr::{LrDecayStyle, LrSchedule, WsdDecayStyle};
pub use optimizer::{Optimizer, OptimizerKind, OptimizerState, UpdateScalars};
pub use scheduler::{GroupOverride, LoadPolicy, ParamScheduler, ScheduleArgs, SchedulerError, SchedulerState};
pub use weight_decay::{WdIncrStyle, WdSchedule};
