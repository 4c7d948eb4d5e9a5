//! Matrix products, row-major.
//!
//! `C[M,N] = alpha * op(A) op(B) + beta * C (+ bias[N])`, op = identity or transpose as stored.
//! A linear layer with weight `W[out,in]`: forward `Gemm::NT` (y = x W^T), input gradient `Gemm::NN` (dx = dy W),
//! weight gradient `Gemm::TN_ACC` (dW += dy^T x, C in F32 whatever A and B are).

use super::{Activation, ActivationOps, expect_dtype, expect_storage, no_overlap};
use crate::error::expect;
use crate::{DType, Result, Stream, Tensor};

/// Which product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// A is stored `[K,M]`.
    pub trans_a: bool,
    /// B is stored `[N,K]`.
    pub trans_b: bool,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of what C held. 0 means that C is not read (it may hold NaN).
    pub beta: f32,
}

impl Gemm {
    /// `C = A B^T`
    pub const NT: Gemm = Gemm { trans_a: false, trans_b: true, alpha: 1.0, beta: 0.0 };
    /// `C = A B`
    pub const NN: Gemm = Gemm { trans_a: false, trans_b: false, alpha: 1.0, beta: 0.0 };
    /// `C = A^T B`
    pub const TN: Gemm = Gemm { trans_a: true, trans_b: false, alpha: 1.0, beta: 0.0 };
    /// `C += A^T B`
    pub const TN_ACC: Gemm = Gemm { trans_a: true, trans_b: false, alpha: 1.0, beta: 1.0 };

    /// Checks shapes and dtypes; gives (M, N, K).
    pub fn check(&self, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &Tensor) -> Result<(usize, usize, usize)> {
        let (m, k) = if self.trans_a { (a.cols(), a.rows()) } else { (a.rows(), a.cols()) };
        let (n, kb) = if self.trans_b { (b.rows(), b.cols()) } else { (b.cols(), b.rows()) };
        expect("gemm", "K of B", k, kb)?;
        expect("gemm", "shape of C", (m, n), (c.rows(), c.cols()))?;
        expect_storage("gemm", "dtype of A", a)?;
        expect_dtype("gemm", "dtype of B", b, a.dtype())?;
        if c.dtype() != DType::F32 {
            expect_dtype("gemm", "dtype of C", c, a.dtype())?;
        }
        if let Some(bias) = bias {
            expect("gemm", "elements of bias", n, bias.numel())?;
            expect_storage("gemm", "dtype of bias", bias)?;
        }
        no_overlap("gemm", c, &[a, b], false)?;
        Ok((m, n, k))
    }
}

/// Checks of a product and the activation behind it; gives (M, N, K). `inner` is what the function is applied to, `outer`
/// what it gives, or, backward, the gradient that it is a factor of.
pub fn check_activated(
    op: &'static str,
    g: Gemm,
    a: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    inner: &Tensor,
    outer: &Tensor,
) -> Result<(usize, usize, usize)> {
    let sizes = g.check(a, b, bias, outer)?;
    expect(op, "beta", 0.0, g.beta)?;
    expect(op, "shape before the activation", (outer.rows(), outer.cols()), (inner.rows(), inner.cols()))?;
    expect_storage(op, "dtype", outer)?;
    expect_dtype(op, "dtype before the activation", inner, outer.dtype())?;
    no_overlap(op, outer, &[inner], false)?;
    no_overlap(op, inner, &[a, b], false)?;
    Ok(sizes)
}

/// Matrix products.
#[allow(clippy::too_many_arguments)] // operands of a product are many
pub trait GemmOps: ActivationOps {
    /// `c = alpha * op(a) op(b) + beta * c + bias`. A and B have one storage dtype; C has the same or F32; bias any
    /// storage dtype. The sum over K runs in f32 in an order that depends on the shape only.
    fn gemm(&self, s: &Stream, g: Gemm, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &mut Tensor) -> Result<()>;

    /// `inner = alpha op(a) op(b) + bias` and `y = f(inner)`, both of one storage dtype, by one kernel where the device has
    /// one; f is applied to the sum, or to what `inner` holds of it.
    fn gemm_activation(
        &self,
        s: &Stream,
        g: Gemm,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        f: Activation,
        inner: &mut Tensor,
        y: &mut Tensor,
    ) -> Result<()> {
        gemm_then_activation(self, s, g, a, b, bias, f, inner, y)
    }

    /// `d = f'(inner) * (alpha op(a) op(b))`: the product is the gradient of f's result, d that of its argument, of one
    /// storage dtype. The product is rounded to it, or not, before it is multiplied.
    fn gemm_activation_backward(
        &self,
        s: &Stream,
        g: Gemm,
        a: &Tensor,
        b: &Tensor,
        f: Activation,
        inner: &Tensor,
        d: &mut Tensor,
    ) -> Result<()> {
        gemm_then_slope(self, s, g, a, b, f, inner, d)
    }
}

/// [`GemmOps::gemm_activation`] by two kernels.
#[allow(clippy::too_many_arguments)] // as the op
pub fn gemm_then_activation(
    ops: &(impl GemmOps + ?Sized),
    s: &Stream,
    g: Gemm,
    a: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    f: Activation,
    inner: &mut Tensor,
    y: &mut Tensor,
) -> Result<()> {
    check_activated("gemm_activation", g, a, b, bias, inner, y)?;
    ops.gemm(s, g, a, b, bias, inner)?;
    ops.activation(s, f, inner, y)
}

/// [`GemmOps::gemm_activation_backward`] by two kernels.
#[allow(clippy::too_many_arguments)] // as the op
pub fn gemm_then_slope(
    ops: &(impl GemmOps + ?Sized),
    s: &Stream,
    g: Gemm,
    a: &Tensor,
    b: &Tensor,
    f: Activation,
    inner: &Tensor,
    d: &mut Tensor,
) -> Result<()> {
    check_activated("gemm_activation_backward", g, a, b, None, inner, d)?;
    ops.gemm(s, g, a, b, None, d)?;
    let product = d.clone();
    ops.activation_backward(s, f, inner, &product, d)
}
