//! The pre-norm block as a type: `x + attention(norm(x))`, then `x + f(norm(x))`, f an MLP or a mixture of experts.

use ferrotron_base::philox::hash_name;
use ferrotron_device::{Result, Tensor};
use ferrotron_nn::compose::SavesInput;
use ferrotron_nn::mlp::MlpConfig;
use ferrotron_nn::{
    AttentionConfig, Builder, Chain, Drop, Mlp, Moe, MoeConfig, Norm, NormConfig, PreNorm, Recompute, Residual, Rope,
    Sees, SelfAttention,
};
use ferrotron_runtime::{Ctx, Layer, Micro};

use super::config::{ModelConfig, Recomputation};

/// Attention half of a block.
pub type AttentionHalf = Residual<PreNorm<SelfAttention>>;
/// Feed-forward half of a block.
pub type FeedForwardHalf<F> = Recompute<Residual<PreNorm<F>>>;
/// One transformer block.
pub type Block<F> = Chain<AttentionHalf, FeedForwardHalf<F>>;

/// What a block does to each token for itself.
pub trait FeedForward: SavesInput<Out = Tensor> {
    /// Its shape.
    type Config;
    /// Registers the parameters of block `index` under `name` (`decoder.layers.3.mlp`).
    fn new(b: &mut Builder<'_>, name: &str, index: usize, c: &Self::Config) -> Self;
    /// `--recompute-modules mlp` means it.
    fn is_mlp(&self) -> bool;
}

impl FeedForward for Mlp {
    type Config = MlpConfig;
    fn new(b: &mut Builder<'_>, name: &str, _: usize, c: &MlpConfig) -> Mlp {
        Mlp::new(b, name, c)
    }
    fn is_mlp(&self) -> bool {
        true
    }
}

impl FeedForward for Moe {
    type Config = MoeConfig;
    fn new(b: &mut Builder<'_>, name: &str, _: usize, c: &MoeConfig) -> Moe {
        Moe::new(b, name, c)
    }
    fn is_mlp(&self) -> bool {
        false
    }
}

/// Makes block `index` (counted over the whole model) with feed-forward layers of shape `f`.
pub fn block<F: FeedForward>(
    b: &mut Builder<'_>,
    c: &ModelConfig,
    f: &F::Config,
    rope: Option<&Rope>,
    index: usize,
) -> Block<F> {
    let name = format!("decoder.layers.{index}");
    let (core, mlp, norm) = match c.recompute {
        Recomputation::Selective { core_attention, mlp, layernorm } => (core_attention, mlp, layernorm),
        _ => (false, false, false),
    };
    let drop = |what: &str| Drop { p: c.hidden_dropout, site: hash_name(&format!("{name}.{what}")) };
    let pre_norm = |b: &mut Builder<'_>, which: &str| {
        Norm::new(b, &format!("{name}.{which}"), c.hidden, c.norm_config(), Sees::Rows)
    };

    let attention = Residual {
        drop: drop("self_attention.dropout"),
        inner: PreNorm {
            recompute: norm,
            norm: pre_norm(b, "input_layernorm"),
            inner: SelfAttention::new(b, &format!("{name}.self_attention"), &attention_config(c, rope, core)),
        },
    };
    let feed_forward = Residual {
        drop: drop("mlp.dropout"),
        inner: PreNorm {
            recompute: norm,
            norm: pre_norm(b, "pre_mlp_layernorm"),
            inner: F::new(b, &format!("{name}.mlp"), index, f),
        },
    };
    let on = mlp && feed_forward.inner.inner.is_mlp();
    Chain(attention, Recompute { on, inner: feed_forward })
}

fn attention_config(c: &ModelConfig, rope: Option<&Rope>, recompute_core: bool) -> AttentionConfig {
    AttentionConfig {
        hidden: c.hidden,
        heads: c.heads,
        groups: c.groups,
        head_dim: c.head_dim,
        scale: c.softmax_scale.unwrap_or_else(|| 1.0 / (c.head_dim as f32).sqrt()),
        window: c.window,
        qkv_bias: c.qkv_bias,
        proj_bias: c.linear_bias,
        qk_norm: c.qk_norm.then(|| NormConfig { decay: c.qk_norm_decay, ..c.norm_config() }),
        rope: rope.cloned(),
        dropout: c.attention_dropout,
        std: c.init_std,
        proj_std: c.output_std(),
        recompute_core,
    }
}

/// The MLP of blocks without experts.
pub(super) fn mlp_config(c: &ModelConfig) -> MlpConfig {
    MlpConfig {
        hidden: c.hidden,
        ffn: c.ffn,
        activation: c.activation,
        gated: c.gated,
        bias: c.linear_bias,
        std: c.init_std,
        out_std: c.output_std(),
    }
}

/// The experts of a model that has them.
pub(super) fn moe_config(c: &ModelConfig) -> Option<MoeConfig> {
    let e = c.experts?;
    Some(MoeConfig {
        hidden: c.hidden,
        experts: e.count,
        chosen: e.chosen,
        ffn: e.ffn,
        shared_ffn: e.shared_ffn,
        activation: c.activation,
        gated: c.gated,
        bias: c.linear_bias,
        std: c.init_std,
        out_std: c.output_std(),
        pre_softmax: e.pre_softmax,
        balance: e.balance,
        z_loss: e.z_loss,
    })
}

/// Consecutive blocks that are recomputed as one unit.
pub struct Stack<F>(pub Vec<Block<F>>);

impl<F: FeedForward> Layer for Stack<F> {
    type In = Tensor;
    type Out = Tensor;
    type Saved = Vec<<Block<F> as Layer>::Saved>;
    type WGrad = Vec<<Block<F> as Layer>::WGrad>;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, mut x: Tensor) -> Result<(Tensor, Self::Saved)> {
        let mut saved = Vec::with_capacity(self.0.len());
        for block in &self.0 {
            let (y, s) = block.forward(cx, mb, x)?;
            saved.push(s);
            x = y;
        }
        Ok((x, saved))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, mut dy: Tensor, saved: Self::Saved) -> Result<(Tensor, Self::WGrad)> {
        let mut grads = Vec::with_capacity(self.0.len());
        for (block, s) in self.0.iter().zip(saved).rev() {
            let (dx, g) = block.backward(cx, mb, dy, s)?;
            grads.push(g);
            dy = dx;
        }
        grads.reverse();
        Ok((dy, grads))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Self::WGrad) -> Result<()> {
        for (block, g) in self.0.iter().zip(w).rev() {
            block.weight_grad(cx, mb, g)?;
        }
        Ok(())
    }
}
