//! Optimizer updates and the reductions around them.

use ferrotron_device::ops::AdamConfig;
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::optimizer as reference;
use crate::tolerance::FEW;
use crate::{Rig, Tol};

const SIZES: [usize; 6] = [0, 1, 7, 1023, 4096, 40_001];
/// lr, weight decay, gradient factor, 1 - b1^t, 1 - b2^t
const SCALARS: [f64; 8] = [3e-3, 0.1, 0.25, 0.271, 0.142_625, f64::NAN, f64::NAN, f64::NAN];

pub(super) fn cases(cases: &mut Cases) {
    for p in SIZES {
        for param in [None, Some(DType::F32), Some(DType::BF16), Some(DType::F16)] {
            let copy = param.map_or("none".to_string(), |d| d.to_string());
            for decoupled in [true, false] {
                let name = format!("P={p} param {copy} decoupled={decoupled}");
                cases.add("adam", name, move |rig| adam(rig, p, param, decoupled));
            }
            for momentum in [0.0, 0.9] {
                let name = format!("P={p} param {copy} momentum={momentum}");
                cases.add("sgd", name, move |rig| sgd(rig, p, param, momentum));
            }
        }
        for dtype in STORAGE {
            cases.add("sum_squares", format!("P={p} {dtype}"), move |rig| sum_squares(rig, p, dtype));
            cases.add("count_zeros", format!("P={p} {dtype}"), move |rig| count_zeros(rig, p, dtype));
        }
    }
}

fn adam(rig: &Rig, p: usize, param: Option<DType>, decoupled: bool) -> Result<()> {
    let c = AdamConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled };
    let (decay, lr_mult) = (0.5, 2.0);
    let scalars = rig.input(DType::F32, [8], &SCALARS)?;
    let (grad, mut master, mut m) =
        (rig.random(DType::F32, [p])?, rig.random(DType::F32, [p])?, rig.random(DType::F32, [p])?);
    let squares: Vec<f64> = rig.noise(p).iter().map(|v| v * v).collect();
    let mut v = rig.input(DType::F32, [p], &squares)?;
    let mut copy = param.map(|dtype| rig.output(dtype, [p])).transpose()?;
    rig.ops().adam(
        rig.s(),
        c,
        decay,
        lr_mult,
        &scalars.t,
        &grad.t,
        &mut master.t,
        &mut m.t,
        &mut v.t,
        copy.as_mut().map(|c| &mut c.t),
    )?;
    let (want_w, want_m, want_v) = reference::adam(
        c,
        f64::from(decay),
        f64::from(lr_mult),
        &scalars.host,
        &grad.host,
        &master.host,
        &m.host,
        &v.host,
    );
    // L2 decay makes the gradient a sum, so moments round at the size of its terms
    let size_m: Vec<f64> = (0..p).map(|i| m.host[i].abs() + grad.host[i].abs() + 0.1 * master.host[i].abs()).collect();
    let size_v: Vec<f64> =
        (0..p).map(|i| v.host[i].abs() + (grad.host[i].abs() * 0.25 + 0.05 * master.host[i].abs()).powi(2)).collect();
    // the step is lr * m / sqrt(v): relative errors of m's terms count
    let step = |i: usize| 6e-3 * size_m[i] / 0.271 / ((want_v[i] / 0.142_625).sqrt() + 1e-8);
    let size_w: Vec<f64> = (0..p).map(|i| master.host[i].abs() + step(i)).collect();
    rig.check("m", &m, &want_m, Tol::Each(FEW, &size_m))?;
    rig.check("v", &v, &want_v, Tol::Each(FEW, &size_v))?;
    rig.check("master", &master, &want_w, Tol::Each(FEW, &size_w))?;
    copy.map_or(Ok(()), |c| rig.check("param", &c, &want_w, Tol::Each(FEW, &size_w)))
}

fn sgd(rig: &Rig, p: usize, param: Option<DType>, momentum: f32) -> Result<()> {
    let (decay, lr_mult) = (1.0, 0.5);
    let scalars = rig.input(DType::F32, [8], &SCALARS)?;
    let (grad, mut master, mut buf) =
        (rig.random(DType::F32, [p])?, rig.random(DType::F32, [p])?, rig.random(DType::F32, [p])?);
    let mut copy = param.map(|dtype| rig.output(dtype, [p])).transpose()?;
    rig.ops().sgd(
        rig.s(),
        momentum,
        decay,
        lr_mult,
        &scalars.t,
        &grad.t,
        &mut master.t,
        &mut buf.t,
        copy.as_mut().map(|c| &mut c.t),
    )?;
    let (want_w, want_buf) = reference::sgd(
        f64::from(momentum),
        f64::from(decay),
        f64::from(lr_mult),
        &scalars.host,
        &grad.host,
        &master.host,
        &buf.host,
    );
    let sizes: Vec<f64> = (0..p).map(|i| master.host[i].abs() + grad.host[i].abs() + buf.host[i].abs()).collect();
    rig.check("buf", &buf, &want_buf, Tol::Each(FEW, &sizes))?;
    rig.check("master", &master, &want_w, Tol::Each(FEW, &sizes))?;
    copy.map_or(Ok(()), |c| rig.check("param", &c, &want_w, Tol::Each(FEW, &sizes)))
}

fn sum_squares(rig: &Rig, p: usize, dtype: DType) -> Result<()> {
    let (x, mut out) = (rig.random(dtype, [p])?, rig.input(DType::F32, [1], &[3.0])?);
    rig.ops().sum_squares(rig.s(), &x.t, &mut out.t)?;
    // partial sums in f64: only the last addition rounds
    rig.check("out", &out, &[3.0 + reference::sum_squares(&x.host)], Tol::Rel(2e-7))
}

fn count_zeros(rig: &Rig, p: usize, dtype: DType) -> Result<()> {
    let mut x = rig.noise(p);
    for x in x.iter_mut().step_by(3) {
        *x = if *x > 0.0 { 0.0 } else { -0.0 };
    }
    let (x, mut out) = (rig.input(dtype, [p], &x)?, rig.input(DType::F32, [1], &[5.0])?);
    rig.ops().count_zeros(rig.s(), &x.t, &mut out.t)?;
    rig.check("out", &out, &[5.0 + reference::count_zeros(&x.host)], Tol::Exact)
}
