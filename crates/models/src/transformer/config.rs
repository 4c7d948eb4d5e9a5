//! Everything that decides a model's shape and mathematics.

use ferrotron_device::ops::Activation;
use ferrotron_nn::{NormConfig, NormKind, RopeScaling};

/// How positions enter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// A learned table added to the word embedding.
    Learned,
    /// Rotation of q and k.
    Rope {
        /// Share of each head that is rotated.
        percent: f64,
        /// Base of the frequencies.
        base: f64,
        /// Pairs are neighbours.
        interleaved: bool,
        /// Stretching.
        scaling: RopeScaling,
    },
    /// None.
    None,
}

/// Which activations are made again in backward instead of kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recomputation {
    /// None.
    #[default]
    None,
    /// Chosen modules (`--recompute-granularity selective --recompute-modules …`).
    Selective {
        /// `core_attn`
        core_attention: bool,
        /// `mlp`
        mlp: bool,
        /// `layernorm`
        layernorm: bool,
    },
    /// Every `layers` layers keep their first input (`full`, `uniform`).
    Uniform {
        /// Layers in a unit.
        layers: usize,
    },
    /// The first `layers` layers of each stage keep their input, the others everything (`full`, `block`).
    Block {
        /// Layers that are recomputed.
        layers: usize,
    },
    /// The same over all chunks of a pipeline rank: the first layer of each chunk, then the second of each, until there are
    /// `layers` (MindSpeed: `should_recompute` with `--enable-recompute-layers-per-pp-rank`).
    BlockOfRank {
        /// Layers that are recomputed.
        layers: usize,
    },
}

/// The experts of each layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// E.
    pub count: usize,
    /// Experts that a token passes.
    pub chosen: usize,
    /// F of an expert.
    pub ffn: usize,
    /// Weights are the scores of all experts, not a softmax over the chosen.
    pub pre_softmax: bool,
    /// Coefficient of the balancing loss; 0 for none.
    pub balance: f32,
    /// Coefficient of the z-loss; 0 for none.
    pub z_loss: f32,
}

/// A decoder. Sizes are of the whole model, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Blocks.
    pub num_layers: usize,
    /// H.
    pub hidden: usize,
    /// F of a dense MLP.
    pub ffn: usize,
    /// Experts in the place of the MLP.
    pub experts: Option<ExpertsConfig>,
    /// Query heads.
    pub heads: usize,
    /// KV groups.
    pub groups: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Padded vocabulary.
    pub vocab: usize,
    /// Longest position.
    pub max_positions: usize,
    /// How positions enter.
    pub position: Position,
    /// LayerNorm of the word embedding (`--embed-layernorm`).
    pub embedding_norm: bool,
    /// Which norm.
    pub norm: NormKind,
    /// Its epsilon.
    pub norm_eps: f32,
    /// Its stored weight is the factor less 1.
    pub norm_plus_one: bool,
    /// The MLP's function.
    pub activation: Activation,
    /// The MLP is gated.
    pub gated: bool,
    /// Biases of all linear layers but qkv and head.
    pub linear_bias: bool,
    /// Bias of qkv.
    pub qkv_bias: bool,
    /// Normalise each head's q and k.
    pub qk_norm: bool,
    /// Weight decay applies to the norms of q and k.
    pub qk_norm_decay: bool,
    /// The head shares the word embedding.
    pub tied: bool,
    /// Dropout after attention, MLP and embedding.
    pub hidden_dropout: f32,
    /// Dropout of attention probabilities.
    pub attention_dropout: f32,
    /// Keys that a query sees at most.
    pub window: Option<usize>,
    /// Factor of q k^T; `None` is 1/sqrt(head_dim).
    pub softmax_scale: Option<f32>,
    /// Standard deviation of initial weights.
    pub init_std: f32,
    /// Standard deviation of initial embeddings.
    pub embedding_init_std: f32,
    /// The same of layers that end in the residual stream; `None` is `init_std / sqrt(2 num_layers)`
    /// (Radford et al. 2019; megatron/core/utils.py, `scaled_init_method_normal`).
    pub output_init_std: Option<f32>,
    /// Recomputation.
    pub recompute: Recomputation,
}

impl ModelConfig {
    /// GPT-2's and GPT-3's kind: learned positions, LayerNorm, GELU, biases, tied.
    pub fn gpt(num_layers: usize, hidden: usize, heads: usize, vocab: usize, max_positions: usize) -> ModelConfig {
        ModelConfig {
            num_layers,
            hidden,
            ffn: 4 * hidden,
            experts: None,
            heads,
            groups: heads,
            head_dim: hidden / heads.max(1),
            vocab,
            max_positions,
            position: Position::Learned,
            embedding_norm: false,
            norm: NormKind::Layer,
            norm_eps: 1e-5,
            norm_plus_one: false,
            activation: Activation::Gelu,
            gated: false,
            linear_bias: true,
            qkv_bias: true,
            qk_norm: false,
            qk_norm_decay: false,
            tied: true,
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            window: None,
            softmax_scale: None,
            init_std: 0.02,
            embedding_init_std: 0.02,
            output_init_std: None,
            recompute: Recomputation::None,
        }
    }

    /// Llama's kind: rotations, RMSNorm, SwiGLU, no biases, untied.
    pub fn llama(num_layers: usize, hidden: usize, heads: usize, groups: usize, ffn: usize) -> ModelConfig {
        ModelConfig {
            ffn,
            groups,
            position: Position::Rope { percent: 1.0, base: 1e4, interleaved: false, scaling: RopeScaling::None },
            norm: NormKind::Rms,
            activation: Activation::Silu,
            gated: true,
            linear_bias: false,
            qkv_bias: false,
            tied: false,
            ..ModelConfig::gpt(num_layers, hidden, heads, 0, 0)
        }
    }

    /// The norm.
    pub fn norm_config(&self) -> NormConfig {
        NormConfig { kind: self.norm, eps: self.norm_eps, plus_one: self.norm_plus_one, decay: false }
    }

    /// Standard deviation of layers that end in the residual stream.
    pub fn output_std(&self) -> f32 {
        self.output_init_std.unwrap_or_else(|| self.init_std / (2.0 * self.num_layers as f32).sqrt())
    }
}
