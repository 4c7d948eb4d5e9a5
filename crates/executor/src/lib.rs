//! Runs a schedule's steps over the chunks of a stage.
//!
//! One executor runs every schedule: the order is data. A chunk (virtual stage) is a list of layers; what a
//! micro-batch saved waits here, per chunk, until its backward step takes it.

mod edges;
mod run;

pub use edges::Edges;
pub use run::{Chunk, Stage, Watch, run, run_watched};
