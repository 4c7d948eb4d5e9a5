//! LayerNorm and RMSNorm over the last `width` elements. dx is new; dw and db accumulate in backward, whatever
//! `cx.when` says: they cost nothing next to a matrix product.

use ferrotron_base::ShardSpec;
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, DecayClass, Init, Layer, Micro, ParamId, ParamSpec};

use crate::Builder;
use crate::build::Sees;

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Mean and variance, weight and bias.
    Layer,
    /// Root mean square, weight only.
    Rms,
}

/// Which normalisation, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// Layer or RMS.
    pub kind: NormKind,
    /// Epsilon.
    pub eps: f32,
    /// The stored weight is the factor less 1 (`--apply-layernorm-1p`).
    pub plus_one: bool,
    /// Weight decay applies (`--apply-wd-to-qk-layernorm`).
    pub decay: bool,
}

/// A normalisation.
pub struct Norm {
    weight: ParamId,
    bias: Option<ParamId>,
    eps: f32,
    plus_one: bool,
    width: usize,
}

impl Norm {
    /// Registers `name.weight` (and `name.bias`) of `width` elements.
    pub fn new(b: &mut Builder<'_>, name: &str, width: usize, c: NormConfig, sees: Sees) -> Norm {
        let NormConfig { kind, eps, plus_one, decay } = c;
        let init = if plus_one { Init::Zeros } else { Init::Ones };
        let weight = ParamSpec::vector(ShardSpec::whole(format!("{name}.weight"), &[width]), init);
        let class = if decay { DecayClass::Decay } else { DecayClass::NoDecay };
        let weight = b.replicated(ParamSpec { decay: class, ..weight }, sees);
        let bias =
            (kind == NormKind::Layer).then(|| b.replicated_vector(format!("{name}.bias"), width, Init::Zeros, sees));
        Norm { weight, bias, eps, plus_one, width }
    }

    /// The output again from what forward saved, for those who did not keep it.
    pub fn replay(&self, cx: &Ctx, saved: &(Tensor, Tensor)) -> Result<Tensor> {
        Ok(self.run(cx, &saved.0)?.0)
    }

    fn run(&self, cx: &Ctx, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let rows = x.numel() / self.width;
        let mut y = cx.pool.alloc(x.dtype(), *x.shape())?;
        let w = cx.weight(self.weight);
        let stats = match self.bias {
            Some(b) => {
                let mut stats = cx.alloc_f32([2, rows])?;
                let b = cx.weight(b);
                let ops = cx.ops();
                ops.layer_norm(&cx.stream, self.eps, self.plus_one, x, &w.data, &b.data, &mut y, &mut stats)?;
                stats
            }
            None => {
                let mut rstd = cx.alloc_f32([rows])?;
                cx.ops().rms_norm(&cx.stream, self.eps, self.plus_one, x, &w.data, &mut y, &mut rstd)?;
                rstd
            }
        };
        Ok((y, stats))
    }
}

impl Layer for Norm {
    type In = Tensor;
    type Out = Tensor;
    /// x, statistics.
    type Saved = (Tensor, Tensor);
    type WGrad = ();

    fn forward(&self, cx: &mut Ctx, _: &Micro, x: Tensor) -> Result<(Tensor, (Tensor, Tensor))> {
        let (y, stats) = self.run(cx, &x)?;
        Ok((y, (x, stats)))
    }

    fn backward(&self, cx: &mut Ctx, _: &Micro, dy: Tensor, saved: (Tensor, Tensor)) -> Result<(Tensor, ())> {
        let (x, stats) = saved;
        let mut dx = cx.pool.alloc(x.dtype(), *x.shape())?;
        let w = cx.weight(self.weight).data;
        let grads = |cx: &mut Ctx, id: ParamId| if cx.trainable(id) { cx.grad(id).map(Some) } else { Ok(None) };
        let mut dw = grads(cx, self.weight)?;
        match self.bias {
            Some(b) => {
                let mut db = grads(cx, b)?;
                let dwb = dw.as_mut().zip(db.as_mut());
                cx.ops().layer_norm_backward(&cx.stream, self.plus_one, &x, &w, &stats, &dy, &mut dx, dwb)?;
                // The kernel has added to both gradients; these calls only take note of it.
                cx.add_grad(b, |_, _| Ok(()))?;
            }
            None => {
                let dw = dw.as_mut();
                cx.ops().rms_norm_backward(&cx.stream, self.plus_one, &x, &w, &stats, &dy, &mut dx, dw)?;
            }
        }
        cx.add_grad(self.weight, |_, _| Ok(()))?;
        Ok((dx, ()))
    }

    fn weight_grad(&self, _: &mut Ctx, _: &Micro, (): ()) -> Result<()> {
        Ok(())
    }
}
