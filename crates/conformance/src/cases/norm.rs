//! RMSNorm and LayerNorm.

use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE, largest};
use crate::reference::norm as reference;
use crate::tolerance::{FEW, sum_rel};
use crate::{Rig, Tol};

const SHAPES: [(usize, usize); 7] = [(0, 7), (1, 1), (3, 7), (5, 1023), (33, 64), (300, 40), (2, 4096)];
const EPS: f32 = 1e-5;

#[derive(Clone, Copy, Debug)]
struct Kind {
    t: usize,
    h: usize,
    x: DType,
    w: DType,
    plus_one: bool,
}

pub(super) fn cases(cases: &mut Cases) {
    for (t, h) in SHAPES {
        for x in STORAGE {
            for plus_one in [false, true] {
                // Weights may be kept in f32 beside activations in half precision.
                for w in if x == DType::F32 { vec![x] } else { vec![x, DType::F32] } {
                    let kind = Kind { t, h, x, w, plus_one };
                    let name = |more: &str| format!("T={t} H={h} {x} w {w} plus_one={plus_one}{more}");
                    cases.add("rms_norm", name(""), move |rig| rms(rig, kind));
                    cases.add("layer_norm", name(""), move |rig| layer(rig, kind));
                    let kinds = if plus_one {
                        &[(true, true, " dw in place")][..]
                    } else {
                        &[(true, false, " dw"), (false, true, " in place")]
                    };
                    for &(grads, in_place, more) in kinds {
                        cases.add("rms_norm_backward", name(more), move |rig| rms_backward(rig, kind, grads, in_place));
                        cases.add("layer_norm_backward", name(more), move |rig| {
                            layer_backward(rig, kind, grads, in_place)
                        });
                    }
                }
            }
        }
    }
}

fn rms(rig: &Rig, Kind { t, h, x, w, plus_one }: Kind) -> Result<()> {
    let (x, w) = (rig.random(x, [t, h])?, rig.random(w, [h])?);
    let (mut y, mut rstd) = (rig.output(x.t.dtype(), [t, h])?, rig.output(DType::F32, [t])?);
    rig.ops().rms_norm(rig.s(), EPS, plus_one, &x.t, &w.t, &mut y.t, &mut rstd.t)?;
    let (want_y, want_rstd) = reference::rms_norm(f64::from(EPS), plus_one, &x.host, &w.host);
    rig.check("y", &y, &want_y, Tol::Rel(FEW))?;
    rig.check("rstd", &rstd, &want_rstd, Tol::Rel(FEW))
}

fn rms_backward(rig: &Rig, Kind { t, h, x, w, plus_one }: Kind, grads: bool, in_place: bool) -> Result<()> {
    let (x, w, mut dy) = (rig.random(x, [t, h])?, rig.random(w, [h])?, rig.random(x, [t, h])?);
    let rstd = reference::rms_norm(f64::from(EPS), plus_one, &x.host, &w.host).1;
    let rstd = rig.input(DType::F32, [t], &rstd)?;
    let (mut dx, mut dw) = (rig.output(x.t.dtype(), [t, h])?, rig.random(DType::F32, [h])?);
    let (want_dx, more_dw) = reference::rms_norm_backward(plus_one, &x.host, &w.host, &rstd.host, &dy.host);
    let grad = grads.then_some(&mut dw.t);
    if in_place {
        let input = dy.t.clone();
        rig.ops().rms_norm_backward(rig.s(), plus_one, &x.t, &w.t, &rstd.t, &input, &mut dy.t, grad)?;
    } else {
        rig.ops().rms_norm_backward(rig.s(), plus_one, &x.t, &w.t, &rstd.t, &dy.t, &mut dx.t, grad)?;
    }
    let xh: Vec<f64> = x.host.chunks(h).zip(&rstd.host).flat_map(|(x, r)| x.iter().map(move |x| x * r)).collect();
    let terms = terms(plus_one, &w.host, &xh, &dy.host, &rstd.host);
    rig.check("dx", if in_place { &dy } else { &dx }, &want_dx, Tol::Each(FEW, &terms.dx))?;
    check_grad(rig, "dw", grads, t, &dw, &more_dw, &terms.dw)
}

