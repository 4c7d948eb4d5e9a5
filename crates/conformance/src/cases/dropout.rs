//! Dropout: a dropped element is an exact zero, so that one wrong mask bit fails.

use ferrotron_device::ops::DropSite;
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::dropout as reference;
use crate::{Rig, Tol};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    Plain,
    PlainInPlace,
    Residual,
    ResidualIntoX,
    ResidualIntoResidual,
}

pub(super) fn cases(cases: &mut Cases) {
    use Variant::*;
    for variant in [Plain, PlainInPlace, Residual, ResidualIntoX, ResidualIntoResidual] {
        for dtype in STORAGE {
            for (t, c, first) in [(0, 4, 0), (1, 1, 0), (3, 7, 9), (5, 1023, 1023), (40, 192, 384)] {
                for p in [0.0, 0.1, 0.5, 0.97] {
                    let name = format!("{variant:?} T={t} C={c} first={first} p={p} {dtype}");
                    cases.add("dropout", name, move |rig| dropout(rig, variant, (t, c), first, p, dtype));
                }
            }
        }
    }
}

fn dropout(rig: &Rig, variant: Variant, (t, c): (usize, usize), first: usize, p: f32, dtype: DType) -> Result<()> {
    let site = DropSite { p, key: 0x1234_5678_9abc_def0 };
    let (samples, offsets) = (rig.integers(t, 0, i32::MAX), rig.integers(t, 0, 1 << 20));
    let (sample, offset) = (rig.ids(&samples)?, rig.ids(&offsets)?);
    let (mut x, mut residual, mut y) =
        (rig.random(dtype, [t, c])?, rig.random(dtype, [t, c])?, rig.output(dtype, [t, c])?);
    let with_residual = !matches!(variant, Variant::Plain | Variant::PlainInPlace);
    let (x_in, residual_in) = (x.t.clone(), residual.t.clone());
    let out = match variant {
        Variant::Plain | Variant::Residual => &mut y,
        Variant::PlainInPlace | Variant::ResidualIntoX => &mut x,
        Variant::ResidualIntoResidual => &mut residual,
    };
    let added = with_residual.then_some(&residual_in);
    rig.ops().dropout(rig.s(), site, first, &sample.t, &offset.t, &x_in, added, &mut out.t)?;
    let out = match variant {
        Variant::Plain | Variant::Residual => &y,
        Variant::PlainInPlace | Variant::ResidualIntoX => &x,
        Variant::ResidualIntoResidual => &residual,
    };
    let r = with_residual.then_some(&residual.host[..]);
    let want = reference::dropout(site, first, &samples, &offsets, &x.host, r);
    let kept = reference::dropout(site, first, &samples, &offsets, &x.host, None);
    let sizes: Vec<f64> = (0..want.len()).map(|i| kept[i].abs() + r.map_or(0.0, |r| r[i].abs())).collect();
    // one multiplication by a rounded 1/(1-p), one sum; 1 - p itself is rounded, which counts 1/(1-p) times
    rig.check("y", out, &want, Tol::Each(2f64.powi(-24) * (3.0 + 1.0 / (1.0 - f64::from(p))), &sizes))
}
