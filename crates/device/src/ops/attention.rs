//! Flash attention over packed sequences (Dao et al. 2022, 2023): no S x S buffer, in any direction.
//!
//! For sequence i, query rows `cu_q[i]..cu_q[i+1]` see key rows `cu_k[i]..cu_k[i+1]`. With Lq query and Lk key rows,
//! query r stands at position `p = r + Lk - Lq` of the keys (aligned at the end, as flash-attn does; context parallel
//! needs that). A sequence may have no queries: its keys get gradients of 0. Causal: keys `j <= p`; window w: also
//! `j > p - w`. Query head n reads KV group `n / (N/G)`.
//!
//! `o = softmax(scale q k^T) v`; saved: `lse[n,t] = ln sum_j exp(scale q k_j)`. Rows that see no key give o = 0 and
//! lse = -inf. Backward recomputes `P = exp(scale q k^T - lse)`:
//!   `dv = P^T do`, `dS = P (do v^T - rowsum(do o))`, `dq = scale dS k`, `dk = scale dS^T q`   (all overwritten)
//! With dropout the kept P is scaled by 1/(1-p) after the softmax; element (n, query, key) of a sample is dropped by
//! Philox of (key; sample, query offset, key offset, global head), the same under any layout.

use super::dropout::DropSite;
use super::{all_apart, expect_dtype, expect_numel, expect_storage};
use crate::error::expect;
use crate::{DType, Error, Result, Stream, Tensor};

/// Shape and kind of an attention call, as this rank sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDims {
    /// Query heads N.
    pub heads: usize,
    /// KV groups G; N is a multiple.
    pub groups: usize,
    /// D.
    pub head_dim: usize,
    /// Query sees only keys up to its own position.
    pub causal: bool,
    /// Query sees at most this many keys, its own included.
    pub window: Option<usize>,
    /// Factor of q k^T.
    pub scale: f32,
    /// Longest sequence, a bound for grids and scratch.
    pub max_len: usize,
    /// First of this rank's heads among all, for dropout.
    pub first_head: usize,
}

/// Dropout of attention probabilities.
#[derive(Clone, Copy)]
pub struct AttentionDrop<'a> {
    /// Probability and key.
    pub site: DropSite,
    /// `I32[Tq]`: global sample of each query row.
    pub sample: &'a Tensor,
    /// `I32[Tq]`: offset of each query row in its sample.
    pub offset_q: &'a Tensor,
    /// `I32[Tk]`: offset of each key row in its sample.
    pub offset_k: &'a Tensor,
}

/// Inputs of both directions.
#[derive(Clone, Copy)]
pub struct AttentionArgs<'a> {
    /// Shape and kind.
    pub dims: AttentionDims,
    /// `A[Tq,N,D]`
    pub q: &'a Tensor,
    /// `A[Tk,G,D]`
    pub k: &'a Tensor,
    /// `A[Tk,G,D]`
    pub v: &'a Tensor,
    /// `I32[B+1]`, first 0, last Tq. Its values are the caller's promise.
    pub cu_q: &'a Tensor,
    /// `I32[B+1]`, first 0, last Tk.
    pub cu_k: &'a Tensor,
    /// The values of `cu_q` and `cu_k` on the host, where the caller has them: devices whose kernels are launched by
    /// sequence would wait for theirs.
    pub host_cu: Option<(&'a [i32], &'a [i32])>,
    /// Dropout, if any.
    pub drop: Option<AttentionDrop<'a>>,
}

impl AttentionArgs<'_> {
    /// Checks of the forward pass; gives (Tq, Tk, B).
    pub fn check_forward(&self, o: &Tensor, lse: &Tensor) -> Result<(usize, usize, usize)> {
        let size = self.check(&[o], lse)?;
        all_apart("attention", &[o, lse], &[self.q, self.k, self.v, self.cu_q, self.cu_k])?;
        Ok(size)
    }

    /// Checks of the backward pass; gives (Tq, Tk, B).
    #[allow(clippy::too_many_arguments)]
    pub fn check_backward(
        &self,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &Tensor,
        dq: &Tensor,
        dk: &Tensor,
        dv: &Tensor,
    ) -> Result<(usize, usize, usize)> {
        let op = "attention_backward";
        let size = self.check(&[o, dout, dq], lse)?;
        for (what, x, like) in
            [("elements of dk", dk, self.k), ("elements of dv", dv, self.v), ("elements of delta", delta, lse)]
        {
            expect_numel(op, what, x, like.numel())?;
            expect_dtype(op, "dtype of a gradient", x, like.dtype())?;
        }
        all_apart(op, &[delta, dq, dk, dv], &[self.q, self.k, self.v, self.cu_q, self.cu_k, o, lse, dout])?;
        Ok(size)
    }

    /// Checks shapes and dtypes of inputs and of tensors shaped like q.
    fn check(&self, like_q: &[&Tensor], lse: &Tensor) -> Result<(usize, usize, usize)> {
        let op = "attention";
        let d = &self.dims;
        if d.groups == 0 || !d.heads.is_multiple_of(d.groups) {
            return Err(Error::mismatch(op, "heads", format!("a multiple of {} groups", d.groups), d.heads));
        }
        let (tq, tk) = (self.q.rows(), self.k.rows());
        expect_storage(op, "dtype of q", self.q)?;
        expect_numel(op, "elements of q", self.q, tq * d.heads * d.head_dim)?;
        for (what, x) in [("elements of k", self.k), ("elements of v", self.v)] {
            expect_numel(op, what, x, tk * d.groups * d.head_dim)?;
            expect_dtype(op, "dtype of k and v", x, self.q.dtype())?;
        }
        for o in like_q {
            expect_numel(op, "elements of o", o, self.q.numel())?;
            expect_dtype(op, "dtype of o", o, self.q.dtype())?;
        }
        expect_numel(op, "elements of lse", lse, d.heads * tq)?;
        expect_dtype(op, "dtype of lse", lse, DType::F32)?;
        expect(op, "sequences of k", self.cu_q.numel(), self.cu_k.numel())?;
        expect_dtype(op, "dtype of cu_seqlens", self.cu_q, DType::I32)?;
        expect_dtype(op, "dtype of cu_seqlens", self.cu_k, DType::I32)?;
        if let Some((q, k)) = self.host_cu {
            expect(op, "sequences on the host", (self.cu_q.numel(), self.cu_k.numel()), (q.len(), k.len()))?;
        }
        if let Some(drop) = &self.drop {
            expect_numel(op, "sample ids", drop.sample, tq)?;
            expect_numel(op, "query offsets", drop.offset_q, tq)?;
            expect_numel(op, "key offsets", drop.offset_k, tk)?;
            for ids in [drop.sample, drop.offset_q, drop.offset_k] {
                expect_dtype(op, "dtype of dropout ids", ids, DType::I32)?;
            }
        }
        Ok((tq, tk, self.cu_q.numel().saturating_sub(1)))
    }
}

/// Attention.
pub trait AttentionOps {
    /// o `A[Tq,N,D]` (=), lse `F32[N,Tq]` (=).
    fn attention(&self, s: &Stream, a: AttentionArgs<'_>, o: &mut Tensor, lse: &mut Tensor) -> Result<()>;

    /// dq, dk, dv (=) from o, lse and dout. `delta` is scratch `F32[N,Tq]` for rowsum(do o).
    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        &self,
        s: &Stream,
        a: AttentionArgs<'_>,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &mut Tensor,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
    ) -> Result<()>;
}
