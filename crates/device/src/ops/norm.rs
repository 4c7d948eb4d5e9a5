//! LayerNorm and RMSNorm over the last dim.
//!
//! RMSNorm (Zhang & Sennrich 2019): `y = x r w`, `r = 1/sqrt(mean(x^2) + eps)`
//!   `dx = r (g - x r^2 mean(g x))`, `g = dy w`;  `dw += sum_T dy x r`
//! LayerNorm (Ba et al. 2016): `y = (x - mu) r w + b`
//!   `dx = r (g - mean(g) - xh mean(g xh))`, `xh = (x - mu) r`;  `dw += sum_T dy xh`, `db += sum_T dy`
//! With `plus_one` the factor is `1 + w` (Megatron's `--apply-layernorm-1p`).
//! dx is overwritten; dw and db accumulate.

use super::{all_apart, expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{DType, Result, Stream, Tensor};

/// Normalisations.
pub trait NormOps {
    /// x `A[T,H]`, w `A[H]`, y `A[T,H]` (=), rstd `F32[T]` (=).
    fn rms_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        y: &mut Tensor,
        rstd: &mut Tensor,
    ) -> Result<()>;

    /// dx `A[T,H]` (=, may be dy), dw `F32[H]` (+=).
    #[allow(clippy::too_many_arguments)]
    fn rms_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dw: Option<&mut Tensor>,
    ) -> Result<()>;

    /// x `A[T,H]`, w and b `A[H]`, y `A[T,H]` (=), stats `F32[2,T]` (=): mean, then 1/std.
    #[allow(clippy::too_many_arguments)]
    fn layer_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        y: &mut Tensor,
        stats: &mut Tensor,
    ) -> Result<()>;

    /// dx `A[T,H]` (=, may be dy), dwb: dw and db `F32[H]` (+=).
    #[allow(clippy::too_many_arguments)]
    fn layer_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dwb: Option<(&mut Tensor, &mut Tensor)>,
    ) -> Result<()>;
}

/// Checks of all four; `per_row` statistics a row, y is dy in the backward pass. Gives (T, H).
fn check(
    op: &'static str,
    x: &Tensor,
    w: &[&Tensor],
    y: &Tensor,
    stats: &Tensor,
    per_row: usize,
) -> Result<(usize, usize)> {
    let h = w[0].numel();
    let t = x.numel() / h.max(1);
    expect_storage(op, "dtype of x", x)?;
    expect_numel(op, "elements of x", x, t * h)?;
    expect_numel(op, "elements of y", y, t * h)?;
    expect_dtype(op, "dtype of y", y, x.dtype())?;
    for w in w {
        expect_numel(op, "elements of w", w, h)?;
        expect_storage(op, "dtype of w", w)?;
        no_overlap(op, y, &[w], false)?;
    }
    expect_numel(op, "elements of the statistics", stats, per_row * t)?;
    expect_dtype(op, "dtype of the statistics", stats, DType::F32)?;
    no_overlap(op, y, &[stats], false)?;
    Ok((t, h))
}

/// Checks of the forward pass: those of [`check`], and x apart from what is written. Gives (T, H).
pub fn check_forward(
    op: &'static str,
    x: &Tensor,
    w: &[&Tensor],
    y: &Tensor,
    stats: &Tensor,
    per_row: usize,
) -> Result<(usize, usize)> {
    let size = check(op, x, w, y, stats, per_row)?;
    all_apart(op, &[y, stats], &[x])?;
    Ok(size)
}

/// Checks of the backward pass; dx may be dy, weight gradients are apart from everything. Gives (T, H).
#[allow(clippy::too_many_arguments)]
pub fn check_backward(
    op: &'static str,
    x: &Tensor,
    w: &Tensor,
    stats: &Tensor,
    per_row: usize,
    dy: &Tensor,
    dx: &Tensor,
    grads: &[&Tensor],
) -> Result<(usize, usize)> {
    let (t, h) = check(op, x, &[w], dy, stats, per_row)?;
    expect_numel(op, "elements of dx", dx, t * h)?;
    expect_dtype(op, "dtype of dx", dx, x.dtype())?;
    no_overlap(op, dx, &[x, w, stats], false)?;
    no_overlap(op, dx, &[dy], true)?;
    for dw in grads {
        expect_numel(op, "elements of dw", dw, h)?;
        expect_dtype(op, "dtype of dw", dw, DType::F32)?;
    }
    all_apart(op, grads, &[x, w, stats, dy, dx])?;
    Ok((t, h))
}
