//! Calls whose arguments disagree: refused as a mismatch before any kernel runs.

use ferrotron_device::ops::{Activation, DropSite, Gemm, QkvDims, RopeDims};
use ferrotron_device::{DType, Result};

use super::Cases;
use crate::Rig;

pub(super) fn cases(cases: &mut Cases) {
    cases.add("refusals", "wrong shapes and dtypes".into(), refusals);
    // The check costs time in debug builds only.
    if cfg!(debug_assertions) {
        cases.add("refusals", "outputs that share memory".into(), overlaps);
    }
}

fn refusals(rig: &Rig) -> Result<()> {
    let (ops, s) = (rig.ops(), rig.s());
    let (x, w) = (rig.random(DType::F32, [2, 6])?, rig.random(DType::F32, [6])?);
    let short = rig.random(DType::F32, [5])?;
    let half = rig.random(DType::BF16, [2, 6])?;
    let (mut y, mut row) = (rig.output(DType::F32, [2, 6])?, rig.output(DType::F32, [2])?);
    let ids = rig.ids(&[0, 1])?;

    rig.refused("a K that disagrees", ops.gemm(s, Gemm::NN, &x.t, &x.t, None, &mut y.t));
    rig.refused("a weight of 5 for rows of 6", ops.rms_norm(s, 1e-5, false, &x.t, &short.t, &mut y.t, &mut row.t));
    rig.refused("y of another dtype", ops.rms_norm(s, 1e-5, false, &half.t, &w.t, &mut y.t, &mut row.t));
    rig.refused("one statistic a row", ops.layer_norm(s, 1e-5, false, &x.t, &w.t, &w.t, &mut y.t, &mut row.t));
    let d = RopeDims { rot: 3, interleaved: false };
    let mut heads = rig.random(DType::F32, [2, 1, 6])?;
    rig.refused("an odd rotation", ops.rope(s, d, false, &x.t, &x.t, &ids.t, &mut heads.t));
    let d = QkvDims { heads: 2, groups: 1, head_dim: 2 };
    let (mut q, mut k, mut v) =
        (rig.output(DType::F32, [2, 4])?, rig.output(DType::F32, [2, 2])?, rig.output(DType::F32, [2, 2])?);
    rig.refused("6 columns for 8", ops.qkv_split(s, d, &x.t, &mut q.t, &mut k.t, &mut v.t));
    let d = QkvDims { heads: 1, groups: 2, head_dim: 1 };
    rig.refused("one head for two groups", {
        let (qkv, mut q) = (rig.random(DType::F32, [2, 5])?, rig.output(DType::F32, [2, 1])?);
        ops.qkv_split(s, d, &qkv.t, &mut q.t, &mut k.t, &mut v.t)
    });
    rig.refused("two dtypes", ops.activation(s, Activation::Silu, &half.t, &mut y.t));
    rig.refused("a gate that is not twice as wide", ops.glu(s, Activation::Silu, &x.t, &mut y.t));
    let site = DropSite { p: 1.0, key: 0 };
    rig.refused("p = 1", ops.dropout(s, site, 0, &ids.t, &ids.t, &x.t, None, &mut y.t));
    rig.refused("rows that disagree", ops.embedding(s, &ids.t, 0, &x.t, false, &mut q.t));
    rig.refused("a table of another dtype", ops.embedding(s, &ids.t, 0, &half.t, false, &mut y.t));
    rig.refused("a main gradient in bf16", {
        let mut dw = rig.random(DType::BF16, [2, 6])?;
        ops.embedding_backward(s, &ids.t, 0, &x.t, &mut dw.t)
    });
    let (mut a, mut b, mut c) =
        (rig.output(DType::F32, [2])?, rig.output(DType::F32, [2])?, rig.output(DType::F32, [3])?);
    rig.refused("three targets for two rows", ops.ce_stats(s, &x.t, &ids.t, 0, &mut a.t, &mut b.t, &mut c.t));
    rig.refused("five scalars", ops.sgd(s, 0.9, 1.0, 1.0, &short.t, &w.t, &mut a.t, &mut b.t, None));
    rig.refused("three of two experts", {
        let mut experts = rig.ids(&[0; 6])?;
        experts.t = experts.t.reshape([2, 3])?;
        let (z, mut p) = (rig.random(DType::F32, [2, 2])?, rig.output(DType::F32, [2, 2])?);
        ops.route(s, true, &z.t, &mut p.t, &mut a.t, &mut experts.t, &mut y.t)
    });
    rig.refused("places for two of three rows", {
        let (rows, mut out) = (rig.random(DType::F32, [3, 6])?, rig.output(DType::F32, [2, 6])?);
        ops.combine(s, &rows.t, &ids.t, None, &mut out.t)
    });
    rig.refused("no index a row", ops.gather_rows(s, &x.t, &ids.t, 0, &mut y.t));
    rig.refused("unequal lengths", ops.add(s, &x.t, &w.t, &mut y.t));
    rig.refused("ids to floats", ops.copy(s, &ids.t, &mut row.t));
    rig.refused("sums of another width", ops.column_sum(s, &x.t, &mut row.t));
    Ok(())
}

