//! A Megatron run's arguments: what they say of the model.

use ferrotron_device::ops::Activation;
use ferrotron_models::{ExpertsConfig, ModelConfig, Position};
use ferrotron_nn::{NormKind, RopeScaling};
use serde_json::{Map, Value as Json};

/// Names of older versions and today's.
const RENAMED: [(&str, &str); 2] =
    [("apply_layernorm_1p", "layernorm_zero_centered_gamma"), ("norm_epsilon", "layernorm_epsilon")];

/// The arguments by today's names.
pub fn ours(saved: &Map<String, Json>) -> Map<String, Json> {
    let mut all = saved.clone();
    for (old, new) in RENAMED {
        if let Some(v) = saved.get(old).filter(|_| !saved.contains_key(new)) {
            all.insert(new.into(), v.clone());
        }
    }
    if saved.get("use_rotary_position_embeddings").and_then(Json::as_bool) == Some(true) {
        all.insert("position_embedding_type".into(), "rope".into());
    }
    all
}

/// Tokens that the tokenizer has, as far as the arguments say.
pub fn tokens(saved: &Map<String, Json>) -> Option<usize> {
    let n = saved.get("vocab_size")?.as_u64()?;
    // The null tokenizer has one more than it is told: the end of a text.
    let more = u64::from(saved.get("tokenizer_type").and_then(Json::as_str) == Some("NullTokenizer"));
    usize::try_from(n.checked_add(more)?).ok()
}

/// The model that the arguments describe; what they do not say is as in `base`.
pub fn model(saved: &Map<String, Json>, base: &ModelConfig) -> ModelConfig {
    let all = ours(saved);
    let size = |name: &str| all.get(name)?.as_u64().and_then(|n| usize::try_from(n).ok());
    let flag = |name: &str| all.get(name).and_then(Json::as_bool);
    let real = |name: &str| all.get(name).and_then(Json::as_f64);
    let text = |name: &str| all.get(name).and_then(Json::as_str);
    let mut m = base.clone();
    let set = |to: &mut usize, name: &str| *to = size(name).unwrap_or(*to);
    set(&mut m.num_layers, "num_layers");
    set(&mut m.hidden, "hidden_size");
    set(&mut m.ffn, "ffn_hidden_size");
    set(&mut m.heads, "num_attention_heads");
    set(&mut m.head_dim, "kv_channels");
    set(&mut m.max_positions, "max_position_embeddings");
    m.groups = match flag("group_query_attention") {
        Some(true) => size("num_query_groups").unwrap_or(base.groups),
        Some(false) => m.heads,
        None => base.groups,
    };
    let set = |to: &mut bool, name: &str| *to = flag(name).unwrap_or(*to);
    set(&mut m.linear_bias, "add_bias_linear");
    set(&mut m.qk_norm, "qk_layernorm");
    set(&mut m.norm_plus_one, "layernorm_zero_centered_gamma");
    if let Some(bias) = flag("add_bias_linear") {
        m.qkv_bias = bias || flag("add_qkv_bias").unwrap_or(false);
    }
    m.tied = flag("untie_embeddings_and_output_weights").map_or(base.tied, |untied| !untied);
    m.norm = match text("normalization") {
        Some("RMSNorm") => NormKind::Rms,
        Some("LayerNorm") => NormKind::Layer,
        _ => base.norm,
    };
    m.norm_eps = real("layernorm_epsilon").map_or(base.norm_eps, |e| e as f32);
    if let Some(swiglu) = flag("swiglu") {
        (m.activation, m.gated) = activation(swiglu, &flag);
    }
    m.position = position(base.position, text("position_embedding_type"), &flag, &real);
    match size("num_experts").filter(|n| *n > 0) {
        None if all.contains_key("num_experts") => m.experts = None,
        None => {}
        Some(count) => {
            let base = base.experts;
            let (pre_softmax, shared_ffn) = (false, 0);
            let none =
                ExpertsConfig { count, chosen: 2, ffn: m.ffn, shared_ffn, pre_softmax, balance: 0.0, z_loss: 0.0 };
            m.experts = Some(ExpertsConfig {
                count,
                chosen: size("moe_router_topk").unwrap_or(base.map_or(2, |e| e.chosen)),
                ffn: size("moe_ffn_hidden_size").unwrap_or(m.ffn),
                shared_ffn: match all.get("moe_shared_expert_intermediate_size") {
                    Some(_) => size("moe_shared_expert_intermediate_size").unwrap_or(0),
                    None => base.map_or(0, |e| e.shared_ffn),
                },
                pre_softmax: flag("moe_router_pre_softmax").unwrap_or(base.is_some_and(|e| e.pre_softmax)),
                ..base.unwrap_or(none)
            });
            m.dense_layers = dense_layers(all.get("moe_layer_freq"), m.num_layers).unwrap_or(m.dense_layers);
        }
    }
    m
}

/// Layers without experts, by `moe_layer_freq`: a number, or 0 and 1 for each layer.
fn dense_layers(freq: Option<&Json>, layers: usize) -> Option<Vec<usize>> {
    let dense = |i: &usize| match freq {
        Some(Json::Array(pattern)) => pattern.get(*i).and_then(Json::as_u64) == Some(0),
        Some(n) => n.as_u64().is_some_and(|n| n > 0 && !(*i as u64).is_multiple_of(n)),
        None => false,
    };
    freq.map(|_| (0..layers).filter(dense).collect())
}

/// The MLP's function, and whether it is gated. Megatron's fused bias and GELU is the approximation by tanh.
fn activation(swiglu: bool, flag: &dyn Fn(&str) -> Option<bool>) -> (Activation, bool) {
    let on = |name: &str| flag(name) == Some(true);
    if swiglu {
        (Activation::Silu, true)
    } else if on("squared_relu") {
        (Activation::SquaredRelu, false)
    } else if on("openai_gelu") || (on("bias_gelu_fusion") && on("add_bias_linear")) {
        (Activation::GeluTanh, false)
    } else {
        (Activation::Gelu, false)
    }
}

fn position(
    base: Position,
    kind: Option<&str>,
    flag: &dyn Fn(&str) -> Option<bool>,
    real: &dyn Fn(&str) -> Option<f64>,
) -> Position {
    match kind {
        Some("learned_absolute") => Position::Learned,
        Some("none") => Position::None,
        Some("rope") => {
            // Scaling by other flags than these is taken to be the command line's.
            let known = match base {
                Position::Rope { scaling, .. } => scaling,
                _ => RopeScaling::None,
            };
            let scaling = match (flag("use_rope_scaling"), real("rotary_seq_len_interpolation_factor")) {
                (Some(true), _) => known,
                (_, Some(factor)) => RopeScaling::Linear { factor },
                (Some(false), None) => RopeScaling::None,
                (None, None) => known,
            };
            Position::Rope {
                percent: real("rotary_percent").unwrap_or(1.0),
                base: real("rotary_base").unwrap_or(1e4),
                interleaved: flag("rotary_interleaved").unwrap_or(false),
                scaling,
            }
        }
        _ => base,
    }
}
