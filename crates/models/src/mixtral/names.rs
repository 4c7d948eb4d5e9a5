//! Mixtral's tensor names: Llama's, with `block_sparse_moe` in the place of `mlp`.

use crate::ModelConfig;
use crate::hf::Mapping;
use crate::llama::{ExpertNames, mapping_with_experts};

/// Our parameters and their sources.
pub fn mapping(c: &ModelConfig) -> Mapping {
    mapping_with_experts(c, &ExpertNames { folder: "block_sparse_moe", gate: "w1", up: "w3", down: "w2" })
}