/// What is neither apart nor, where the contract allows it, the very same memory.
fn overlaps(rig: &Rig) -> Result<()> {
    let (ops, s) = (rig.ops(), rig.s());
    let all = rig.random(DType::F32, [40])?;
    let part = |start: usize, rows: usize| all.t.view(start, [rows, 4]);
    let (x, other, mut shifted, mut itself) = (part(0, 2), part(20, 2), part(4, 2), part(0, 2));
    let (w, ids) = (rig.random(DType::F32, [4])?, rig.ids(&[0, 1])?);
    let (mut row, mut free) = (rig.output(DType::F32, [2])?, rig.output(DType::F32, [2, 4])?);
    let site = DropSite { p: 0.5, key: 1 };

    rig.refused("activation", ops.activation(s, Activation::Silu, &x, &mut shifted));
    rig.refused("dx over x", ops.activation_backward(s, Activation::Silu, &x, &other, &mut itself));
    rig.refused("add", ops.add(s, &x, &other, &mut shifted));
    rig.refused("copy", ops.copy(s, &x, &mut shifted));
    rig.refused("dropout", ops.dropout(s, site, 0, &ids.t, &ids.t, &other, Some(&x), &mut shifted));
    rig.refused("axpy", ops.axpy(s, 1.0, &x, &mut itself));
    rig.refused("y over x", ops.rms_norm(s, 1e-5, false, &x, &w.t, &mut itself, &mut row.t));
    rig.refused("dx over x", ops.rms_norm_backward(s, false, &x, &w.t, &row.t, &other, &mut itself, None));
    let mut dw = all.t.view(4, [4]);
    rig.refused("dw over x", ops.rms_norm_backward(s, false, &x, &w.t, &row.t, &other, &mut free.t, Some(&mut dw)));
    rig.refused("dw over dy", ops.embedding_backward(s, &ids.t, 0, &x, &mut shifted));
    let (mut max, mut sum) = (all.t.view(30, [2]), all.t.view(31, [2]));
    rig.refused("max over sum", ops.ce_stats(s, &x, &ids.t, 0, &mut max, &mut sum, &mut row.t));
    rig.refused("dz beside z", ops.ce_backward(s, &x, &ids.t, 0, &row.t, &row.t, &w.t.view(0, [1]), &mut shifted));
    rig.refused("y over x", ops.gather_rows(s, &x, &ids.t, 1, &mut shifted));
    let scalars = rig.random(DType::F32, [8])?;
    let (mut master, mut state) = (part(20, 2), part(24, 2));
    rig.refused("momentum over master", ops.sgd(s, 0.9, 1.0, 1.0, &scalars.t, &x, &mut master, &mut state, None));
    let mut grad = part(0, 2);
    rig.refused("master over gradient", ops.sgd(s, 0.9, 1.0, 1.0, &scalars.t, &x, &mut grad, &mut free.t, None));
    Ok(())
}
