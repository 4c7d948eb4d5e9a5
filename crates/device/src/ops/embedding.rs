//! Row lookup, over the whole vocabulary or one rank's rows of it.
//!
//! `y[t] (+)= w[ids[t] - first]` when that row is held here, else 0 (or nothing, when accumulating).
//! Backward: `dw[ids[t] - first] += dy[t]`, in the order of t.

use super::{all_apart, expect_dtype, expect_numel, expect_storage};
use crate::{DType, Result, Stream, Tensor};

/// Lookups.
pub trait EmbeddingOps {
    /// ids `I32[T]`, w `A[V,H]`, y `A[T,H]` (= or, with `accumulate`, +=).
    #[allow(clippy::too_many_arguments)]
    fn embedding(
        &self,
        s: &Stream,
        ids: &Tensor,
        first: usize,
        w: &Tensor,
        accumulate: bool,
        y: &mut Tensor,
    ) -> Result<()>;

    /// dw `F32[V,H]` (+=) from dy `A[T,H]`.
    fn embedding_backward(&self, s: &Stream, ids: &Tensor, first: usize, dy: &Tensor, dw: &mut Tensor) -> Result<()>;
}

/// Checks the lookup; gives (T, V, H).
pub fn check(ids: &Tensor, w: &Tensor, y: &Tensor) -> Result<(usize, usize, usize)> {
    let op = "embedding";
    expect_dtype(op, "dtype of the table", w, y.dtype())?;
    all_apart(op, &[y], &[ids, w])?;
    check_rows(op, ids, w, y)
}

/// Checks the backward pass; gives (T, V, H).
pub fn check_backward(ids: &Tensor, dy: &Tensor, dw: &Tensor) -> Result<(usize, usize, usize)> {
    let op = "embedding_backward";
    expect_dtype(op, "dtype of dw", dw, DType::F32)?;
    all_apart(op, &[dw], &[ids, dy])?;
    check_rows(op, ids, dw, dy)
}

fn check_rows(op: &'static str, ids: &Tensor, table: &Tensor, rows: &Tensor) -> Result<(usize, usize, usize)> {
    let (t, v, h) = (ids.numel(), table.rows(), table.cols());
    expect_dtype(op, "dtype of ids", ids, DType::I32)?;
    expect_storage(op, "dtype", rows)?;
    expect_numel(op, "elements of the rows", rows, t * h)?;
    Ok((t, v, h))
}
