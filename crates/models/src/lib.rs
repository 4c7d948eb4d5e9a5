//! Model families: configuration, blocks, names, presets.
//!
//! [`transformer`] is the decoder that all families are made of, driven by one [`ModelConfig`]; a family's folder
//! says how that configuration reads from its Hugging Face `config.json` and how its published tensors map to ours.
//! Our parameter names are Megatron's.

pub mod gpt2;
pub mod hf;
pub mod llama;
pub mod mixtral;
pub mod qwen;
pub mod transformer;

pub use transformer::{ExpertsConfig, Model, ModelConfig, Position, Recomputation, build};
