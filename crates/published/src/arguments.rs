//! A published model as Megatron's arguments, for `--use-checkpoint-args`.

use std::path::Path;

use ferrotron_device::ops::Activation;
use ferrotron_models::Position;
use ferrotron_nn::{NormKind, RopeScaling};
use serde_json::{Map, Value, json};

use crate::folder::configuration;
use crate::{Error, Result};

/// The arguments of the model in a folder, by destination, and its tokenizer where it has one.
///
/// # Errors
/// As [`crate::Folder::open`]; a model that no arguments describe.
pub fn arguments(dir: &Path) -> Result<Map<String, Value>> {
    let (_, c) = configuration(dir)?;
    let mut all = json!({
        "num_layers": c.num_layers, "hidden_size": c.hidden, "ffn_hidden_size": c.ffn,
        "num_attention_heads": c.heads, "group_query_attention": c.groups != c.heads, "num_query_groups": c.groups,
        "kv_channels": c.head_dim, "max_position_embeddings": c.max_positions, "vocab_size": c.vocab,
        "untie_embeddings_and_output_weights": !c.tied, "add_bias_linear": c.linear_bias, "add_qkv_bias": c.qkv_bias,
        "normalization": if c.norm == NormKind::Rms { "RMSNorm" } else { "LayerNorm" },
        "layernorm_epsilon": c.norm_eps.to_string().parse().unwrap_or(f64::from(c.norm_eps)),
        "qk_layernorm": c.qk_norm, "swiglu": c.gated && c.activation == Activation::Silu,
        "bias_gelu_fusion": c.activation == Activation::GeluTanh,
        "attention_dropout": 0.0, "hidden_dropout": 0.0,
    });
    let mut add = |more: Value| {
        if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
            all.extend(more);
        }
    };
    let said = |what: &str| Error::NoFamily(format!("{what} by arguments of a command line: give its flags"));
    match (c.gated, c.activation) {
        (true, Activation::Silu) | (false, Activation::Gelu | Activation::GeluTanh) => {}
        _ => return Err(said("its activation")),
    }
    match c.position {
        Position::Rope { base, scaling, .. } => {
            add(json!({ "position_embedding_type": "rope", "rotary_base": base, "rotary_percent": 1.0 }));
            match scaling {
                RopeScaling::None => {}
                RopeScaling::Linear { factor } => add(json!({ "rotary_seq_len_interpolation_factor": factor as u64 })),
                RopeScaling::Llama3 { factor, low, high, original } => add(json!({
                    "use_rope_scaling": true, "rope_scaling_factor": factor, "low_freq_factor": low,
                    "high_freq_factor": high, "original_max_position_embeddings": original,
                })),
                RopeScaling::Yarn { .. } => return Err(said("the scaling of its rotations")),
            }
        }
        Position::Learned => add(json!({ "position_embedding_type": "learned_absolute" })),
        Position::None => add(json!({ "position_embedding_type": "none" })),
    }
    if let Some(e) = c.experts {
        add(json!({
            "num_experts": e.count, "moe_router_topk": e.chosen, "moe_ffn_hidden_size": e.ffn,
            "moe_router_pre_softmax": e.pre_softmax,
        }));
        if !c.dense_layers.is_empty() {
            let pattern: Vec<usize> = (0..c.num_layers).map(|i| c.has_experts(i).into()).collect();
            add(json!({ "moe_layer_freq": pattern }));
        }
    }
    if dir.join("tokenizer.json").is_file() {
        let dir = dir.to_string_lossy();
        add(json!({ "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": dir }));
    }
    match all {
        Value::Object(all) => Ok(all),
        _ => Ok(Map::new()),
    }
}
