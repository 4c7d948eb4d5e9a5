//! Optimizer updates over flat ranges of parameters.
//!
//! Step-dependent numbers live in a device tensor, `scalars F32[8]`, so that a captured graph can be replayed:
//! index 0 lr, 1 weight decay, 2 gradient factor (1/loss scale * clip coefficient), 3 `1 - beta1^t`, 4 `1 - beta2^t`.
//! Gradients are read as `g = grad * scalars[2]`.
//!
//! Adam (Kingma & Ba 2015), decoupled decay (Loshchilov & Hutter 2019):
//!   `m = b1 m + (1-b1) g`, `v = b2 v + (1-b2) g^2`
//!   `w = w - lr * wd * w` first when decoupled, else `g += wd w` before the moments
//!   `w -= lr * (m / c1) / (sqrt(v / c2) + eps)`
//! SGD: `buf = mu buf + (g + wd w)`, `w -= lr buf` (torch's, no dampening; the first step's buf starts at 0).

use super::{all_apart, expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{DType, Result, Stream, Tensor};

/// Number of device scalars that updates read.
pub const SCALARS: usize = 8;
/// Index of the learning rate.
pub const LR: usize = 0;
/// Index of the weight decay.
pub const WEIGHT_DECAY: usize = 1;
/// Index of the factor that gradients are read with.
pub const GRAD_FACTOR: usize = 2;
/// Index of `1 - beta1^t`.
pub const BIAS1: usize = 3;
/// Index of `1 - beta2^t`.
pub const BIAS2: usize = 4;

/// Constants of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamConfig {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// AdamW's decay; else L2 in the gradient.
    pub decoupled: bool,
}

/// Updates.
pub trait OptimizerOps {
    /// master, m, v `F32[P]` updated in place from grad `F32[P]`; `param` (storage dtype, =) gets the rounded copy when
    /// master is not the parameter itself. `decay` and `lr_mult` are factors of scalars[1] and scalars[0] for this
    /// range.
    #[allow(clippy::too_many_arguments)]
    fn adam(
        &self,
        s: &Stream,
        c: AdamConfig,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        m: &mut Tensor,
        v: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()>;

    /// As [`OptimizerOps::adam`], with one momentum buffer.
    #[allow(clippy::too_many_arguments)]
    fn sgd(
        &self,
        s: &Stream,
        momentum: f32,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        buf: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()>;

    /// `out[0] += sum x^2` over x `A[P]`, out `F32[1]`. Partial sums in f64, in an order given by the length.
    fn sum_squares(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()>;

    /// `out[0] += number of zeros` of x `A[P]`, for `--log-num-zeros-in-grad`.
    fn count_zeros(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()>;
}

/// Checks flat ranges: `state` (master first) is updated from `grad`, `param` written. Gives P.
pub fn check(
    op: &'static str,
    scalars: &Tensor,
    grad: &Tensor,
    state: &[&Tensor],
    param: Option<&Tensor>,
) -> Result<usize> {
    let p = grad.numel();
    expect_numel(op, "scalars", scalars, SCALARS)?;
    expect_dtype(op, "dtype of scalars", scalars, DType::F32)?;
    for t in state.iter().chain([&grad]) {
        expect_numel(op, "elements of a range", t, p)?;
        expect_dtype(op, "dtype of a range", t, DType::F32)?;
    }
    if let Some(w) = param {
        expect_numel(op, "elements of the parameter range", w, p)?;
        expect_storage(op, "dtype of the parameter range", w)?;
        no_overlap(op, w, &[grad, scalars], false)?;
        no_overlap(op, w, state, false)?;
    }
    all_apart(op, state, &[grad, scalars])?;
    Ok(p)
}

/// Checks of the two reductions; gives P.
pub fn check_reduction(op: &'static str, x: &Tensor, out: &Tensor) -> Result<usize> {
    super::elementwise::check_f32(op, x, 1, out)?;
    Ok(x.numel())
}
