//! From Hugging Face's `config.json` of a Qwen.

use crate::hf::{Fields, HfError};
use crate::{ModelConfig, llama};

/// The configuration that `config.json` states, of `model_type` `qwen2` or `qwen3`.
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
        other => Err(HfError::Unsupported {
            field: "model_type",
            value: format!("{other:?}"),
            supported: "qwen2 and qwen3 are",
        }),
    }
}
