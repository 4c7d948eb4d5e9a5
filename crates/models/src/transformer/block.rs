//! The pre-norm block as a type: `x + attention(norm(x))`, then `x + mlp(norm(x))`.

use ferrotron_base::philox::hash_name;
use ferrotron_device::{Result, Tensor};
use ferrotron_nn::mlp::MlpConfig;
use ferrotron_nn::{
    AttentionConfig, Builder, Chain, Drop, Mlp, Norm, NormConfig, PreNorm, Recompute, Residual, Rope, Sees,
    SelfAttention,
};
use ferrotron_runtime::{Ctx, Layer, Micro};

use super::config::{ModelConfig, Recomputation};

/// Attention half of a block.
pub type AttentionHalf = Residual<PreNorm<SelfAttention>>;
/// MLP half of a block.
pub type MlpHalf = Recompute<Residual<PreNorm<Mlp>>>;
/// One transformer block.
pub type Block = Chain<AttentionHalf, MlpHalf>;

/// Makes block `index` (counted over the whole model).
pub fn block(b: &mut Builder<'_>, c: &ModelConfig, rope: Option<&Rope>, index: usize) -> Block {
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
            inner: Mlp::new(b, &format!("{name}.mlp"), &mlp_config(c)),
        },
    };
    Chain(attention, Recompute { on: mlp, inner: feed_forward })
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

fn mlp_config(c: &ModelConfig) -> MlpConfig {
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

/// Consecutive blocks that are recomputed as one unit.
pub struct Stack(pub Vec<Block>);

impl Layer for Stack {
    type In = Tensor;
    type Out = Tensor;
    type Saved = Vec<<Block as Layer>::Saved>;
    type WGrad = Vec<<Block as Layer>::WGrad>;

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
