//! From Hugging Face's `config.json` of a GPT-2.

use ferrotron_device::ops::Activation;

use crate::hf::{Fields, HfError};
use crate::{ModelConfig, Position};

/// The configuration that `config.json` states. Dropouts are left at 0: they belong to a training run.
pub fn from_hf(config: &serde_json::Value) -> Result<ModelConfig, HfError> {
    let f = Fields(config);
    let hidden = f.size("n_embd")?;
    let activation = match config.get("activation_function").and_then(|v| v.as_str()).unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "gelu" => Activation::Gelu,
        "relu" => Activation::Relu,
        other => {
            let supported = "gelu_new, gelu_pytorch_tanh, gelu and relu are";
            return Err(HfError::Unsupported { field: "activation_function", value: other.into(), supported });
        }
    };
    if f.flag_or("scale_attn_by_inverse_layer_idx", false)? {
        let field = "scale_attn_by_inverse_layer_idx";
        return Err(HfError::Unsupported { field, value: "true".into(), supported: "false is" });
    }
    Ok(ModelConfig {
        ffn: f.size_or("n_inner", 4 * hidden)?,
        norm_eps: f.number("layer_norm_epsilon")? as f32,
        position: Position::Learned,
        embedding_norm: false,
        activation,
        tied: f.flag_or("tie_word_embeddings", true)?,
        ..ModelConfig::gpt(f.size("n_layer")?, hidden, f.size("n_head")?, f.size("vocab_size")?, f.size("n_positions")?)
    })
}
