//! Loops over elements and the small reductions.

use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::elementwise as reference;
use crate::tolerance::sum_rel;
use crate::{Rig, Tol};

const SIZES: [usize; 6] = [0, 1, 3, 7, 1023, 40_001];

pub(super) fn cases(cases: &mut Cases) {
    for n in SIZES {
        for dtype in STORAGE {
            cases.add("fill", format!("n={n} {dtype}"), move |rig| fill(rig, n, dtype));
            for to in STORAGE {
                cases.add("copy", format!("n={n} {dtype} to {to}"), move |rig| copy(rig, n, dtype, to));
            }
            for into in [None, Some(false), Some(true)] {
                let name = ["y", "a", "b"][into.map_or(0, |b| 1 + usize::from(b))];
                cases.add("add", format!("n={n} {dtype} into {name}"), move |rig| add(rig, n, dtype, into));
            }
            cases.add("axpy", format!("n={n} {dtype}"), move |rig| axpy(rig, n, dtype));
            cases.add("scale", format!("n={n} {dtype}"), move |rig| scale(rig, n, dtype));
        }
        cases.add("copy", format!("n={n} I32"), move |rig| copy_ids(rig, n));
        cases.add("weighted_sum", format!("n={n}"), move |rig| weighted_sum(rig, n));
    }
    for (t, c) in [(0, 5), (1, 1), (3, 7), (5, 1023), (700, 33), (9, 4097)] {
        for dtype in STORAGE {
            cases.add("column_sum", format!("T={t} C={c} {dtype}"), move |rig| column_sum(rig, t, c, dtype));
        }
    }
}

fn fill(rig: &Rig, n: usize, dtype: DType) -> Result<()> {
    let mut y = rig.output(dtype, [n])?;
    rig.ops().fill(rig.s(), -0.1, &mut y.t)?;
    rig.check("y", &y, &vec![f64::from(-0.1f32); n], Tol::Exact)
}

/// Normals, with values that overflow, round half way, and are subnormal in the narrower dtypes.
fn awkward(rig: &Rig, n: usize) -> Vec<f64> {
    let corners =
        [70_000.0, -1e30, 1.0 + 0.5f64.powi(8), 1.0 + 0.5f64.powi(11), 6e-8, -3e-6, 1e-40, 65_519.9, 65_520.0];
    let mut x = rig.noise(n);
    for (x, c) in x.iter_mut().skip(2).zip(corners) {
        *x = c;
    }
    x
}

fn copy(rig: &Rig, n: usize, from: DType, to: DType) -> Result<()> {
    let (x, mut y) = (rig.input(from, [n], &awkward(rig, n))?, rig.output(to, [n])?);
    rig.ops().copy(rig.s(), &x.t, &mut y.t)?;
    rig.check("y", &y, &x.host, Tol::Exact)
}

fn copy_ids(rig: &Rig, n: usize) -> Result<()> {
    let values = rig.integers(n, i32::MIN, i32::MAX);
    let (x, mut y) = (rig.ids(&values)?, rig.output(DType::I32, [n])?);
    rig.ops().copy(rig.s(), &x.t, &mut y.t)?;
    rig.check_ids("y", &y, &values)
}

fn add(rig: &Rig, n: usize, dtype: DType, into: Option<bool>) -> Result<()> {
    let (mut a, mut b, mut y) = (rig.random(dtype, [n])?, rig.random(dtype, [n])?, rig.output(dtype, [n])?);
    let (a_in, b_in) = (a.t.clone(), b.t.clone());
    let out = match into {
        None => &mut y,
        Some(false) => &mut a,
        Some(true) => &mut b,
    };
    rig.ops().add(rig.s(), &a_in, &b_in, &mut out.t)?;
    let out = match into {
        None => &y,
        Some(false) => &a,
        Some(true) => &b,
    };
    rig.check("y", out, &reference::add(&a.host, &b.host), Tol::Rel(1e-7))
}

fn axpy(rig: &Rig, n: usize, dtype: DType) -> Result<()> {
    let (x, mut y) = (rig.random(dtype, [n])?, rig.random(DType::F32, [n])?);
    rig.ops().axpy(rig.s(), -1.75, &x.t, &mut y.t)?;
    let sizes: Vec<f64> = x.host.iter().zip(&y.host).map(|(x, y)| 1.75 * x.abs() + y.abs()).collect();
    rig.check("y", &y, &reference::axpy(-1.75, &x.host, &y.host), Tol::Each(2e-7, &sizes))
}

fn scale(rig: &Rig, n: usize, dtype: DType) -> Result<()> {
    let (factor, mut x) = (rig.input(DType::F32, [1], &[0.3])?, rig.random(dtype, [n])?);
    rig.ops().scale(rig.s(), &factor.t, &mut x.t)?;
    rig.check("x", &x, &reference::scale(factor.host[0], &x.host), Tol::Rel(1e-7))
}

fn column_sum(rig: &Rig, t: usize, c: usize, dtype: DType) -> Result<()> {
    let (x, mut out) = (rig.random(dtype, [t, c])?, rig.random(DType::F32, [c])?);
    rig.ops().column_sum(rig.s(), &x.t, &mut out.t)?;
    let want = reference::add(&out.host, &reference::column_sum(c, &x.host));
    let absolute: Vec<f64> = x.host.iter().map(|x| x.abs()).collect();
    let sizes: Vec<f64> = reference::column_sum(c, &absolute).iter().zip(&out.host).map(|(s, o)| s + o.abs()).collect();
    rig.check("out", &out, &want, Tol::Each(sum_rel(t), &sizes))
}

fn weighted_sum(rig: &Rig, n: usize) -> Result<()> {
    let (x, w) = (rig.random(DType::F32, [n])?, rig.random(DType::F32, [n])?);
    let mut out = rig.input(DType::F32, [1], &[2.0])?;
    rig.ops().weighted_sum(rig.s(), &x.t, &w.t, &mut out.t)?;
    let want = 2.0 + reference::weighted_sum(&x.host, &w.host);
    let absolute = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let terms = reference::weighted_sum(&absolute(&x.host), &absolute(&w.host));
    // products in f32 or f64, partial sums in f64, one rounding at the end
    rig.check("out", &out, &[want], Tol::Of(6e-8, terms + 2.0))
}
