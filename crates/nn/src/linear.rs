//! Column- and row-parallel linear layers (Shoeybi et al., Megatron-LM, 2019; sequence parallel: Korthikanti et al.
//! 2022). `y = x W^T + b`, W `[out,in]`.
//!
//! Column: W's rows are split; forward gathers rows of x when sequence parallel, backward reduces dx.
//! Row: W's columns are split; forward reduces y, backward gathers dy. The weight gradient runs under the in-flight
//! reduction of dx. dW and db accumulate; dx is new.

use ferrotron_device::ops::{Activation, Gemm};
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Init, Layer, Micro, ParamId, ParamSpec, SharedEnd, WeightGrads};

use crate::Builder;
use crate::build::Sees;

/// Sizes and initial values of a linear layer.
#[derive(Clone, Debug)]
pub struct LinearSpec<'a> {
    /// Name without `.weight`.
    pub name: &'a str,
    /// Output features of each fused part (gate and up are two); a column-parallel layer splits each.
    pub out_parts: &'a [usize],
    /// Input features.
    pub inputs: usize,
    /// Has a bias, initially 0.
    pub bias: bool,
    /// Standard deviation of the initial weights.
    pub std: f32,
}

/// A linear layer whose output features are split over the tensor-parallel group.
pub struct ColumnLinear {
    weight: ParamId,
    bias: Option<ParamId>,
    out: usize,
}

/// Rows of a column-parallel layer's weight that a rank holds, where an even division will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRows {
    /// First row and number of rows of each part, in the order of the local copy.
    pub parts: Vec<(usize, usize)>,
    /// The last so many rows are held by other ranks too ([`SharedEnd`]).
    pub shared: usize,
    /// This rank counts them.
    pub counts: bool,
}

/// What a deferred weight gradient needs: x and dy, each as its layer holds it between steps.
pub type LinearGrad = Option<(Tensor, Tensor)>;

impl ColumnLinear {
    /// Registers the parameters, each part of the output split evenly.
    pub fn new(b: &mut Builder<'_>, l: &LinearSpec<'_>) -> ColumnLinear {
        let own = OwnRows { parts: b.even_rows(l.name, l.out_parts), shared: 0, counts: true };
        ColumnLinear::with_rows(b, l, &own)
    }

    /// Registers the parameters, of which this rank holds the rows that `own` says.
    pub fn with_rows(b: &mut Builder<'_>, l: &LinearSpec<'_>, own: &OwnRows) -> ColumnLinear {
        let rows: usize = l.out_parts.iter().sum();
        let shared =
            |width: usize| (own.shared > 0).then_some(SharedEnd { elements: own.shared * width, counts: own.counts });
        let weight = Builder::rows(&format!("{}.weight", l.name), &[rows, l.inputs], &own.parts);
        let out = weight.local_shape().rows();
        let bias = l.bias.then(|| {
            let spec = ParamSpec::vector(Builder::rows(&format!("{}.bias", l.name), &[rows], &own.parts), Init::Zeros);
            b.table.add(ParamSpec { shared_end: shared(1), ..spec })
        });
        let weight = ParamSpec { shared_end: shared(l.inputs), ..ParamSpec::matrix(weight, l.std) };
        ColumnLinear { weight: b.table.add(weight), bias, out }
    }

    /// Output features held here.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Forward, and `f` of what it gives: (fc(x), f(fc(x))).
    pub(crate) fn forward_activated(&self, cx: &mut Ctx, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        let full = cx.gather_rows(x.clone())?;
        let mut inner = cx.alloc([full.rows(), self.out])?;
        let mut y = cx.alloc([full.rows(), self.out])?;
        let (w, bias) = (cx.weight(self.weight), self.bias.map(|b| cx.weight(b)));
        let bias = bias.as_ref().map(|b| &b.data);
        cx.ops().gemm_activation(&cx.stream, Gemm::NT, &full, &w.data, bias, f, &mut inner, &mut y)?;
        Ok((inner, y))
    }
}

impl Layer for ColumnLinear {
    type In = Tensor;
    type Out = Tensor;
    type Saved = Tensor;
    type WGrad = LinearGrad;

    fn forward(&self, cx: &mut Ctx, _: &Micro, x: Tensor) -> Result<(Tensor, Tensor)> {
        let full = cx.gather_rows(x.clone())?;
        let mut y = cx.alloc([full.rows(), self.out])?;
        let (w, bias) = (cx.weight(self.weight), self.bias.map(|b| cx.weight(b)));
        cx.ops().gemm(&cx.stream, Gemm::NT, &full, &w.data, bias.as_ref().map(|b| &b.data), &mut y)?;
        Ok((y, x))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, x: Tensor) -> Result<(Tensor, LinearGrad)> {
        let mut dx = cx.alloc([dy.rows(), x.cols()])?;
        cx.ops().gemm(&cx.stream, Gemm::NN, &dy, &cx.weight(self.weight).data, None, &mut dx)?;
        let dx = cx.reduce_rows(dx)?;
        let mut later = Some((x, dy));
        if cx.when == WeightGrads::Now {
            self.weight_grad(cx, mb, later.take())?;
        }
        Ok((dx.wait(), later))
    }

