//! Qwen 2, 2.5 (qkv bias) and 3 (q/k norm, free head size; with or without experts): Llama's shape and tensor names.

mod config;

use crate::ModelConfig;
use crate::hf::Mapping;
use crate::llama::{self, ExpertNames};

pub use config::from_hf;

/// Our parameters and their sources.
pub fn mapping(c: &ModelConfig) -> Mapping {
    const EXPERTS: ExpertNames = ExpertNames { folder: "mlp", gate: "gate_proj", up: "up_proj", down: "down_proj" };
    if c.experts.is_some() { llama::mapping_with_experts(c, &EXPERTS) } else { llama::mapping(c) }
}
