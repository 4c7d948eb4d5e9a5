//! Matrix products.

use ferrotron_device::ops::{Activation, Gemm};
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::gemm::Size;
use crate::reference::{activation, gemm as reference};
use crate::tolerance::{rounding, sum_rel};
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

/// A product with an activation before or behind it: widths that are multiples of 8, which libraries fuse, and others.
pub(super) fn activated(cases: &mut Cases) {
    for (m, n, k) in [(0, 8, 5), (4, 0, 5), (4, 8, 0), (1, 8, 1), (3, 40, 7), (17, 33, 65), (64, 64, 64), (5, 24, 1023)]
    {
        for ab in STORAGE {
            for f in [Activation::GeluTanh, Activation::Gelu, Activation::Relu] {
                let bias = [None, Some(ab), Some(DType::F32)][(m + n + k) % 3];
                let size = Size { m, n, k };
                let kind = Kind { size, ab, c: ab, bias, g: Gemm::NT };
                let name = format!("{f:?} M={m} N={n} K={k} {ab} bias {bias:?}");
                cases.add("gemm_activation", name.clone(), move |rig| forward(rig, kind, f));
                let kind = Kind { size, ab, c: ab, bias: None, g: Gemm { alpha: 0.5, ..Gemm::NN } };
                cases.add("gemm_activation_backward", name, move |rig| backward(rig, kind, f));
            }
        }
    }
}

/// Slopes of activations stay below this.
const SLOPE: f64 = 1.2;

fn forward(rig: &Rig, Kind { size, ab, bias, g, .. }: Kind, f: Activation) -> Result<()> {
    let Size { m, n, k } = size;
    let (a, b) = (rig.random(ab, [m, k])?, rig.random(ab, [n, k])?);
    let bias = bias.map(|dtype| rig.random(dtype, [n])).transpose()?;
    let (mut inner, mut y) = (rig.output(ab, [m, n])?, rig.output(ab, [m, n])?);
    let added = bias.as_ref().map(|b| &b.t);
    rig.ops().gemm_activation(rig.s(), g, &a.t, &b.t, added, f, &mut inner.t, &mut y.t)?;
    let bias = bias.as_ref().map(|b| &b.host[..]);
    let (want, sizes) = reference::gemm_sized(g, size, &a.host, &b.host, bias, &[]);
    rig.check("inner", &inner, &want, Tol::Each(sum_rel(k), &sizes))?;
    // the sum's error, and its rounding where f is applied to what was stored, times the slope; f's own
    let off = |(v, size): (&f64, &f64)| SLOPE * (sum_rel(k) * size + rounding(ab, v.abs())) + 2e-6 * v.abs();
    let off: Vec<f64> = want.iter().zip(&sizes).map(off).collect();
    rig.check("y", &y, &activation::forward(f, &want), Tol::Each(1.0, &off))
}

fn backward(rig: &Rig, Kind { size, ab, g, .. }: Kind, f: Activation) -> Result<()> {
    let Size { m, n, k } = size;
    let (a, b) = (rig.random(ab, [m, k])?, rig.random(ab, [k, n])?);
    let (inner, mut d) = (rig.random(ab, [m, n])?, rig.output(ab, [m, n])?);
    rig.ops().gemm_activation_backward(rig.s(), g, &a.t, &b.t, f, &inner.t, &mut d.t)?;
    let (product, sizes) = reference::gemm_sized(g, size, &a.host, &b.host, None, &[]);
    let want = activation::backward(f, &inner.host, &product);
    // likewise; slopes have terms of twice their bound
    let off = |(v, size): (&f64, &f64)| SLOPE * (sum_rel(k) * size + rounding(ab, v.abs())) + 4e-6 * v.abs();
    let off: Vec<f64> = product.iter().zip(&sizes).map(off).collect();
    rig.check("d", &d, &want, Tol::Each(1.0, &off))
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
