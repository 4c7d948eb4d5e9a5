//! Model settings.

use ferrotron_base::round_up;
use serde::Serialize;

/// Shape and numerics of a GPT. Sizes are global, whatever the layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Transformer layers.
    pub num_layers: usize,
    /// Hidden size H.
    pub hidden_size: usize,
    /// Width F of the feed-forward network (of each half, when gated).
    pub ffn_hidden_size: usize,
    /// Query heads N.
    pub num_attention_heads: usize,
    /// Key-value groups G; equal to the heads without grouped-query attention.
    pub num_query_groups: usize,
    /// Head size D; need not be H / N.
    pub kv_channels: usize,
    /// Longest position (rows of the learned position table).
    pub max_position_embeddings: usize,
    /// Vocabulary rules; the size itself is known once the tokenizer is.
    pub vocab: VocabConfig,
    /// Norm layers.
    pub norm: NormConfig,
    /// Feed-forward activation.
    pub activation: Activation,
    /// Experts in the place of each layer's feed-forward network.
    pub moe: Option<MoeConfig>,
    /// Position information.
    pub position: PositionKind,
    /// Rotary settings, if positions are rotary.
    pub rope: Option<RopeConfig>,
    /// LayerNorm of the word embedding.
    pub embedding_layernorm: bool,
    /// Biases on all linear layers.
    pub add_bias_linear: bool,
    /// Bias on the fused QKV projection (true whenever `add_bias_linear` is).
    pub add_qkv_bias: bool,
    /// Norms on queries and keys, per head.
    pub qk_layernorm: bool,
    /// Output projection shares the word embedding.
    pub tie_embeddings: bool,
    /// Dropout after embeddings, attention and feed-forward.
    pub hidden_dropout: f64,
    /// Dropout on attention probabilities.
    pub attention_dropout: f64,
    /// Scale of the attention logits, 1 / sqrt(D).
    pub softmax_scale: f64,
    /// Sliding attention window; `None` attends to everything before.
    pub sliding_window: Option<SlidingWindow>,
    /// Standard deviation of initial linear weights.
    pub init_method_std: f64,
    /// Standard deviation of initial embeddings.
    pub embedding_init_method_std: f64,
    /// Standard deviation of the projections back into the residual stream: `init_method_std / sqrt(2 * num_layers)`.
    pub output_init_method_std: f64,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoeConfig {
    /// Experts of each layer, over all ranks.
    pub num_experts: usize,
    /// Experts that a token passes.
    pub router_topk: usize,
    /// Width of an expert.
    pub ffn_hidden_size: usize,
    /// Weights are scores over all experts, not over the chosen.
    pub router_pre_softmax: bool,
    /// Coefficient of the balancing loss; 0 for none.
    pub aux_loss_coeff: f64,
    /// Coefficient of the router's z-loss; 0 for none.
    pub z_loss_coeff: f64,
}

/// Rules for the number of vocabulary rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VocabConfig {
    /// `--vocab-size`: overrides the tokenizer's.
    pub vocab_size: Option<usize>,
    /// `--padded-vocab-size` or `--pad-vocab-size-to`: the exact number of rows.
    pub padded_vocab_size: Option<usize>,
    /// `--make-vocab-size-divisible-by`.
    pub divisible_by: usize,
    /// False with `--no-pad-vocab-size`.
    pub pad: bool,
}

impl VocabConfig {
    /// Rows of the embedding for a tokenizer of `vocab_size` entries over `tp` ranks:
    /// rounded up to a multiple of `divisible_by * tp` (Megatron: `_vocab_size_with_padding`).
    ///
    /// # Errors
    /// When a fixed number of rows is too small for the tokenizer or does not divide by `tp`, or the size overflows.
    pub fn padded(&self, vocab_size: usize, tp: usize) -> Result<usize, String> {
        let rows = match self.padded_vocab_size {
            Some(rows) if rows < vocab_size => {
                return Err(format!("--padded-vocab-size {rows} is below the tokenizer's {vocab_size} entries"));
            }
            Some(rows) => rows,
            None if !self.pad => vocab_size,
            None => match self.divisible_by.checked_mul(tp).filter(|unit| vocab_size.checked_add(*unit).is_some()) {
                Some(unit) if unit > 0 => round_up(vocab_size, unit),
                _ => {
                    return Err(format!(
                        "--make-vocab-size-divisible-by {} times tensor parallel size {tp} is no usable multiple",
                        self.divisible_by
                    ));
                }
            },
        };
        if tp == 0 || !rows.is_multiple_of(tp) {
            return Err(format!("{rows} vocabulary rows do not divide by tensor parallel size {tp}"));
        }
        Ok(rows)
    }
}

/// Norm layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NormConfig {
    /// LayerNorm or RMSNorm.
    pub kind: NormKind,
    /// Added to the variance.
    pub epsilon: f64,
    /// Weights are stored as w - 1 and start at 0 (`--apply-layernorm-1p`).
    pub zero_centered_gamma: bool,
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Mean and variance, weight and bias.
    LayerNorm,
    /// Root mean square, weight only.
    RmsNorm,
}

/// Activation of the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// GELU by the error function: upstream's `F.gelu`, used with `--no-bias-gelu-fusion` or `--disable-bias-linear`.
    Gelu,
    /// GELU by tanh: what upstream's fused bias-gelu computes, hence its default with biases.
    GeluTanh,
    /// max(x, 0)^2.
    SquaredRelu,
    /// silu(gate) * up.
    Swiglu,
    /// gelu(gate) * up, error function.
    Geglu,
    /// gelu(gate) * up, tanh.
    GegluTanh,
}

impl Activation {
    /// True if the first linear layer is twice as wide, gate then up.
    pub const fn is_gated(self) -> bool {
        matches!(self, Activation::Swiglu | Activation::Geglu | Activation::GegluTanh)
    }
}

/// How a token learns its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionKind {
    /// A trained table added to the embeddings.
    LearnedAbsolute,
    /// Rotary queries and keys.
    Rope,
    /// None.
    None,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeConfig {
    /// Theta.
    pub base: f64,
    /// Share of the head size that rotates.
    pub percent: f64,
    /// Pairs are neighbours (GPT-J) instead of halves (GPT-NeoX).
    pub interleaved: bool,
    /// Positions are divided by this.
    pub seq_len_interpolation_factor: Option<f64>,
    /// Frequency scaling.
    pub scaling: RopeScaling,
}

/// Frequency scaling of rotary embeddings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Llama 3.1's smooth interpolation (`--use-rope-scaling`).
    Llama3 {
        /// `--rope-scaling-factor`.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided by the factor.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_max_position: f64,
    },
    /// YaRN (arXiv:2309.00071).
    Yarn {
        /// Context extension.
        factor: f64,
        /// Context length before scaling.
        original_max_position: usize,
        /// Rotations above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f64,
        /// Attention temperature factor.
        mscale: f64,
        /// Its divisor.
        mscale_all_dim: f64,
        /// Correction range ends are rounded to whole dimensions.
        round_correction_range: bool,
    },
}

/// Sliding attention window in tokens; a side that is `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlidingWindow {
    /// Tokens before the query that it may see.
    pub left: Option<usize>,
    /// Tokens after; causal models have 0.
    pub right: Option<usize>,
}
