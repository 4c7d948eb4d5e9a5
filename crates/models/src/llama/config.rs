//! From Hugging Face's `config.json` of a Llama.

use ferrotron_device::ops::Activation;

use crate::hf::{Fields, HfError};
use crate::{ModelConfig, Position};

/// The configuration that `config.json` states.
pub fn from_hf(config: &serde_json::Value) -> Result<ModelConfig, HfError> {
    let f = Fields(config);
    let (hidden, heads) = (f.size("hidden_size")?, f.size("num_attention_heads")?);
    let activation = match config.get("hidden_act").and_then(|v| v.as_str()).unwrap_or("silu") {
        "silu" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_pytorch_tanh" => Activation::GeluTanh,
        other => {
            let supported = "silu, gelu and gelu_pytorch_tanh are";
            return Err(HfError::Unsupported { field: "hidden_act", value: other.into(), supported });
        }
    };
    for field in ["attention_bias", "mlp_bias"] {
        if f.flag_or(field, false)? {
            return Err(HfError::Unsupported { field, value: "true".into(), supported: "false is" });
        }
    }
    let (base, scaling) = f.rope()?;
    let groups = f.size_or("num_key_value_heads", heads)?;
    Ok(ModelConfig {
        head_dim: f.size_or("head_dim", hidden / heads.max(1))?,
        vocab: f.size("vocab_size")?,
        max_positions: f.size("max_position_embeddings")?,
        position: Position::Rope { percent: 1.0, base, interleaved: false, scaling },
        norm_eps: f.number("rms_norm_eps")? as f32,
        activation,
        tied: f.flag_or("tie_word_embeddings", false)?,
        ..ModelConfig::llama(f.size("num_hidden_layers")?, hidden, heads, groups, f.size("intermediate_size")?)
    })
}
