//! Families of published models: how they are recognised, and what their `config.json` says.

use ferrotron_base::DType;
use ferrotron_device::ops::Activation;
use ferrotron_models::hf::{HfError, Mapping};
use ferrotron_models::{ModelConfig, Position, gpt2, llama, mixtral, qwen};
use ferrotron_nn::{NormKind, RopeScaling};
use serde_json::{Value, json};

use crate::{Error, Result};

/// A family, by its `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// GPT-2.
    Gpt2,
    /// Llama 2 and 3.
    Llama,
    /// Mistral without a sliding window: Llama's shape and names.
    Mistral,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3.
    Qwen3,
    /// Qwen 3 with experts.
    Qwen3Moe,
    /// Mixtral.
    Mixtral,
}

impl Family {
    const ALL: [(&'static str, Family); 7] = [
        ("gpt2", Family::Gpt2),
        ("llama", Family::Llama),
        ("mistral", Family::Mistral),
        ("qwen2", Family::Qwen2),
        ("qwen3", Family::Qwen3),
        ("qwen3_moe", Family::Qwen3Moe),
        ("mixtral", Family::Mixtral),
    ];

    /// The `model_type`.
    pub fn name(self) -> &'static str {
        Family::ALL.iter().find(|(_, f)| *f == self).map_or("", |(name, _)| name)
    }

    /// The family and model that a `config.json` states.
    ///
    /// # Errors
    /// An unknown family, or a feature of a known one that is not there.
    pub fn of_config(config: &Value) -> std::result::Result<(Family, ModelConfig), HfError> {
        let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let supported = "gpt2, llama, mistral, qwen2, qwen3, qwen3_moe and mixtral are";
        let unknown = || HfError::Unsupported { field: "model_type", value: format!("{kind:?}"), supported };
        let (_, family) = Family::ALL.iter().find(|(name, _)| *name == kind).ok_or_else(unknown)?;
        let model = match family {
            Family::Gpt2 => gpt2::from_hf(config)?,
            Family::Llama => llama::from_hf(config)?,
            Family::Mistral => {
                if let Some(window) = config.get("sliding_window").filter(|w| !w.is_null()) {
                    let (field, value) = ("sliding_window", window.to_string());
                    return Err(HfError::Unsupported { field, value, supported: "null is" });
                }
                llama::from_hf(config)?
            }
            Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => qwen::from_hf(config)?,
            Family::Mixtral => mixtral::from_hf(config)?,
        };
        Ok((*family, model))
    }

    /// Our parameters and their sources.
    pub fn mapping(self, c: &ModelConfig) -> Mapping {
        match self {
            Family::Gpt2 => gpt2::mapping(c),
            Family::Llama | Family::Mistral => llama::mapping(c),
            Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => qwen::mapping(c),
            Family::Mixtral => mixtral::mapping(c),
        }
    }

    /// The family that a model can be published as.
    ///
    /// # Errors
    /// [`Error::NoFamily`], with what no family has.
    pub fn of_model(c: &ModelConfig) -> Result<Family> {
        let no = |what: &str| Err(Error::NoFamily(what.into()));
        let scale = 1.0 / (c.head_dim as f32).sqrt();
        if c.softmax_scale.is_some_and(|s| (s / scale - 1.0).abs() > 1e-6) {
            return no("a softmax scale of its own");
        }
        if c.window.is_some() || c.norm_plus_one || c.embedding_norm {
            return no("a sliding window, a norm of the embedding, or norms that store their factor less 1");
        }
        if c.position == Position::Learned {
            let plain = c.norm == NormKind::Layer && c.linear_bias && c.qkv_bias && !c.gated && !c.qk_norm;
            let square = c.groups == c.heads && c.heads * c.head_dim == c.hidden && c.experts.is_none();
            let known = matches!(c.activation, Activation::GeluTanh | Activation::Gelu | Activation::Relu);
            return if plain && square && known {
                Ok(Family::Gpt2)
            } else {
                no(
                    "learned positions that is not GPT-2's: LayerNorm, biases everywhere, GELU, one key-value head a query head",
                )
            };
        }
        let Position::Rope { percent, interleaved, scaling, .. } = c.position else { return no("no positions") };
        if percent != 1.0 || interleaved || matches!(scaling, RopeScaling::Yarn { .. }) {
            return no("rotations of a part of the head, of neighbours, or scaled by YaRN");
        }
        if c.norm != NormKind::Rms || !c.gated || c.activation != Activation::Silu || c.linear_bias {
            return no("rotations but not RMSNorm, SwiGLU and linear layers without biases");
        }
        match (c.experts, c.qkv_bias, c.qk_norm) {
            (None, false, false) => Ok(Family::Llama),
            (None, true, false) => Ok(Family::Qwen2),
            (None, false, true) => Ok(Family::Qwen3),
            (Some(_), false, true) => Ok(Family::Qwen3Moe),
            (Some(e), false, false) if !e.pre_softmax => Ok(Family::Mixtral),
            _ => no("these biases, head norms and experts together"),
        }
    }

