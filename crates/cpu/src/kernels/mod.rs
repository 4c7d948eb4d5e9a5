//! Kernels by op family: all but matrix products and attention.
//!
//! They are bound by memory, not arithmetic, so they share one shape: rows are cut among the team by size alone, each
//! row is read in blocks of [`block::BLOCK`] elements, widened to f32 in the L1 cache, computed there and rounded
//! once on the way out. Products and sums are written apart (never fused), and sums run in lanes whose number is
//! fixed, so results are the same bits for every number of threads *and* every instruction set.

pub mod activation;
mod block;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod layout;
pub(crate) mod math;
pub mod moe;
pub mod norm;
pub mod optimizer;
pub(crate) mod philox;
mod reduce;
pub mod rope;
