//! One file per op family: the contract with shapes and maths, forward beside backward, which outputs are overwritten
//! (`=`) and which accumulate (`+=`), and the checks that every device runs before its kernel.
//!
//! Shape letters: T tokens (rows), S sequence, B sequences in a micro-batch, H hidden, N heads, G KV groups, D head
//! dim, F ffn, V vocabulary rows held here, E experts, P parameters in a flat range.
//!
//! Storage dtype of activations and weights is F32, BF16 or F16, written `A` below; kernels compute and accumulate in
//! f32. Statistics, losses and main gradients are F32, ids I32. Every op is deterministic: the same inputs give the
//! same bits whatever the number of threads.

pub mod activation;
pub mod attention;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod gemm;
pub mod layout;
pub mod moe;
pub mod norm;
pub mod optimizer;
pub mod rope;

pub use activation::{Activation, ActivationOps};
pub use attention::{AttentionArgs, AttentionDims, AttentionDrop, AttentionOps};
pub use cross_entropy::CrossEntropyOps;
pub use dropout::{DropSite, DropoutOps};
pub use elementwise::ElementwiseOps;
pub use embedding::EmbeddingOps;
pub use gemm::{Gemm, GemmOps};
pub use layout::{LayoutOps, QkvDims};
pub use moe::{MoeOps, RouteGrads};
pub use norm::NormOps;
pub use optimizer::{AdamConfig, OptimizerOps};
pub use rope::{RopeDims, RopeOps};

use crate::error::expect;
use crate::{DType, Error, Result, Tensor};

/// All op families of a device.
pub trait Ops:
    GemmOps
    + NormOps
    + RopeOps
    + LayoutOps
    + AttentionOps
    + ActivationOps
    + DropoutOps
    + EmbeddingOps
    + CrossEntropyOps
    + MoeOps
    + OptimizerOps
    + ElementwiseOps
{
    /// True when weights and activations can be stored in `dtype`.
    fn supports(&self, dtype: DType) -> bool;
}

/// Checks that a tensor has this dtype.
pub fn expect_dtype(op: &'static str, what: &'static str, t: &Tensor, dtype: DType) -> Result<()> {
    if t.dtype() == dtype { Ok(()) } else { Err(Error::mismatch(op, what, dtype, t.dtype())) }
}

/// Checks that a tensor has this many elements.
pub fn expect_numel(op: &'static str, what: &'static str, t: &Tensor, n: usize) -> Result<()> {
    expect(op, what, n, t.numel())
}

/// Checks that a tensor is an activation or weight: F32, BF16 or F16.
pub fn expect_storage(op: &'static str, what: &'static str, t: &Tensor) -> Result<()> {
    match t.dtype() {
        DType::F32 | DType::BF16 | DType::F16 => Ok(()),
        other => Err(Error::mismatch(op, what, "F32, BF16 or F16", other)),
    }
}

/// In debug builds, refuses an output that shares bytes with an input, unless it is that very input (`in_place`).
pub fn no_overlap(op: &'static str, out: &Tensor, inputs: &[&Tensor], in_place: bool) -> Result<()> {
    if cfg!(debug_assertions) {
        for t in inputs {
            if out.overlaps(t) && !(in_place && out.same_memory(t)) {
                return Err(Error::mismatch(op, "output memory", "apart from its inputs", (out, *t)));
            }
        }
    }
    Ok(())
}

/// In debug builds, refuses outputs that share bytes with an input or with each other.
pub fn all_apart(op: &'static str, outs: &[&Tensor], inputs: &[&Tensor]) -> Result<()> {
    for (i, out) in outs.iter().enumerate() {
        no_overlap(op, out, inputs, false)?;
        no_overlap(op, out, &outs[..i], false)?;
    }
    Ok(())
}
