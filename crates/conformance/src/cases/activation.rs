//! Activations, plain and gated.

use ferrotron_device::ops::Activation;
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::activation as reference;
use crate::{Rig, Tol};

/// Against the magnitude of the terms: `x (1 + erf)/2` in f32 rounds at the size of x, as torch does.
const REL: f64 = 2e-6;
/// Zeros, tiny values, both tails; within what f16 can hold, squared.
const CORNERS: [f64; 15] =
    [0.0, -0.0, 1e-6, -1e-6, 0.5, -0.5, 3.0, -3.0, 5.5, -5.5, 12.0, -12.0, 100.0, -100.0, -0.751_791_5];

pub(super) fn cases(cases: &mut Cases) {
    for f in reference::ALL {
        for dtype in STORAGE {
            for (t, width) in [(0, 5), (1, 1), (3, 7), (5, 1023), (40, 512)] {
                for in_place in [false, true] {
                    let name = format!("{f:?} T={t} F={width} {dtype} in_place={in_place}");
                    cases.add("activation", name.clone(), move |rig| forward(rig, f, (t, width), dtype, in_place));
                    cases.add("activation_backward", name.clone(), move |rig| {
                        backward(rig, f, (t, width), dtype, in_place)
                    });
                    cases.add("glu_backward", name, move |rig| glu_backward(rig, f, (t, width), dtype, in_place));
                }
                let name = format!("{f:?} T={t} F={width} {dtype}");
                cases.add("glu", name, move |rig| glu(rig, f, (t, width), dtype));
            }
        }
    }
}

/// Normals times three, the first few replaced by the corners.
fn values(rig: &Rig, n: usize) -> Vec<f64> {
    let mut x: Vec<f64> = rig.noise(n).iter().map(|v| 3.0 * v).collect();
    for (x, corner) in x.iter_mut().zip(CORNERS) {
        *x = corner;
    }
    x
}

/// Size of f's terms: |x|, or |x|^2 where the square is taken.
fn size(f: Activation, x: f64) -> f64 {
    if f == Activation::SquaredRelu { x * x } else { x.abs() }
}

/// Size of the terms of f': `1 + |x| phi` and the like stay below this.
fn slope_size(f: Activation, x: f64) -> f64 {
    if f == Activation::SquaredRelu { 2.0 * x.abs() } else { 2.0 }
}

fn forward(rig: &Rig, f: Activation, shape: (usize, usize), dtype: DType, in_place: bool) -> Result<()> {
    let shape = [shape.0, shape.1];
    let mut x = rig.input(dtype, shape, &values(rig, shape[0] * shape[1]))?;
    let mut y = rig.output(dtype, shape)?;
    if in_place {
        let input = x.t.clone();
        rig.ops().activation(rig.s(), f, &input, &mut x.t)?;
    } else {
        rig.ops().activation(rig.s(), f, &x.t, &mut y.t)?;
    }
    let sizes: Vec<f64> = x.host.iter().map(|&x| size(f, x)).collect();
    rig.check("y", if in_place { &x } else { &y }, &reference::forward(f, &x.host), Tol::Each(REL, &sizes))
}

fn backward(rig: &Rig, f: Activation, shape: (usize, usize), dtype: DType, in_place: bool) -> Result<()> {
    let shape = [shape.0, shape.1];
    let x = rig.input(dtype, shape, &values(rig, shape[0] * shape[1]))?;
    let mut dy = rig.random(dtype, shape)?;
    let mut dx = rig.output(dtype, shape)?;
    if in_place {
        let input = dy.t.clone();
        rig.ops().activation_backward(rig.s(), f, &x.t, &input, &mut dy.t)?;
    } else {
        rig.ops().activation_backward(rig.s(), f, &x.t, &dy.t, &mut dx.t)?;
    }
    let sizes: Vec<f64> = x.host.iter().zip(&dy.host).map(|(&x, dy)| dy.abs() * slope_size(f, x)).collect();
    let want = reference::backward(f, &x.host, &dy.host);
    rig.check("dx", if in_place { &dy } else { &dx }, &want, Tol::Each(REL, &sizes))
}

fn glu(rig: &Rig, f: Activation, (t, width): (usize, usize), dtype: DType) -> Result<()> {
    let x = rig.input(dtype, [t, 2 * width], &values(rig, t * 2 * width))?;
    let mut y = rig.output(dtype, [t, width])?;
    rig.ops().glu(rig.s(), f, &x.t, &mut y.t)?;
    let pairs = x.host.chunks(2 * width).flat_map(|row| (0..width).map(|c| (row[c], row[width + c])));
    let sizes: Vec<f64> = pairs.map(|(gate, up)| size(f, gate) * up.abs()).collect();
    rig.check("y", &y, &reference::glu(f, width, &x.host), Tol::Each(REL, &sizes))
}

fn glu_backward(rig: &Rig, f: Activation, (t, width): (usize, usize), dtype: DType, in_place: bool) -> Result<()> {
    let mut x = rig.input(dtype, [t, 2 * width], &values(rig, t * 2 * width))?;
    let dy = rig.random(dtype, [t, width])?;
    let mut dx = rig.output(dtype, [t, 2 * width])?;
    if in_place {
        let input = x.t.clone();
        rig.ops().glu_backward(rig.s(), f, &input, &dy.t, &mut x.t)?;
    } else {
        rig.ops().glu_backward(rig.s(), f, &x.t, &dy.t, &mut dx.t)?;
    }
    let mut sizes = Vec::new();
    for (x, dy) in x.host.chunks(2 * width).zip(dy.host.chunks(width)) {
        sizes.extend((0..width).map(|c| (dy[c] * x[width + c]).abs() * slope_size(f, x[c])));
        sizes.extend((0..width).map(|c| dy[c].abs() * size(f, x[c])));
    }
    let want = reference::glu_backward(f, width, &x.host, &dy.host);
    rig.check("dx", if in_place { &x } else { &dx }, &want, Tol::Each(REL, &sizes))
}
