//! Activations, plain and gated.

use ferrotron_device::ops::activation::{check_glu, check_plain};
use ferrotron_device::ops::{Activation, ActivationOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::launch::Launch;
use crate::steps::step;
use crate::view::View;

/// Slope of QuickGELU's sigmoid.
const QUICK: f32 = 1.702;

/// True when one operator computes it, and its gradient, in the storage dtype.
fn single(f: Activation) -> bool {
    !matches!(f, Activation::QuickGelu | Activation::SquaredRelu)
}

/// `y = f(x)`. Composed ones in float32.
fn apply(l: &mut Launch<'_>, f: Activation, x: &View, y: &View) -> Result<()> {
    match f {
        Activation::Gelu => l.gelu(x, false, y),
        Activation::GeluTanh => l.gelu(x, true, y),
        Activation::Silu => l.silu(x, y),
        Activation::Relu => l.relu(x, y),
        // x sigmoid(cx) = silu(cx) / c
        Activation::QuickGelu => {
            let z = l.f32(&x.dims)?;
            l.mul_number(x, QUICK, &z)?;
            l.silu(&z, &z)?;
            l.mul_number(&z, 1.0 / QUICK, y)
        }
        Activation::SquaredRelu => {
            l.relu(x, y)?;
            l.mul(y, y, y)
        }
    }
}

/// `dx = dy f'(x)`; dx may be dy, not x.
fn apply_backward(l: &mut Launch<'_>, f: Activation, x: &View, dy: &View, dx: &View) -> Result<()> {
    match f {
        Activation::Gelu => l.gelu_backward(dy, x, false, dx),
        Activation::GeluTanh => l.gelu_backward(dy, x, true, dx),
        Activation::Silu => l.silu_backward(dy, x, dx),
        Activation::Relu => l.relu_backward(dy, x, dx),
        // (silu(cx) / c)' = silu'(cx)
        Activation::QuickGelu => {
            let z = l.f32(&x.dims)?;
            l.mul_number(x, QUICK, &z)?;
            l.silu_backward(dy, &z, dx)
        }
        // 2 max(x, 0) dy
        Activation::SquaredRelu => {
            let z = l.f32(&x.dims)?;
            l.relu(x, &z)?;
            l.mul_number(&z, 2.0, &z)?;
            l.mul(dy, &z, dx)
        }
    }
}

/// The two halves of x `[T,2F]`.
fn halves(x: &View, t: usize, f: usize) -> (View, View) {
    (x.strided(&[t, f], &[2 * f, 1], 0), x.strided(&[t, f], &[2 * f, 1], f))
}

impl ActivationOps for AscendOps {
    fn activation(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        if check_plain("activation", x, None, y)? == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "activation")?;
        let (x, y) = (flat(x), flat(y));
        if single(f) {
            return apply(&mut l, f, &x, &y);
        }
        let (x32, y32) = (l.in_f32(&x)?, l.f32(&y.dims)?);
        apply(&mut l, f, &x32, &y32)?;
        l.copy(&y32, &y)
    }

    fn activation_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        if check_plain("activation_backward", x, Some(dy), dx)? == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "activation_backward")?;
        let (x, dy, dx) = (flat(x), flat(dy), flat(dx));
        if single(f) {
            return apply_backward(&mut l, f, &x, &dy, &dx);
        }
        let (x32, dy32, dx32) = (l.in_f32(&x)?, l.in_f32(&dy)?, l.f32(&dx.dims)?);
        apply_backward(&mut l, f, &x32, &dy32, &dx32)?;
        l.copy(&dx32, &dx)
    }

    fn glu(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let (t, width) = check_glu("glu", x, None, y)?;
        if t * width == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "glu")?;
        let (x, y) = (View::of(x, &[t, 2 * width]), View::of(y, &[t, width]));
        if f == Activation::Silu {
            let (xt, yt) = (l.tensor(&x)?, l.tensor(&y)?);
            return step!(l, aclnnSwiGlu; [&x, &y]; xt, -1, yt);
        }
        let (gate, up) = halves(&x, t, width);
        let (g, u, a) = (l.f32(&y.dims)?, l.f32(&y.dims)?, l.f32(&y.dims)?);
        l.copy(&gate, &g)?;
        l.copy(&up, &u)?;
        apply(&mut l, f, &g, &a)?;
        l.mul(&a, &u, &a)?;
        l.copy(&a, &y)
    }

    fn glu_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        let (t, width) = check_glu("glu_backward", x, Some(dx), dy)?;
        if t * width == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "glu_backward")?;
        let (x, dx, dy) = (View::of(x, &[t, 2 * width]), View::of(dx, &[t, 2 * width]), View::of(dy, &[t, width]));
        if f == Activation::Silu {
            // the operator is not in place, the contract lets dx be x
            let to = if dx.same_memory(&x) { l.scratch(dx.dtype, &dx.dims)? } else { dx.clone() };
            let (gt, xt, dt) = (l.tensor(&dy)?, l.tensor(&x)?, l.tensor(&to)?);
            step!(l, aclnnSwiGluGrad; [&dy, &x, &to]; gt, xt, -1, dt)?;
            return if to.same_memory(&dx) { Ok(()) } else { l.copy(&to, &dx) };
        }
        let ((gate, up), (dgate, dup)) = (halves(&x, t, width), halves(&dx, t, width));
        let (g, u, a) = (l.f32(&dy.dims)?, l.f32(&dy.dims)?, l.f32(&dy.dims)?);
        let dy32 = l.in_f32(&dy)?;
        l.copy(&gate, &g)?;
        l.copy(&up, &u)?;
        apply(&mut l, f, &g, &a)?;
        l.mul(&a, &dy32, &a)?;
        l.copy(&a, &dup)?;
        l.mul(&u, &dy32, &u)?;
        apply_backward(&mut l, f, &g, &u, &a)?;
        l.copy(&a, &dgate)
    }
}
