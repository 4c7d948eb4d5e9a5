//! Embedding lookups in a shard, ids on both sides of it and twice the same.

use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::{elementwise, embedding as reference};
use crate::tolerance::{FEW, sum_rel};
use crate::{Rig, Tol};

pub(super) fn cases(cases: &mut Cases) {
    for (t, v, h, first) in [(0, 5, 3, 0), (1, 1, 1, 0), (3, 4, 7, 2), (60, 13, 1023, 10), (500, 29, 40, 29)] {
        for dtype in STORAGE {
            let name = format!("T={t} V={v} H={h} first={first} {dtype}");
            for accumulate in [false, true] {
                let name = format!("{name} accumulate={accumulate}");
                cases.add("embedding", name, move |rig| forward(rig, (t, v, h, first), dtype, accumulate));
            }
            cases.add("embedding_backward", name, move |rig| backward(rig, (t, v, h, first), dtype));
        }
    }
}

type Dims = (usize, usize, usize, usize);

/// Ids from below the shard (-1 is what a padded position may hold) to above it.
fn ids(rig: &Rig, (t, v, _, first): Dims) -> Vec<i32> {
    rig.integers(t, -1, (first + v + first.max(2)) as i32)
}

fn forward(rig: &Rig, d @ (t, v, h, first): Dims, dtype: DType, accumulate: bool) -> Result<()> {
    let host_ids = ids(rig, d);
    let (ids, w) = (rig.ids(&host_ids)?, rig.random(dtype, [v, h])?);
    let want = reference::embedding(&host_ids, first, h, &w.host);
    if accumulate {
        let mut y = rig.random(dtype, [t, h])?;
        rig.ops().embedding(rig.s(), &ids.t, first, &w.t, true, &mut y.t)?;
        let sizes: Vec<f64> = y.host.iter().zip(&want).map(|(y, w)| y.abs() + w.abs()).collect();
        rig.check("y", &y, &elementwise::add(&y.host, &want), Tol::Each(FEW, &sizes))
    } else {
        let mut y = rig.output(dtype, [t, h])?;
        rig.ops().embedding(rig.s(), &ids.t, first, &w.t, false, &mut y.t)?;
        rig.check("y", &y, &want, Tol::Exact)
    }
}

fn backward(rig: &Rig, d @ (t, v, h, first): Dims, dtype: DType) -> Result<()> {
    let host_ids = ids(rig, d);
    let (ids, dy, mut dw) = (rig.ids(&host_ids)?, rig.random(dtype, [t, h])?, rig.random(DType::F32, [v, h])?);
    rig.ops().embedding_backward(rig.s(), &ids.t, first, &dy.t, &mut dw.t)?;
    let more = reference::embedding_backward(&host_ids, first, h, v, &dy.host);
    let absolute: Vec<f64> = dy.host.iter().map(|v| v.abs()).collect();
    let sizes = reference::embedding_backward(&host_ids, first, h, v, &absolute);
    let sizes: Vec<f64> = sizes.iter().zip(&dw.host).map(|(s, w)| s + w.abs()).collect();
    rig.check("dw", &dw, &elementwise::add(&dw.host, &more), Tol::Each(sum_rel(t), &sizes))
}
