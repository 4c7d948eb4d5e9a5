//! Calls whose arguments disagree: refused as a mismatch before any kernel runs.

use ferrotron_device::ops::{Activation, DropSite, Gemm, QkvDims, RopeDims};
use ferrotron_device::{DType, Result};

use super::Cases;
use crate::Rig;

pub(super) fn cases(cases: &mut Cases) {
    cases.add("refusals", "wrong shapes and dtypes".into(), refusals);
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
    rig.refused("unequal lengths", ops.add(s, &x.t, &w.t, &mut y.t));
    rig.refused("ids to floats", ops.copy(s, &ids.t, &mut row.t));
    rig.refused("sums of another width", ops.column_sum(s, &x.t, &mut row.t));
    Ok(())
}
