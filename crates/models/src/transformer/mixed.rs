//! The feed-forward layer of models that have experts in some blocks and an MLP in the others.

use ferrotron_device::{Error, Result, Tensor};
use ferrotron_nn::compose::SavesInput;
use ferrotron_nn::mlp::MlpConfig;
use ferrotron_nn::{Builder, Mlp, Moe, MoeConfig};
use ferrotron_runtime::{Ctx, Layer, Micro, Tensors};

use super::block::FeedForward;

/// One of two.
pub enum Either<A, B> {
    /// Of a block without experts.
    Dense(A),
    /// Of a block with experts.
    Experts(B),
}

/// An MLP or a mixture of experts.
pub type Mixed = Either<Mlp, Box<Moe>>;

/// Both shapes, and the blocks with an MLP.
pub struct MixedConfig {
    /// Of the blocks in `dense_layers`.
    pub dense: MlpConfig,
    /// Of the others.
    pub experts: MoeConfig,
    /// As [`super::config::ModelConfig::dense_layers`].
    pub dense_layers: Vec<usize>,
}

impl FeedForward for Mixed {
    type Config = MixedConfig;
    fn new(b: &mut Builder<'_>, name: &str, index: usize, c: &MixedConfig) -> Mixed {
        match c.dense_layers.contains(&index) {
            true => Either::Dense(Mlp::new(b, name, &c.dense)),
            false => Either::Experts(Box::new(Moe::new(b, name, &c.experts))),
        }
    }
    fn is_mlp(&self) -> bool {
        matches!(self, Either::Dense(_))
    }
}

impl<A: Tensors, B: Tensors> Tensors for Either<A, B> {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        match self {
            Either::Dense(a) => a.each(f),
            Either::Experts(b) => b.each(f),
        }
    }
}

/// What was kept is of the other kind of layer.
fn other() -> Error {
    Error::mismatch("feed-forward", "what was saved", "that of the same layer", "of another")
}

impl Layer for Mixed {
    type In = Tensor;
    type Out = Tensor;
    type Saved = Either<<Mlp as Layer>::Saved, <Moe as Layer>::Saved>;
    type WGrad = Either<<Mlp as Layer>::WGrad, <Moe as Layer>::WGrad>;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Tensor) -> Result<(Tensor, Self::Saved)> {
        Ok(match self {
            Either::Dense(mlp) => {
                let (y, saved) = mlp.forward(cx, mb, x)?;
                (y, Either::Dense(saved))
            }
            Either::Experts(moe) => {
                let (y, saved) = moe.forward(cx, mb, x)?;
                (y, Either::Experts(saved))
            }
        })
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, saved: Self::Saved) -> Result<(Tensor, Self::WGrad)> {
        Ok(match (self, saved) {
            (Either::Dense(mlp), Either::Dense(saved)) => {
                let (dx, grads) = mlp.backward(cx, mb, dy, saved)?;
                (dx, Either::Dense(grads))
            }
            (Either::Experts(moe), Either::Experts(saved)) => {
                let (dx, grads) = moe.backward(cx, mb, dy, saved)?;
                (dx, Either::Experts(grads))
            }
            _ => return Err(other()),
        })
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Self::WGrad) -> Result<()> {
        match (self, w) {
            (Either::Dense(mlp), Either::Dense(w)) => mlp.weight_grad(cx, mb, w),
            (Either::Experts(moe), Either::Experts(w)) => moe.weight_grad(cx, mb, w),
            _ => Err(other()),
        }
    }
}

impl SavesInput for Mixed {
    fn input_of(saved: &mut Self::Saved) -> &mut Tensor {
        match saved {
            Either::Dense(saved) => Mlp::input_of(saved),
            Either::Experts(saved) => Moe::input_of(saved),
        }
    }
}
