//! A decoder-only transformer: embedding, blocks, final norm, head.

mod block;
mod build;
mod config;
mod mixed;

pub use block::{Block, FeedForward, Stack};
pub use build::{Model, build};
pub use config::{ExpertsConfig, ModelConfig, Position, Recomputation};
