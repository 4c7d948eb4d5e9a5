//! From Hugging Face's `config.json` of a Qwen.

use crate::hf::{Fields, HfError};
use crate::{ExpertsConfig, ModelConfig, llama};

/// The configuration that `config.json` states, of `model_type` `qwen2`, `qwen3` or `qwen3_moe`.
pub fn from_hf(config: &serde_json::Value) -> Result<ModelConfig, HfError> {
    let f = Fields(config);
    if f.flag_or("use_sliding_window", false)? {
        let supported = "false is: windows of some layers only are not there yet";
        return Err(HfError::Unsupported { field: "use_sliding_window", value: "true".into(), supported });
    }
    let c = llama::from_hf(config)?;
    match config.get("model_type").and_then(|v| v.as_str()) {
        Some("qwen2") => Ok(ModelConfig { qkv_bias: true, ..c }),
        Some("qwen3") => Ok(ModelConfig { qk_norm: true, ..c }),
        Some("qwen3_moe") => {
            let dense_layers = dense_layers(config, c.num_layers)?;
            Ok(ModelConfig { qk_norm: true, experts: Some(experts(config)?), dense_layers, ..c })
        }
        other => Err(HfError::Unsupported {
            field: "model_type",
            value: format!("{other:?}"),
            supported: "qwen2, qwen3 and qwen3_moe are",
        }),
    }
}

/// Experts of every layer. The balancing loss is Hugging Face's, over all layers at once, and is left out: the command
/// line gives Megatron's.
fn experts(config: &serde_json::Value) -> Result<ExpertsConfig, HfError> {
    let f = Fields(config);
    // transformers calls the count by Mixtral's name since version 5.
    let count = if config.get("num_local_experts").is_some() { "num_local_experts" } else { "num_experts" };
    Ok(ExpertsConfig {
        count: f.size(count)?,
        chosen: f.size("num_experts_per_tok")?,
        ffn: f.size("moe_intermediate_size")?,
        // Scores of the chosen, divided by their sum, are a softmax over the chosen.
        shared_ffn: 0,
        pre_softmax: !f.flag_or("norm_topk_prob", false)?,
        balance: 0.0,
        z_loss: 0.0,
    })
}

/// Layers without experts: those in `mlp_only_layers`, and all but each `decoder_sparse_step`-th.
fn dense_layers(config: &serde_json::Value, layers: usize) -> Result<Vec<usize>, HfError> {
    let step = Fields(config).size_or("decoder_sparse_step", 1)?;
    let listed: Vec<u64> = match config.get("mlp_only_layers").and_then(|v| v.as_array()) {
        Some(list) => list.iter().filter_map(|v| v.as_u64()).collect(),
        None => vec![],
    };
    let dense: Vec<usize> =
        (0..layers).filter(|i| listed.contains(&(*i as u64)) || step == 0 || (i + 1) % step != 0).collect();
    if dense.len() < layers {
        return Ok(dense);
    }
    let value = format!("{step}, with mlp_only_layers {listed:?}");
    Err(HfError::Unsupported { field: "decoder_sparse_step", value, supported: "at least one layer with experts is" })
}
