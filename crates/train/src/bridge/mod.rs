//! From the validated configuration to what each crate takes.

mod data;
mod model;
mod schedule;

pub use data::{data_config, tokenizer_spec};
pub use model::model_config;
pub use schedule::{batch_schedule, guards, loss_scaler, optimizer_kind, schedule_args};
