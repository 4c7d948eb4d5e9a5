//! Rotary embedding.

use ferrotron_device::ops::RopeDims;
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::rope as reference;
use crate::tolerance::FEW;
use crate::{Rig, Tol};

const POSITIONS: usize = 50;

pub(super) fn cases(cases: &mut Cases) {
    let shapes =
        [(0, 2, 8, 8), (1, 1, 2, 2), (3, 2, 5, 4), (7, 3, 64, 64), (5, 2, 80, 32), (4, 1, 6, 0), (9, 4, 33, 22)];
    for (t, n, d, rot) in shapes {
        for dtype in STORAGE {
            for interleaved in [false, true] {
                for inverse in [false, true] {
                    let name =
                        format!("T={t} N={n} D={d} rot={rot} {dtype} interleaved={interleaved} inverse={inverse}");
                    let dims = RopeDims { rot, interleaved };
                    cases.add("rope", name, move |rig| rope(rig, dims, inverse, (t, n, d), dtype));
                }
            }
        }
    }
}

fn rope(rig: &Rig, dims: RopeDims, inverse: bool, (t, n, d): (usize, usize, usize), dtype: DType) -> Result<()> {
    let half = dims.rot / 2;
    let angles = rig.noise(POSITIONS * half);
    // A magnitude other than one, as YaRN has it.
    let table = |f: fn(f64) -> f64| angles.iter().map(|&a| 1.2 * f(3.0 * a)).collect::<Vec<_>>();
    let cos = rig.input(DType::F32, [POSITIONS, half], &table(f64::cos))?;
    let sin = rig.input(DType::F32, [POSITIONS, half], &table(f64::sin))?;
    let positions = rig.integers(t, 0, POSITIONS as i32);
    let ids = rig.ids(&positions)?;
    let mut x = rig.random(dtype, [t, n, d])?;
    rig.ops().rope(rig.s(), dims, inverse, &cos.t, &sin.t, &ids.t, &mut x.t)?;
    let rotate = |cos: &[f64], sin: &[f64], x: &[f64]| reference::rope(dims, inverse, (n, d), cos, sin, &positions, x);
    let want = rotate(&cos.host, &sin.host, &x.host);
    // |a cos| + |b sin|: bounded by the largest pair
    rig.check("x", &x, &want, Tol::Of(FEW, 2.4 * super::largest(&x.host)))?;
    // what is not rotated keeps its bits
    if dims.rot == 0 {
        rig.check("x", &x, &x.host, Tol::Exact)?;
    }
    Ok(())
}
