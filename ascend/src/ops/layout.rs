//! Splits and merges: strided copies.

use ferrotron_device::ops::{LayoutOps, QkvDims};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::AscendOps;
use crate::launch::Launch;
use crate::view::View;

/// Pairs of a part of the fused tensor and q, k or v.
fn parts(d: QkvDims, t: usize, qkv: &Tensor, q: &Tensor, k: &Tensor, v: &Tensor) -> [(View, View); 3] {
    let (n, dim) = (d.heads / d.groups, d.head_dim);
    let group = (n + 2) * dim;
    let fused = View::of(qkv, &[t, d.fused_cols()]);
    let part = |heads: usize, first: usize, x: &Tensor| {
        let dims = [t, d.groups, heads, dim];
        (fused.strided(&dims, &[d.fused_cols(), group, dim, 1], first * dim), View::of(x, &dims))
    };
    [part(n, 0, q), part(1, n, k), part(1, n + 1, v)]
}

impl LayoutOps for AscendOps {
    fn qkv_split(
        &self,
        s: &Stream,
        d: QkvDims,
        qkv: &Tensor,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &mut Tensor,
    ) -> Result<()> {
        let t = d.check("qkv_split", qkv, q, k, v)?;
        if t == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "qkv_split")?;
        parts(d, t, qkv, q, k, v).iter().try_for_each(|(fused, x)| l.copy(fused, x))
    }

    fn qkv_merge(&self, s: &Stream, d: QkvDims, q: &Tensor, k: &Tensor, v: &Tensor, qkv: &mut Tensor) -> Result<()> {
        let t = d.check("qkv_merge", qkv, q, k, v)?;
        if t == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "qkv_merge")?;
        parts(d, t, qkv, q, k, v).iter().try_for_each(|(fused, x)| l.copy(x, fused))
    }
}