    fn weight_grad(&self, cx: &mut Ctx, _: &Micro, w: LinearGrad) -> Result<()> {
        let Some((x, dy)) = w else { return Ok(()) };
        if cx.trainable(self.weight) {
            let x = cx.gather_rows(x)?;
            cx.accumulate_weight_grad(self.weight, &dy, &x)?;
        }
        self.bias.map_or(Ok(()), |b| cx.accumulate_bias_grad(b, &dy))
    }
}

/// A linear layer whose input features are split over the tensor-parallel group.
pub struct RowLinear {
    weight: ParamId,
    bias: Option<ParamId>,
    out: usize,
}

impl RowLinear {
    /// Registers the parameters.
    pub fn new(b: &mut Builder<'_>, l: &LinearSpec<'_>) -> RowLinear {
        let out = l.out_parts.iter().sum();
        let weight = b.split_cols(&format!("{}.weight", l.name), out, l.inputs);
        let bias = l.bias.then(|| b.replicated_vector(format!("{}.bias", l.name), out, Init::Zeros, Sees::All));
        RowLinear { weight: b.table.add(ParamSpec::matrix(weight, l.std)), bias, out }
    }
}

impl Layer for RowLinear {
    type In = Tensor;
    type Out = Tensor;
    type Saved = Tensor;
    type WGrad = LinearGrad;

    fn forward(&self, cx: &mut Ctx, _: &Micro, x: Tensor) -> Result<(Tensor, Tensor)> {
        let mut y = cx.alloc([x.rows(), self.out])?;
        // The bias enters the sum once: with the first rank's part.
        let bias = self.bias.filter(|_| cx.groups.tp.rank() == 0).map(|b| cx.weight(b));
        let w = cx.weight(self.weight);
        cx.ops().gemm(&cx.stream, Gemm::NT, &x, &w.data, bias.as_ref().map(|b| &b.data), &mut y)?;
        Ok((cx.reduce_rows(y)?.wait(), x))
    }

    fn backward(&self, cx: &mut Ctx, _: &Micro, dy: Tensor, x: Tensor) -> Result<(Tensor, LinearGrad)> {
        self.backward_through(cx, dy, x, |cx, dy, w, dx| cx.ops().gemm(&cx.stream, Gemm::NN, dy, w, None, dx))
    }

    fn weight_grad(&self, cx: &mut Ctx, _: &Micro, w: LinearGrad) -> Result<()> {
        let Some((x, dy)) = w else { return Ok(()) };
        let full = cx.gather_rows(dy)?;
        self.accumulate(cx, &full, &x)
    }
}

impl RowLinear {
    /// Backward through `x = f(inner)` too: gives the gradient of `inner`.
    pub(crate) fn backward_activated(
        &self,
        cx: &mut Ctx,
        dy: Tensor,
        x: Tensor,
        f: Activation,
        inner: &Tensor,
    ) -> Result<(Tensor, LinearGrad)> {
        self.backward_through(cx, dy, x, |cx, dy, w, dx| {
            cx.ops().gemm_activation_backward(&cx.stream, Gemm::NN, dy, w, f, inner, dx)
        })
    }

    /// Backward; `product` gives dx from all rows of dy and the weight.
    fn backward_through(
        &self,
        cx: &mut Ctx,
        dy: Tensor,
        x: Tensor,
        product: impl FnOnce(&Ctx, &Tensor, &Tensor, &mut Tensor) -> Result<()>,
    ) -> Result<(Tensor, LinearGrad)> {
        let full = cx.gather_rows(dy.clone())?;
        let mut dx = cx.alloc([x.rows(), x.cols()])?;
        product(cx, &full, &cx.weight(self.weight).data, &mut dx)?;
        if cx.when == WeightGrads::Later {
            // Keep this rank's rows of dy, not all of them: they are gathered again.
            return Ok((dx, Some((x, dy))));
        }
        self.accumulate(cx, &full, &x)?;
        Ok((dx, None))
    }

    fn accumulate(&self, cx: &mut Ctx, dy: &Tensor, x: &Tensor) -> Result<()> {
        cx.accumulate_weight_grad(self.weight, dy, x)?;
        self.bias.map_or(Ok(()), |b| cx.accumulate_bias_grad(b, dy))
    }
}
