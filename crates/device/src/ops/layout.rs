//! Rearrangements between a fused projection and the tensors that attention takes.
//!
//! Megatron's fused qkv row holds, per KV group, the queries of the group, then one key, then one value head:
//! `[G, (N/G + 2), D]` (megatron/core/transformer/attention.py, `get_query_key_value_tensors`).

use super::{all_apart, expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{Error, Result, Stream, Tensor};

/// Heads of a fused qkv projection as this rank holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkvDims {
    /// Query heads.
    pub heads: usize,
    /// Key/value groups.
    pub groups: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl QkvDims {
    /// Columns of the fused projection.
    pub fn fused_cols(&self) -> usize {
        (self.heads + 2 * self.groups) * self.head_dim
    }

    /// Checks shapes and dtypes, N a multiple of G; gives T.
    pub fn check(&self, op: &'static str, qkv: &Tensor, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<usize> {
        if self.groups == 0 || self.head_dim == 0 || !self.heads.is_multiple_of(self.groups) {
            return Err(Error::mismatch(op, "heads", format!("a multiple of {} groups", self.groups), self));
        }
        let t = qkv.rows();
        expect_storage(op, "dtype of qkv", qkv)?;
        expect_numel(op, "elements of qkv", qkv, t * self.fused_cols())?;
        expect_numel(op, "elements of q", q, t * self.heads * self.head_dim)?;
        for (what, x) in [("dtype of q", q), ("dtype of k", k), ("dtype of v", v)] {
            expect_dtype(op, what, x, qkv.dtype())?;
            no_overlap(op, x, &[qkv], false)?;
        }
        expect_numel(op, "elements of k", k, t * self.groups * self.head_dim)?;
        expect_numel(op, "elements of v", v, t * self.groups * self.head_dim)?;
        all_apart(op, &[q, k, v], &[])?;
        Ok(t)
    }
}

/// Splits and merges.
pub trait LayoutOps {
    /// qkv `A[T, (N+2G)D]` into q `A[T,N,D]`, k and v `A[T,G,D]` (=).
    #[allow(clippy::too_many_arguments)]
    fn qkv_split(
        &self,
        s: &Stream,
        d: QkvDims,
        qkv: &Tensor,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &mut Tensor,
    ) -> Result<()>;

    /// The inverse: dqkv (=) from dq, dk, dv.
    #[allow(clippy::too_many_arguments)]
    fn qkv_merge(&self, s: &Stream, d: QkvDims, q: &Tensor, k: &Tensor, v: &Tensor, qkv: &mut Tensor) -> Result<()>;
}
