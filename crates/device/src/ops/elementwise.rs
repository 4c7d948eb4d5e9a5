//! Element by element, and the two small reductions that layers need.

use super::{expect_dtype, expect_numel, expect_storage};
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

/// Checks that all have x's element count and dtype; gives the count.
pub fn check_same(op: &'static str, x: &Tensor, others: &[&Tensor]) -> Result<usize> {
    expect_storage(op, "dtype", x)?;
    for t in others {
        expect_numel(op, "elements", t, x.numel())?;
        expect_dtype(op, "dtype", t, x.dtype())?;
    }
    Ok(x.numel())
}

/// Checks a copy: equal counts; equal dtypes or both storage dtypes.
pub fn check_copy(x: &Tensor, y: &Tensor) -> Result<usize> {
    expect_numel("copy", "elements", y, x.numel())?;
    if x.dtype() != y.dtype() {
        expect_storage("copy", "dtype of x", x)?;
        expect_storage("copy", "dtype of y", y)?;
    }
    Ok(x.numel())
}

/// Checks a storage tensor against an F32 one of `n` elements.
pub fn check_f32(op: &'static str, x: &Tensor, n: usize, f32s: &[&Tensor]) -> Result<()> {
    expect_storage(op, "dtype of x", x)?;
    for t in f32s {
        expect_numel(op, "elements", t, n)?;
        expect_dtype(op, "dtype", t, DType::F32)?;
    }
    Ok(())
}
