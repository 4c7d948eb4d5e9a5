//! Mixtral (Jiang et al. 2024): Llama with experts in the place of the MLP.

mod config;
mod names;

pub use config::from_hf;
pub use names::mapping;
