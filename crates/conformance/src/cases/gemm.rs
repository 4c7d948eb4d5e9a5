//! Matrix products.

use ferrotron_device::ops::Gemm;
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::gemm as reference;
use crate::reference::gemm::Size;
use crate::tolerance::sum_rel;
use crate::{Rig, Tol};

#[derive(Clone, Copy)]
struct Kind {
    size: Size,
    ab: DType,
    c: DType,
    bias: Option<DType>,
    g: Gemm,
}

pub(super) fn cases(cases: &mut Cases) {
    let shapes = [
        (1, 1, 1),
        (3, 5, 7),
        (17, 33, 65),
        (64, 64, 64),
        (1, 200, 130),
        (130, 70, 301),
        (0, 4, 5),
        (4, 0, 5),
        (4, 5, 0),
        (5, 3, 1023),
    ];
    for (m, n, k) in shapes {
        for ab in STORAGE {
            for c in if ab == DType::F32 { vec![ab] } else { vec![ab, DType::F32] } {
                for (trans_a, trans_b) in [(false, true), (false, false), (true, false), (true, true)] {
                    for (alpha, beta) in [(1.0, 0.0), (1.0, 1.0), (0.5, -2.0)] {
                        // each product with one of: no bias, a bias of A's dtype, a bias in f32
                        let bias = [None, Some(ab), Some(DType::F32)][(m + n + k + usize::from(trans_a)) % 3];
                        let g = Gemm { trans_a, trans_b, alpha, beta };
                        let kind = Kind { size: Size { m, n, k }, ab, c, bias, g };
                        let t = |trans| if trans { "T" } else { "N" };
                        let name = format!(
                            "{}{} M={m} N={n} K={k} {ab} to {c} alpha={alpha} beta={beta} bias {bias:?}",
                            t(trans_a),
                            t(trans_b)
                        );
                        cases.add("gemm", name, move |rig| gemm(rig, kind));
                    }
                }
            }
        }
    }
}

fn gemm(rig: &Rig, Kind { size, ab, c, bias, g }: Kind) -> Result<()> {
    let Size { m, n, k } = size;
    let a = rig.random(ab, if g.trans_a { [k, m] } else { [m, k] })?;
    let b = rig.random(ab, if g.trans_b { [n, k] } else { [k, n] })?;
    let bias = bias.map(|dtype| rig.random(dtype, [n])).transpose()?;
    // with beta 0 C is poisoned and must not be read
    let mut out = if g.beta == 0.0 { rig.output(c, [m, n])? } else { rig.random(c, [m, n])? };
    rig.ops().gemm(rig.s(), g, &a.t, &b.t, bias.as_ref().map(|b| &b.t), &mut out.t)?;
    let bias = bias.as_ref().map(|b| &b.host[..]);
    let (want, sizes) = reference::gemm_sized(g, size, &a.host, &b.host, bias, &out.host);
    rig.check("c", &out, &want, Tol::Each(sum_rel(k), &sizes))
}
