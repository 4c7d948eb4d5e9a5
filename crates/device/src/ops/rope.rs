//! Rotary position embedding (Su et al., RoFormer, 2021), in place.
//!
//! Of each head's D elements the first `rot` are rotated in pairs by the angle of the token's position:
//! `(a, b) -> (a cos - b sin, b cos + a sin)`. Pair i is `(i, i + rot/2)`, or `(2i, 2i+1)` when interleaved.
//! The backward pass is the rotation by the negative angle (`inverse`). Tables come from the host, so that scaled
//! variants (Llama 3, YaRN with its magnitude) need no kernel of their own.

use super::{expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{DType, Error, Result, Stream, Tensor};

/// Shape of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeDims {
    /// Elements rotated of each head; even, at most D.
    pub rot: usize,
    /// Pairs are neighbours, as in GPT-J; else the two halves, as in GPT-NeoX and Llama.
    pub interleaved: bool,
}

/// Rotary embedding.
pub trait RopeOps {
    /// x `A[T,N,D]` rotated in place; positions `I32[T]`; cos and sin `F32[max positions, rot/2]`.
    #[allow(clippy::too_many_arguments)]
    fn rope(
        &self,
        s: &Stream,
        d: RopeDims,
        inverse: bool,
        cos: &Tensor,
        sin: &Tensor,
        positions: &Tensor,
        x: &mut Tensor,
    ) -> Result<()>;
}

impl RopeDims {
    /// Checks shapes and dtypes; gives (T, N, D). That positions stay below the table's rows is the caller's promise.
    pub fn check(&self, cos: &Tensor, sin: &Tensor, positions: &Tensor, x: &Tensor) -> Result<(usize, usize, usize)> {
        let op = "rope";
        let &[t, n, d] = &x.shape()[..] else { return Err(Error::mismatch(op, "shape of x", "[T,N,D]", x.shape())) };
        if !self.rot.is_multiple_of(2) || self.rot > d {
            return Err(Error::mismatch(op, "rotated elements", format!("even and at most {d}"), self.rot));
        }
        expect_storage(op, "dtype of x", x)?;
        expect_numel(op, "elements of positions", positions, t)?;
        expect_dtype(op, "dtype of positions", positions, DType::I32)?;
        for table in [cos, sin] {
            expect_dtype(op, "dtype of the table", table, DType::F32)?;
            expect_numel(op, "columns of the table", table, table.rows() * (self.rot / 2))?;
        }
        no_overlap(op, x, &[cos, sin, positions], false)?;
        Ok((t, n, d))
    }
}
