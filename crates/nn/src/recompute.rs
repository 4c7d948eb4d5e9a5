//! Activation recomputation (Chen et al. 2016): keep the input, run forward again in backward. Counter-based random
//! numbers make the replay exact.

use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro, Tensors, WeightGrads};

/// A layer that may be recomputed: a run-time choice, per layer.
pub struct Recompute<L> {
    /// Keep the input only.
    pub on: bool,
    /// The layer.
    pub inner: L,
}

/// What a recomputed layer keeps.
pub enum Kept<X, S> {
    /// The input, to run again.
    Input(X),
    /// What the layer saved.
    Saved(S),
}

impl<X: Tensors, S: Tensors> Tensors for Kept<X, S> {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        match self {
            Kept::Input(x) => x.each(f),
            Kept::Saved(s) => s.each(f),
        }
    }
}

impl<L: Layer> Layer for Recompute<L>
where
    L::In: Clone + Tensors,
{
    type In = L::In;
    type Out = L::Out;
    type Saved = Kept<L::In, L::Saved>;
    type WGrad = L::WGrad;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: L::In) -> Result<(L::Out, Self::Saved)> {
        if !self.on {
            let (y, saved) = self.inner.forward(cx, mb, x)?;
            return Ok((y, Kept::Saved(saved)));
        }
        let (y, _) = self.inner.forward(cx, mb, x.clone())?;
        Ok((y, Kept::Input(x)))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: L::Out, saved: Self::Saved) -> Result<(L::In, L::WGrad)> {
        match saved {
            Kept::Saved(saved) => self.inner.backward(cx, mb, dy, saved),
            Kept::Input(x) => {
                // Deferred weight gradients would keep alive just what recomputation is there to free.
                let when = std::mem::replace(&mut cx.when, WeightGrads::Now);
                let (_, saved) = self.inner.forward(cx, mb, x)?;
                let done = self.inner.backward(cx, mb, dy, saved);
                cx.when = when;
                done
            }
        }
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: L::WGrad) -> Result<()> {
        self.inner.weight_grad(cx, mb, w)
    }
}
