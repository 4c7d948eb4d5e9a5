//! Activations of the MLP, plain and gated.
//!
//! Plain: `y = f(x)`, `dx = dy f'(x)`. Gated: x is `[T, 2F]` = (gate | up), `y = f(gate) * up`.
//! Backward reads x again: the activation's output is never saved.

use super::{expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{Result, Stream, Tensor};

/// The function f.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x Phi(x)` by erf (Hendrycks & Gimpel 2016).
    Gelu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`: what Megatron's fused bias-gelu computes.
    GeluTanh,
    /// `x sigmoid(1.702 x)`.
    QuickGelu,
    /// `x sigmoid(x)`; gated: SwiGLU (Shazeer 2020).
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (So et al., Primer, 2021).
    SquaredRelu,
}

/// Activations.
pub trait ActivationOps {
    /// y `A[T,F]` (=, may be x).
    fn activation(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()>;

    /// dx `A[T,F]` (=, may be dy).
    fn activation_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()>;

    /// x `A[T,2F]`, y `A[T,F]` (=).
    fn glu(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()>;

    /// dx `A[T,2F]` (=, may be x) from x and dy `A[T,F]`.
    fn glu_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()>;
}

/// Checks of the plain pair: all tensors alike. Forward (no `dy`): `out` may be x; backward: dy, but not x.
pub fn check_plain(op: &'static str, x: &Tensor, dy: Option<&Tensor>, out: &Tensor) -> Result<usize> {
    expect_storage(op, "dtype of x", x)?;
    for t in dy.into_iter().chain([out]) {
        expect_numel(op, "elements", t, x.numel())?;
        expect_dtype(op, "dtype", t, x.dtype())?;
    }
    no_overlap(op, out, &[x], dy.is_none())?;
    no_overlap(op, out, dy.as_slice(), true)?;
    Ok(x.numel())
}

/// Checks of the gated pair; gives (T, F). x and, backward, dx are `[T,2F]`; `narrow`, which is y or dy, `[T,F]`.
pub fn check_glu(op: &'static str, x: &Tensor, dx: Option<&Tensor>, narrow: &Tensor) -> Result<(usize, usize)> {
    let (t, f) = (narrow.rows(), narrow.cols());
    expect_storage(op, "dtype", narrow)?;
    for w in dx.into_iter().chain([x]) {
        expect_numel(op, "elements of the gated tensor", w, t * 2 * f)?;
        crate::error::expect(op, "rows of the gated tensor", t, w.rows())?;
        expect_dtype(op, "dtype", w, narrow.dtype())?;
        no_overlap(op, narrow, &[w], false)?;
    }
    if let Some(dx) = dx {
        no_overlap(op, dx, &[x], true)?;
    }
    Ok((t, f))
}
