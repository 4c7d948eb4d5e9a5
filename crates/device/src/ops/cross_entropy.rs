//! Cross-entropy over the vocabulary in pieces, so that the logits `[T,V]` never exist as a whole.
//!
//! The head computes logits of a chunk of rows, `z F32[R,V]` (V = vocabulary rows of this rank), and calls, forward:
//!   `ce_stats`: m = max_v z, s = sum_v exp(z - m), x = z[label] or 0 when the label is another rank's   (all =)
//!   (tensor parallel: all-reduce max of m; `ce_rescale` brings s to it; all-reduce sum of s and x)
//!   `ce_loss`: lse = m + ln s, loss = lse - x
//! and backward, with logits computed again:
//!   `ce_backward`: dz = (exp(z - lse) - [v = label]) * weight[t] * scale[0]   (=)
//! (Milakov & Gimelshein 2018 for the running form; Megatron's `vocab_parallel_cross_entropy` for the parallel one.)

use super::{all_apart, expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::{DType, Result, Stream, Tensor};

/// Cross-entropy pieces. All statistics are F32.
pub trait CrossEntropyOps {
    /// z `F32[R,V]`, labels `I32[R]`; max, sum, target `F32[R]` (=). `first` is the vocabulary row of column 0.
    #[allow(clippy::too_many_arguments)]
    fn ce_stats(
        &self,
        s: &Stream,
        z: &Tensor,
        labels: &Tensor,
        first: usize,
        max: &mut Tensor,
        sum: &mut Tensor,
        target: &mut Tensor,
    ) -> Result<()>;

    /// `sum *= exp(old_max - new_max)`, all `F32[T]`.
    fn ce_rescale(&self, s: &Stream, old_max: &Tensor, new_max: &Tensor, sum: &mut Tensor) -> Result<()>;

    /// lse and loss `F32[T]` (=) from the three statistics.
    #[allow(clippy::too_many_arguments)]
    fn ce_loss(
        &self,
        s: &Stream,
        max: &Tensor,
        sum: &Tensor,
        target: &Tensor,
        lse: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()>;

    /// dz `A[R,V]` (=, may be z when that is its dtype); lse and weight `F32[R]`; scale `F32[1]`.
    #[allow(clippy::too_many_arguments)]
    fn ce_backward(
        &self,
        s: &Stream,
        z: &Tensor,
        labels: &Tensor,
        first: usize,
        lse: &Tensor,
        weight: &Tensor,
        scale: &Tensor,
        dz: &mut Tensor,
    ) -> Result<()>;
}

/// Checks of `ce_stats`, with its three outputs; gives (R, V).
pub fn check_stats(z: &Tensor, labels: &Tensor, stats: [&Tensor; 3]) -> Result<(usize, usize)> {
    all_apart("ce_stats", &stats, &[z, labels])?;
    check("ce_stats", z, labels, &stats)
}

/// Checks of `ce_rescale`; gives T.
pub fn check_rescale(old_max: &Tensor, new_max: &Tensor, sum: &Tensor) -> Result<usize> {
    let op = "ce_rescale";
    check_rows(op, sum.numel(), &[old_max, new_max, sum])?;
    no_overlap(op, sum, &[old_max, new_max], false)?;
    Ok(sum.numel())
}

/// Checks of `ce_loss`, with its inputs max, sum and target; gives T.
pub fn check_loss(stats: [&Tensor; 3], lse: &Tensor, loss: &Tensor) -> Result<usize> {
    let (op, n) = ("ce_loss", stats[0].numel());
    check_rows(op, n, &stats)?;
    check_rows(op, n, &[lse, loss])?;
    all_apart(op, &[lse, loss], &stats)?;
    Ok(n)
}

/// Checks of `ce_backward`; dz may be z. Gives (R, V).
pub fn check_backward(
    z: &Tensor,
    labels: &Tensor,
    lse: &Tensor,
    weight: &Tensor,
    scale: &Tensor,
    dz: &Tensor,
) -> Result<(usize, usize)> {
    let op = "ce_backward";
    expect_numel(op, "elements of dz", dz, z.numel())?;
    expect_storage(op, "dtype of dz", dz)?;
    expect_numel(op, "elements of scale", scale, 1)?;
    expect_dtype(op, "dtype of scale", scale, DType::F32)?;
    no_overlap(op, dz, &[z], dz.dtype() == z.dtype())?;
    no_overlap(op, dz, &[labels, lse, weight, scale], false)?;
    check(op, z, labels, &[lse, weight])
}

/// Checks logits against labels and statistics; gives (R, V).
fn check(op: &'static str, z: &Tensor, labels: &Tensor, per_row: &[&Tensor]) -> Result<(usize, usize)> {
    let (r, v) = (z.rows(), z.cols());
    expect_dtype(op, "dtype of the logits", z, DType::F32)?;
    expect_numel(op, "labels", labels, r)?;
    expect_dtype(op, "dtype of labels", labels, DType::I32)?;
    check_rows(op, r, per_row)?;
    Ok((r, v))
}

/// Checks statistics `F32[n]`.
fn check_rows(op: &'static str, n: usize, per_row: &[&Tensor]) -> Result<()> {
    for t in per_row {
        expect_numel(op, "elements of a statistic", t, n)?;
        expect_dtype(op, "dtype of a statistic", t, DType::F32)?;
    }
    Ok(())
}
