//! Activations, plain and gated. Contract: `ferrotron_device::ops::activation`.

use ferrotron_device::ops::activation::{check_glu, check_plain};
use ferrotron_device::ops::{Activation, ActivationOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{BLOCK, Dst, DstRows, GRAIN, Src, apart, blocks, read_or};
use super::math::{normal, sigmoid};
use crate::CpuOps;
use crate::multiversion;
use crate::team::row_grain;
use crate::view::{In, Out};

/// An activation as a type, so that loops over it hold no branch.
trait Curve {
    /// `f(x)` and `f'(x)`; whichever the caller drops is not computed.
    fn at(x: f32) -> (f32, f32);
}

struct Gelu;
impl Curve for Gelu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let (phi, density) = normal(x);
        (x * phi, phi + x * density)
    }
}

struct GeluTanh;
impl Curve for GeluTanh {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        // (1 + tanh u)/2 = sigmoid(2u)
        const TWICE: f32 = 2.0 * 0.797_884_6;
        let s = sigmoid(TWICE * (x + 0.044715 * x * x * x));
        (x * s, s + x * s * (1.0 - s) * (TWICE * (1.0 + 3.0 * 0.044715 * x * x)))
    }
}

struct QuickGelu;
impl Curve for QuickGelu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let s = sigmoid(1.702 * x);
        (x * s, s + x * s * (1.0 - s) * 1.702)
    }
}

struct Silu;
impl Curve for Silu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let s = sigmoid(x);
        (x * s, s + x * s * (1.0 - s))
    }
}

struct Relu;
impl Curve for Relu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        // Written so that NaN stays NaN.
        (if x < 0.0 { 0.0 } else { x }, if x > 0.0 { 1.0 } else { 0.0 })
    }
}

struct SquaredRelu;
impl Curve for SquaredRelu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let y = if x < 0.0 { 0.0 } else { x };
        (y * y, 2.0 * y)
    }
}

/// Runs `$body` with `$C` bound to the type of an activation.
macro_rules! curve {
    ($f:expr, $C:ident => $body:expr) => {
        match $f {
            Activation::Gelu => {
                type $C = Gelu;
                $body
            }
            Activation::GeluTanh => {
                type $C = GeluTanh;
                $body
            }
            Activation::QuickGelu => {
                type $C = QuickGelu;
                $body
            }
            Activation::Silu => {
                type $C = Silu;
                $body
            }
            Activation::Relu => {
                type $C = Relu;
                $body
            }
            Activation::SquaredRelu => {
                type $C = SquaredRelu;
                $body
            }
        }
    };
}

multiversion! {
    /// `y = f(x)`
    fn forward<C: Curve>(x: Option<Src<'_>>, y: Dst<'_>) {
        let mut y = y;
        let (mut bx, mut by) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (at, n) in blocks(y.len()) {
            let x = read_or(&x, &y, at, n, &mut bx);
            y.write(at, n, &mut by, |y| {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = C::at(x).0;
                }
            });
        }
    }
}

multiversion! {
    /// `dx = dy f'(x)`
    fn backward<C: Curve>(x: Src<'_>, dy: Option<Src<'_>>, dx: Dst<'_>) {
        let mut dx = dx;
        let (mut bx, mut bd, mut out) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for (at, n) in blocks(dx.len()) {
            let x = x.read(at, n, &mut bx);
            let dy = read_or(&dy, &dx, at, n, &mut bd);
            dx.write(at, n, &mut out, |dx| {
                for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                    *dx = dy * C::at(x).1;
                }
            });
        }
    }
}

multiversion! {
    /// `y = f(gate) up` over rows (gate | up) of twice `width`.
    fn glu_rows<C: Curve>(width: usize, x: Src<'_>, y: Dst<'_>) {
        let mut y = y;
        let (mut bg, mut bu, mut by) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for row in 0..y.len() / width {
            for (c, n) in blocks(width) {
                let gate = x.read(row * 2 * width + c, n, &mut bg);
                let up = x.read(row * 2 * width + width + c, n, &mut bu);
                y.write(row * width + c, n, &mut by, |y| {
                    for ((y, &g), &u) in y.iter_mut().zip(gate).zip(up) {
                        *y = C::at(g).0 * u;
                    }
                });
            }
        }
    }
}

multiversion! {
    /// `dgate = dy f'(gate) up`, `dup = dy f(gate)`
    fn glu_backward_rows<C: Curve>(width: usize, x: Option<Src<'_>>, dy: Src<'_>, dx: Dst<'_>) {
        let mut dx = dx;
        let (mut bg, mut bu, mut bd) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        let (mut out, mut dup) = ([0.0; BLOCK], [0.0; BLOCK]);
        for row in 0..dx.len() / (2 * width) {
            for (c, n) in blocks(width) {
                let (at_gate, at_up) = (row * 2 * width + c, row * 2 * width + width + c);
                let gate = read_or(&x, &dx, at_gate, n, &mut bg);
                let up = read_or(&x, &dx, at_up, n, &mut bu);
                let dy = dy.read(row * width + c, n, &mut bd);
                dx.write(at_gate, n, &mut out, |dgate| {
                    for i in 0..n {
                        let (value, slope) = C::at(gate[i]);
                        dgate[i] = dy[i] * slope * up[i];
                        dup[i] = dy[i] * value;
                    }
                });
                dx.store(at_up, &dup[..n]);
            }
        }
    }
}

impl ActivationOps for CpuOps {
    fn activation(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let n = check_plain("activation", x, None, y)?;
        let (x, y) = (apart(x, y), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and x is apart from y.
            let (x, y) = unsafe { (x.map(|x| Src::of(x)), DstRows::of(y, 1)) };
            team.rows(y, n, GRAIN, |r, y, _| {
                curve!(f, C => forward::<C>(team.isa(), x.map(|x| x.slice(r)), y));
            })
        })
    }

    fn activation_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        let n = check_plain("activation_backward", x, Some(dy), dx)?;
        let (x, dy, dx) = (In::of(x), apart(dy, dx), Out::of(dx));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and inputs are apart from dx.
            let (x, dy, dx) = unsafe { (Src::of(x), dy.map(|dy| Src::of(dy)), DstRows::of(dx, 1)) };
            team.rows(dx, n, GRAIN, |r, dx, _| {
                curve!(f, C => backward::<C>(team.isa(), x.slice(r.clone()), dy.map(|dy| dy.slice(r)), dx));
            })
        })
    }

    fn glu(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let (t, width) = check_glu("glu", x, None, y)?;
        let (x, y) = (In::of(x), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has them apart.
            let (x, y) = unsafe { (Src::of(x), DstRows::of(y, width)) };
            team.rows(y, t, row_grain(width * 8), |r, y, _| {
                let x = x.slice(r.start * 2 * width..r.end * 2 * width);
                curve!(f, C => glu_rows::<C>(team.isa(), width, x, y));
            })
        })
    }

    fn glu_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        let (t, width) = check_glu("glu_backward", x, Some(dx), dy)?;
        let (x, dy, dx) = (apart(x, dx), In::of(dy), Out::of(dx));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and inputs are apart from dx.
            let (x, dy, dx) = unsafe { (x.map(|x| Src::of(x)), Src::of(dy), DstRows::of(dx, 2 * width)) };
            team.rows(dx, t, row_grain(width * 12), |r, dx, _| {
                let x = x.map(|x| x.slice(r.start * 2 * width..r.end * 2 * width));
                let dy = dy.slice(r.start * width..r.end * width);
                curve!(f, C => glu_backward_rows::<C>(team.isa(), width, x, dy, dx));
            })
        })
    }
}
