//! Dropout whose mask is a function of (seed, site, step, sample, position, column), never of the layout.
//!
//! Element (t, c) is dropped when word 0 of `philox4x32(key, [sample[t], offset[t], c, 0])` is below
//! `drop_threshold(p)`; kept elements are scaled by 1/(1-p). The mask is recomputed in backward, never stored.
//! (Attention uses the fourth counter word for the head, and `head + 1` there, so that the two never meet.)

use super::{expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{DType, Error, Result, Stream, Tensor};

/// Probability and key of one dropout in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropSite {
    /// Probability to drop, in `[0, 1)`.
    pub p: f32,
    /// [`ferrotron_base::philox::dropout_key`] of seed, site and step.
    pub key: u64,
}

/// Dropout.
pub trait DropoutOps {
    /// `y = dropout(x) + residual`. x, y `A[T,C]` (y =, may be x or the residual); sample and offset `I32[T]`;
    /// `first_col` is the global column of column 0. Backward of the dropped branch is the same call on dy without a
    /// residual.
    #[allow(clippy::too_many_arguments)]
    fn dropout(
        &self,
        s: &Stream,
        site: DropSite,
        first_col: usize,
        sample: &Tensor,
        offset: &Tensor,
        x: &Tensor,
        residual: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()>;
}

impl DropSite {
    /// Checks shapes and dtypes; gives (T, C).
    pub fn check(
        &self,
        sample: &Tensor,
        offset: &Tensor,
        x: &Tensor,
        residual: Option<&Tensor>,
        y: &Tensor,
    ) -> Result<(usize, usize)> {
        let op = "dropout";
        if !(0.0..1.0).contains(&self.p) {
            return Err(Error::mismatch(op, "probability", "in [0, 1)", self.p));
        }
        expect_storage(op, "dtype of x", x)?;
        for t in [Some(y), residual].into_iter().flatten() {
            expect_numel(op, "elements", t, x.numel())?;
            expect_dtype(op, "dtype", t, x.dtype())?;
        }
        for ids in [sample, offset] {
            expect_numel(op, "ids", ids, x.rows())?;
            expect_dtype(op, "dtype of ids", ids, DType::I32)?;
            no_overlap(op, y, &[ids], false)?;
        }
        no_overlap(op, y, &[x], true)?;
        no_overlap(op, y, residual.as_slice(), true)?;
        Ok((x.rows(), x.cols()))
    }
}