fn layer(rig: &Rig, Kind { t, h, x, w, plus_one }: Kind) -> Result<()> {
    // A mean far from zero shows a variance computed as E[x^2] - E[x]^2.
    let values: Vec<f64> = rig.noise(t * h).iter().map(|v| v + 8.0).collect();
    let (x, w, b) = (rig.input(x, [t, h], &values)?, rig.random(w, [h])?, rig.random(w, [h])?);
    let (mut y, mut stats) = (rig.output(x.t.dtype(), [t, h])?, rig.output(DType::F32, [2, t])?);
    rig.ops().layer_norm(rig.s(), EPS, plus_one, &x.t, &w.t, &b.t, &mut y.t, &mut stats.t)?;
    let (want_y, want_stats) = reference::layer_norm(f64::from(EPS), plus_one, &x.host, &w.host, &b.host);
    // x - mean loses what the mean's rounding is: 2^-24 * 8 against a deviation, times rstd (316 for H = 1)
    let size = |i: usize| {
        let factor = if plus_one { 1.0 + w.host[i % h] } else { w.host[i % h] };
        10.0 * want_stats[t + i / h] * factor.abs() + b.host[i % h].abs()
    };
    let sizes: Vec<f64> = (0..t * h).map(size).collect();
    rig.check("y", &y, &want_y, Tol::Each(FEW, &sizes))?;
    // 1/std inherits the relative error of the mean only to second order
    rig.check("stats", &stats, &want_stats, Tol::Rel(2.0 * FEW))
}

fn layer_backward(rig: &Rig, Kind { t, h, x, w, plus_one }: Kind, grads: bool, in_place: bool) -> Result<()> {
    let (x, w, mut dy) = (rig.random(x, [t, h])?, rig.random(w, [h])?, rig.random(x, [t, h])?);
    let stats = reference::layer_norm(f64::from(EPS), plus_one, &x.host, &w.host, &vec![0.0; h]).1;
    let stats = rig.input(DType::F32, [2, t], &stats)?;
    let mut dx = rig.output(x.t.dtype(), [t, h])?;
    let (mut dw, mut db) = (rig.random(DType::F32, [h])?, rig.random(DType::F32, [h])?);
    let (want_dx, more_dw, more_db) = reference::layer_norm_backward(plus_one, &x.host, &w.host, &stats.host, &dy.host);
    let grad = grads.then_some((&mut dw.t, &mut db.t));
    if in_place {
        let input = dy.t.clone();
        rig.ops().layer_norm_backward(rig.s(), plus_one, &x.t, &w.t, &stats.t, &input, &mut dy.t, grad)?;
    } else {
        rig.ops().layer_norm_backward(rig.s(), plus_one, &x.t, &w.t, &stats.t, &dy.t, &mut dx.t, grad)?;
    }
    let (means, rstds) = stats.host.split_at(t);
    // |x| + |mean| rather than |x - mean|: the difference of two rounded numbers
    let rows = x.host.chunks(h).zip(means.iter().zip(rstds));
    let xh: Vec<f64> = rows.flat_map(|(x, (m, r))| x.iter().map(move |x| (x.abs() + m.abs()) * r)).collect();
    let terms = terms(plus_one, &w.host, &xh, &dy.host, rstds);
    rig.check("dx", if in_place { &dy } else { &dx }, &want_dx, Tol::Each(2.0 * FEW, &terms.dx))?;
    check_grad(rig, "dw", grads, t, &dw, &more_dw, &terms.dw)?;
    let size_db: Vec<f64> = (0..h).map(|c| dy.host.iter().skip(c).step_by(h).map(|v| v.abs()).sum()).collect();
    check_grad(rig, "db", grads, t, &db, &more_db, &size_db)
}

/// Sums of absolute terms, the scale of rounding errors.
struct Terms {
    dx: Vec<f64>,
    dw: Vec<f64>,
}

fn terms(plus_one: bool, w: &[f64], xh: &[f64], dy: &[f64], rstd: &[f64]) -> Terms {
    let h = w.len();
    let mut out = Terms { dx: Vec::new(), dw: vec![0.0; h] };
    for ((xh, dy), r) in xh.chunks(h).zip(dy.chunks(h)).zip(rstd) {
        let g: Vec<f64> = dy.iter().zip(w).map(|(dy, w)| (dy * if plus_one { 1.0 + w } else { *w }).abs()).collect();
        let mean_g = g.iter().sum::<f64>() / h as f64;
        let mean_gxh = g.iter().zip(xh).map(|(g, xh)| g * xh.abs()).sum::<f64>() / h as f64;
        out.dx.extend(g.iter().zip(xh).map(|(g, xh)| r * (g + mean_g + xh.abs() * mean_gxh)));
        for ((dw, dy), xh) in out.dw.iter_mut().zip(dy).zip(xh) {
            *dw += (dy * xh).abs();
        }
    }
    out
}

/// The increment on top of what the gradient held; or the same bits as before.
fn check_grad(
    rig: &Rig,
    what: &str,
    grads: bool,
    t: usize,
    grad: &crate::Buf,
    more: &[f64],
    size: &[f64],
) -> Result<()> {
    if !grads {
        return rig.check(what, grad, &grad.host, Tol::Exact);
    }
    let want: Vec<f64> = grad.host.iter().zip(more).map(|(a, b)| a + b).collect();
    let size: Vec<f64> = size.iter().map(|s| s + largest(&grad.host)).collect();
    rig.check(what, grad, &want, Tol::Each(sum_rel(t), &size))
}
