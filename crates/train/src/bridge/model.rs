//! The model's shape and mathematics.

use ferrotron_config::settings::{self, Config};
use ferrotron_device::ops::Activation;
use ferrotron_models::{ExpertsConfig, ModelConfig, Position, Recomputation};
use ferrotron_nn::{NormKind, RopeScaling};

use crate::{Error, Result};

/// The model that a configuration describes, with `vocab` padded rows.
pub fn model_config(c: &Config, vocab: usize) -> Result<ModelConfig> {
    let m = &c.model;
    let (activation, gated) = match m.activation {
        settings::Activation::Gelu => (Activation::Gelu, false),
        settings::Activation::GeluTanh => (Activation::GeluTanh, false),
        settings::Activation::SquaredRelu => (Activation::SquaredRelu, false),
        settings::Activation::Swiglu => (Activation::Silu, true),
        settings::Activation::Geglu => (Activation::Gelu, true),
        settings::Activation::GegluTanh => (Activation::GeluTanh, true),
    };
    Ok(ModelConfig {
        num_layers: m.num_layers,
        hidden: m.hidden_size,
        ffn: m.ffn_hidden_size,
        experts: m.moe.as_ref().map(experts),
        heads: m.num_attention_heads,
        groups: m.num_query_groups,
        head_dim: m.kv_channels,
        vocab,
        max_positions: m.max_position_embeddings,
        position: position(m)?,
        embedding_norm: m.embedding_layernorm,
        norm: match m.norm.kind {
            settings::NormKind::LayerNorm => NormKind::Layer,
            settings::NormKind::RmsNorm => NormKind::Rms,
        },
        norm_eps: m.norm.epsilon as f32,
        norm_plus_one: m.norm.zero_centered_gamma,
        activation,
        gated,
        linear_bias: m.add_bias_linear,
        qkv_bias: m.add_qkv_bias,
        qk_norm: m.qk_layernorm,
        qk_norm_decay: c.optim.weight_decay.qk_layernorm,
        tied: m.tie_embeddings,
        hidden_dropout: m.hidden_dropout as f32,
        attention_dropout: m.attention_dropout as f32,
        window: window(m)?,
        softmax_scale: Some(m.softmax_scale as f32),
        init_std: m.init_method_std as f32,
        embedding_init_std: m.embedding_init_method_std as f32,
        output_init_std: Some(m.output_init_method_std as f32),
        recompute: recomputation(&c.train.recompute),
    })
}

fn experts(m: &settings::MoeConfig) -> ExpertsConfig {
    ExpertsConfig {
        count: m.num_experts,
        chosen: m.router_topk,
        ffn: m.ffn_hidden_size,
        pre_softmax: m.router_pre_softmax,
        balance: m.aux_loss_coeff as f32,
        z_loss: m.z_loss_coeff as f32,
    }
}

fn position(m: &settings::ModelConfig) -> Result<Position> {
    let rope = match (m.position, &m.rope) {
        (settings::PositionKind::LearnedAbsolute, _) => return Ok(Position::Learned),
        (settings::PositionKind::None, _) => return Ok(Position::None),
        (settings::PositionKind::Rope, Some(rope)) => rope,
        (settings::PositionKind::Rope, None) => {
            return Err(Error::Setting("--position-embedding-type rope came without rotary settings".into()));
        }
    };
    let scaling = match (&rope.scaling, rope.seq_len_interpolation_factor) {
        (settings::RopeScaling::None, None) => RopeScaling::None,
        (settings::RopeScaling::None, Some(factor)) => RopeScaling::Linear { factor },
        (_, Some(_)) => {
            return Err(Error::Setting(
                "--rotary-seq-len-interpolation-factor cannot be combined with Llama 3 or YaRN scaling: drop one"
                    .into(),
            ));
        }
        (&settings::RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position }, None) => {
            let (low, high, original) = (low_freq_factor, high_freq_factor, original_max_position);
            RopeScaling::Llama3 { factor, low, high, original }
        }
        (
            &settings::RopeScaling::Yarn {
                factor,
                original_max_position,
                beta_fast,
                beta_slow,
                mscale,
                mscale_all_dim,
                round_correction_range,
            },
            None,
        ) => RopeScaling::Yarn {
            factor,
            original: original_max_position as f64,
            beta_fast,
            beta_slow,
            mscale,
            mscale_all_dim,
            round: round_correction_range,
        },
    };
    Ok(Position::Rope { percent: rope.percent, base: rope.base, interleaved: rope.interleaved, scaling })
}

/// Keys a query sees: itself and `left` before it.
fn window(m: &settings::ModelConfig) -> Result<Option<usize>> {
    match m.sliding_window {
        None => Ok(None),
        Some(settings::SlidingWindow { left, right: Some(0) }) => Ok(left.map(|n| n + 1)),
        Some(settings::SlidingWindow { right, .. }) => Err(Error::Setting(format!(
            "--window-size: a causal model sees 0 tokens to the right, not {}",
            right.map_or("all".to_string(), |n| n.to_string())
        ))),
    }
}

fn recomputation(r: &settings::Recompute) -> Recomputation {
    match r {
        settings::Recompute::None => Recomputation::None,
        settings::Recompute::Selective(modules) => {
            let has = |m| modules.contains(&m);
            Recomputation::Selective {
                core_attention: has(settings::RecomputeModule::CoreAttn),
                mlp: has(settings::RecomputeModule::Mlp),
                layernorm: has(settings::RecomputeModule::Layernorm),
            }
        }
        &settings::Recompute::Full { method: settings::RecomputeMethod::Uniform, num_layers } => {
            Recomputation::Uniform { layers: num_layers }
        }
        &settings::Recompute::Full { method: settings::RecomputeMethod::Block, num_layers } => {
            Recomputation::Block { layers: num_layers }
        }
        &settings::Recompute::Full { method: settings::RecomputeMethod::BlockOfRank, num_layers } => {
            Recomputation::BlockOfRank { layers: num_layers }
        }
    }
}
