//! Composition: a block is a type, and what it saves comes for free.

use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro, Tensors};

use crate::Norm;

/// `b(a(x))`.
pub struct Chain<A, B>(pub A, pub B);

impl<A: Layer, B: Layer<In = A::Out>> Layer for Chain<A, B> {
    type In = A::In;
    type Out = B::Out;
    type Saved = (A::Saved, B::Saved);
    type WGrad = (A::WGrad, B::WGrad);

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: A::In) -> Result<(B::Out, Self::Saved)> {
        let (y, a) = self.0.forward(cx, mb, x)?;
        let (z, b) = self.1.forward(cx, mb, y)?;
        Ok((z, (a, b)))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: B::Out, saved: Self::Saved) -> Result<(A::In, Self::WGrad)> {
        let (d, b) = self.1.backward(cx, mb, dy, saved.1)?;
        let (dx, a) = self.0.backward(cx, mb, d, saved.0)?;
        Ok((dx, (a, b)))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Self::WGrad) -> Result<()> {
        self.1.weight_grad(cx, mb, w.1)?;
        self.0.weight_grad(cx, mb, w.0)
    }
}

/// Dropout of a branch: probability and site.
#[derive(Clone, Copy, Debug)]
pub struct Drop {
    /// Probability.
    pub p: f32,
    /// Hash of the place's name.
    pub site: u64,
}

impl Drop {
    /// `x = dropout(x) (+ residual)` in place. True when dropout applied.
    pub fn apply(&self, cx: &Ctx, mb: &Micro, x: &mut Tensor, residual: Option<&Tensor>) -> Result<bool> {
        let Some(site) = cx.drop_site(self.p, self.site) else { return Ok(false) };
        let (sample, offset) = (cx.own_rows(&mb.sample), cx.own_rows(&mb.offset));
        cx.ops().dropout(&cx.stream, site, 0, &sample, &offset, &x.clone(), residual, x)?;
        Ok(true)
    }
}

/// `x + dropout(inner(x))`.
pub struct Residual<L> {
    /// The branch.
    pub inner: L,
    /// Dropout of the branch.
    pub drop: Drop,
}

impl<L: Layer<In = Tensor, Out = Tensor>> Layer for Residual<L> {
    type In = Tensor;
    type Out = Tensor;
    type Saved = L::Saved;
    type WGrad = L::WGrad;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Tensor) -> Result<(Tensor, L::Saved)> {
        // The branch's output is nobody else's: the sum goes into it.
        let (mut y, saved) = self.inner.forward(cx, mb, x.clone())?;
        if !self.drop.apply(cx, mb, &mut y, Some(&x))? {
            cx.ops().add(&cx.stream, &y.clone(), &x, &mut y)?;
        }
        Ok((y, saved))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, saved: L::Saved) -> Result<(Tensor, L::WGrad)> {
        let branch = match cx.drop_site(self.drop.p, self.drop.site) {
            None => dy.clone(),
            Some(site) => {
                let mut d = cx.alloc(*dy.shape())?;
                let (sample, offset) = (cx.own_rows(&mb.sample), cx.own_rows(&mb.offset));
                cx.ops().dropout(&cx.stream, site, 0, &sample, &offset, &dy, None, &mut d)?;
                d
            }
        };
        let (mut dx, w) = self.inner.backward(cx, mb, branch, saved)?;
        cx.ops().add(&cx.stream, &dx.clone(), &dy, &mut dx)?;
        Ok((dx, w))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: L::WGrad) -> Result<()> {
        self.inner.weight_grad(cx, mb, w)
    }
}

/// A layer that saves its input, which somebody else can make again.
pub trait SavesInput: Layer<In = Tensor> {
    /// The input among what was saved.
    fn input_of(saved: &mut Self::Saved) -> &mut Tensor;
}

/// `inner(norm(x))`; with `recompute` the norm's output is dropped after forward and made again in backward from the
/// norm's own saved input and statistics (Megatron's `--recompute-modules layernorm`).
pub struct PreNorm<L> {
    /// The norm.
    pub norm: Norm,
    /// What reads its output.
    pub inner: L,
    /// Drop the norm's output.
    pub recompute: bool,
}

impl<L: SavesInput> Layer for PreNorm<L>
where
    L::Saved: Tensors,
{
    type In = Tensor;
    type Out = L::Out;
    type Saved = ((Tensor, Tensor), L::Saved);
    type WGrad = L::WGrad;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Tensor) -> Result<(L::Out, Self::Saved)> {
        let (n, norm) = self.norm.forward(cx, mb, x)?;
        let (y, mut inner) = self.inner.forward(cx, mb, n)?;
        if self.recompute {
            // A small stand-in holds the place until backward.
            let input = L::input_of(&mut inner);
            *input = norm.1.clone();
        }
        Ok((y, (norm, inner)))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: L::Out, saved: Self::Saved) -> Result<(Tensor, L::WGrad)> {
        let (norm, mut inner) = saved;
        if self.recompute {
            *L::input_of(&mut inner) = self.norm.replay(cx, &norm)?;
        }
        let (d, w) = self.inner.backward(cx, mb, dy, inner)?;
        let (dx, ()) = self.norm.backward(cx, mb, d, norm)?;
        Ok((dx, w))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: L::WGrad) -> Result<()> {
        self.inner.weight_grad(cx, mb, w)
    }
}