    /// The `config.json` of a model with so many rows in its vocabulary.
    pub fn config(self, c: &ModelConfig, vocab: usize, dtype: DType) -> Value {
        let dtype = match dtype {
            DType::BF16 => "bfloat16",
            DType::F16 => "float16",
            _ => "float32",
        };
        let architecture = match self {
            Family::Gpt2 => "GPT2LMHeadModel",
            Family::Llama => "LlamaForCausalLM",
            Family::Mistral => "MistralForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::Qwen3Moe => "Qwen3MoeForCausalLM",
            Family::Mixtral => "MixtralForCausalLM",
        };
        // a float as short as it was written, not as its nearest double
        let eps: f64 = c.norm_eps.to_string().parse().unwrap_or(f64::from(c.norm_eps));
        let mut all = json!({
            "architectures": [architecture], "model_type": self.name(), "torch_dtype": dtype, "vocab_size": vocab,
            "tie_word_embeddings": c.tied,
        });
        let own = if self == Family::Gpt2 {
            let activation = match c.activation {
                Activation::Gelu => "gelu",
                Activation::Relu => "relu",
                _ => "gelu_new",
            };
            json!({
                "n_layer": c.num_layers, "n_embd": c.hidden, "n_head": c.heads, "n_positions": c.max_positions,
                "n_ctx": c.max_positions, "n_inner": c.ffn, "layer_norm_epsilon": eps, "activation_function": activation,
            })
        } else {
            let (base, scaling) = match c.position {
                Position::Rope { base, scaling, .. } => (base, scaling),
                _ => (1e4, RopeScaling::None),
            };
            let scaling = match scaling {
                RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
                RopeScaling::Llama3 { factor, low, high, original } => json!({
                    "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": original as u64,
                }),
                _ => Value::Null,
            };
            json!({
                "num_hidden_layers": c.num_layers, "hidden_size": c.hidden, "intermediate_size": c.ffn,
                "num_attention_heads": c.heads, "num_key_value_heads": c.groups, "head_dim": c.head_dim,
                "max_position_embeddings": c.max_positions, "rms_norm_eps": eps, "hidden_act": "silu",
                "rope_theta": base, "rope_scaling": scaling, "attention_bias": false,
            })
        };
        merge(&mut all, own);
        if let Some(e) = c.experts {
            merge(&mut all, json!({ "num_experts_per_tok": e.chosen, "output_router_logits": false }));
            merge(
                &mut all,
                match self {
                    Family::Mixtral => {
                        json!({ "num_local_experts": e.count, "intermediate_size": e.ffn, "sliding_window": null })
                    }
                    _ => json!({
                        "num_experts": e.count, "moe_intermediate_size": e.ffn, "norm_topk_prob": !e.pre_softmax,
                        "decoder_sparse_step": 1, "mlp_only_layers": [],
                    }),
                },
            );
        }
        all
    }
}

/// Puts the fields of one object into another.
fn merge(all: &mut Value, more: Value) {
    if let (Value::Object(all), Value::Object(more)) = (all, more) {
        all.extend(more);
    }
}
