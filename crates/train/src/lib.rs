//! The training loop: step, evaluate, save, resume, signals, guards.
//!
//! [`run::pretrain`] is the page to read first: the loop as plain steps. [`Trainer`] owns one rank's model, optimizer,
//! schedules and data; the files beside it hold one thing each that a trainer does.

pub mod batch;
pub mod bridge;
pub mod dry;
pub mod error;
pub mod evaluate;
pub mod generate;
pub mod lr_table;
mod not_finite;
mod profile;
pub mod progress;
pub mod report;
pub mod run;
pub mod save_load;
pub mod setup;
pub mod signals;
pub mod step;
pub mod trainer;
pub mod world;

pub use error::{Error, Result};
pub use generate::{Sampling, generate};
pub use lr_table::lr_table;
pub use progress::Progress;
pub use run::{Ending, Rank, pretrain};
pub use signals::Signals;
pub use trainer::Trainer;
pub use world::{At, Phase, World};
