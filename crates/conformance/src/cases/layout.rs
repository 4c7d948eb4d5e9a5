//! Splitting and merging fused projections: bits are moved, nothing is computed.

use ferrotron_device::ops::QkvDims;
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::layout as reference;
use crate::{Rig, Tol};

pub(super) fn cases(cases: &mut Cases) {
    for (t, heads, groups, head_dim) in
        [(0, 2, 1, 4), (1, 1, 1, 1), (3, 4, 4, 5), (5, 8, 2, 16), (7, 6, 1, 64), (70, 4, 2, 33)]
    {
        for dtype in STORAGE {
            let d = QkvDims { heads, groups, head_dim };
            let name = format!("T={t} N={heads} G={groups} D={head_dim} {dtype}");
            cases.add("qkv_split", name.clone(), move |rig| split(rig, d, t, dtype));
            cases.add("qkv_merge", name, move |rig| merge(rig, d, t, dtype));
        }
    }
}

fn split(rig: &Rig, d: QkvDims, t: usize, dtype: DType) -> Result<()> {
    let qkv = rig.random(dtype, [t, d.fused_cols()])?;
    let mut q = rig.output(dtype, [t, d.heads, d.head_dim])?;
    let mut k = rig.output(dtype, [t, d.groups, d.head_dim])?;
    let mut v = rig.output(dtype, [t, d.groups, d.head_dim])?;
    rig.ops().qkv_split(rig.s(), d, &qkv.t, &mut q.t, &mut k.t, &mut v.t)?;
    let want = reference::qkv_split(d, &qkv.host);
    rig.check("q", &q, &want.0, Tol::Exact)?;
    rig.check("k", &k, &want.1, Tol::Exact)?;
    rig.check("v", &v, &want.2, Tol::Exact)
}

fn merge(rig: &Rig, d: QkvDims, t: usize, dtype: DType) -> Result<()> {
    let q = rig.random(dtype, [t, d.heads, d.head_dim])?;
    let k = rig.random(dtype, [t, d.groups, d.head_dim])?;
    let v = rig.random(dtype, [t, d.groups, d.head_dim])?;
    let mut qkv = rig.output(dtype, [t, d.fused_cols()])?;
    rig.ops().qkv_merge(rig.s(), d, &q.t, &k.t, &v.t, &mut qkv.t)?;
    rig.check("qkv", &qkv, &reference::qkv_merge(d, &q.host, &k.host, &v.host), Tol::Exact)
}
