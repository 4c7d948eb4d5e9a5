//! Element by element, and the two small reductions that layers need.

use super::{expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{DType, Result, Stream, Tensor};

/// Plain loops over elements.
pub trait ElementwiseOps {
    /// `y = value` (any storage dtype).
    fn fill(&self, s: &Stream, value: f32, y: &mut Tensor) -> Result<()>;

    /// `y = x`, converting between storage dtypes (round to nearest even); equal dtypes copy bytes (I32 too).
    fn copy(&self, s: &Stream, x: &Tensor, y: &mut Tensor) -> Result<()>;

    /// `y = a + b`, one dtype. y may be a or b.
    fn add(&self, s: &Stream, a: &Tensor, b: &Tensor, y: &mut Tensor) -> Result<()>;

    /// `y += alpha * x`, y F32, x any storage dtype: accumulation into main gradients.
    fn axpy(&self, s: &Stream, alpha: f32, x: &Tensor, y: &mut Tensor) -> Result<()>;

    /// `x *= factor[0]`, factor `F32[1]`.
    fn scale(&self, s: &Stream, factor: &Tensor, x: &mut Tensor) -> Result<()>;

    /// `out[c] += sum_t x[t,c]`, x `A[T,C]`, out `F32[C]`: bias gradients. Summed in the order of t.
    fn column_sum(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()>;

    /// `out[0] += sum_t x[t] w[t]`, all F32: losses. Partial sums in f64, in an order given by the length.
    fn weighted_sum(&self, s: &Stream, x: &Tensor, w: &Tensor, out: &mut Tensor) -> Result<()>;
}

/// Checks that a, b and y, which may be either, have one element count and dtype; gives the count.
pub fn check_same(op: &'static str, a: &Tensor, b: &Tensor, y: &Tensor) -> Result<usize> {
    expect_storage(op, "dtype", a)?;
    for t in [b, y] {
        expect_numel(op, "elements", t, a.numel())?;
        expect_dtype(op, "dtype", t, a.dtype())?;
    }
    no_overlap(op, y, &[a, b], true)?;
    Ok(a.numel())
}

/// Checks a copy: equal counts; equal dtypes or both storage dtypes; apart, unless it copies a tensor onto itself.
pub fn check_copy(x: &Tensor, y: &Tensor) -> Result<usize> {
    expect_numel("copy", "elements", y, x.numel())?;
    if x.dtype() != y.dtype() {
        expect_storage("copy", "dtype of x", x)?;
        expect_storage("copy", "dtype of y", y)?;
    }
    no_overlap("copy", y, &[x], x.dtype() == y.dtype())?;
    Ok(x.numel())
}

/// Checks a storage tensor against an F32 one of `n` elements, apart from it.
pub fn check_f32(op: &'static str, x: &Tensor, n: usize, other: &Tensor) -> Result<()> {
    expect_storage(op, "dtype of x", x)?;
    expect_numel(op, "elements", other, n)?;
    expect_dtype(op, "dtype", other, DType::F32)?;
    no_overlap(op, other, &[x], false)
}

/// Checks a weighted sum; gives the number of terms.
pub fn check_weighted_sum(x: &Tensor, w: &Tensor, out: &Tensor) -> Result<usize> {
    let op = "weighted_sum";
    expect_numel(op, "weights", w, x.numel())?;
    for t in [x, w] {
        expect_dtype(op, "dtype", t, DType::F32)?;
        check_f32(op, t, 1, out)?;
    }
    Ok(x.numel())
}
