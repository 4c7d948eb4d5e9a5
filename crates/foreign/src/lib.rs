//! Checkpoints that Megatron-LM wrote, as a place that training starts from, under any layout of ours.
//!
//! ```text
//! DIR/latest_checkpointed_iteration.txt                      the tracker
//! DIR/iter_0001000/mp_rank_00[_000][_000]/model_optim_rng.pt --ckpt-format torch: a shard a (tensor, pipeline, expert) rank
//! DIR/iter_0001000/{metadata.json,.metadata,common.pt,*.distcp} --ckpt-format torch_dist
//! ```
//!
//! Both are zip archives with a pickle ([`torch_zip`], [`pickle`]); a pickle is a program, and ours is read by a machine that
//! builds plain values only. Weights are read by position: a rank reads what it holds. Optimizer state is not read.

mod error;
mod files;
mod megatron;
pub mod pickle;
mod shard;
pub mod torch_zip;

pub use error::{Error, Result};
pub use megatron::Megatron;
