//! From Hugging Face's `config.json` of a Mixtral.

use crate::hf::{Fields, HfError};
use crate::{ExpertsConfig, ModelConfig, llama};

/// The configuration that `config.json` states. Its balancing loss is Hugging Face's, over all layers at once, and is
/// left out: the command line gives Megatron's.
pub fn from_hf(config: &serde_json::Value) -> Result<ModelConfig, HfError> {
    let f = Fields(config);
    if config.get("sliding_window").is_some_and(|w| !w.is_null()) {
        let (field, value) = ("sliding_window", config["sliding_window"].to_string());
        return Err(HfError::Unsupported { field, value, supported: "null is" });
    }
    let c = llama::from_hf(config)?;
    let experts = ExpertsConfig {
        count: f.size("num_local_experts")?,
        chosen: f.size("num_experts_per_tok")?,
        ffn: c.ffn,
        shared_ffn: 0,
        pre_softmax: false,
        balance: 0.0,
        z_loss: 0.0,
    };
    Ok(ModelConfig { experts: Some(experts), ..c })
}
