//! Optimizer updates: one pass, each array read and written once. Contract: `ferrotron_device::ops::optimizer`.

use ferrotron_device::ops::optimizer::{BIAS1, BIAS2, GRAD_FACTOR, LR, WEIGHT_DECAY, check, check_reduction};
use ferrotron_device::ops::{AdamConfig, OptimizerOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{Dst, DstRows, GRAIN, Src};
use super::reduce;
use crate::CpuOps;
use crate::multiversion;
use crate::view::{In, Out, rows};

/// Numbers of one step, from the device's scalars.
#[derive(Clone, Copy)]
struct Step {
    lr: f32,
    weight_decay: f32,
    grad_factor: f32,
    bias1: f32,
    bias2: f32,
}

impl Step {
    fn new(scalars: &[f32], decay: f32, lr_mult: f32) -> Step {
        Step {
            lr: scalars[LR] * lr_mult,
            weight_decay: scalars[WEIGHT_DECAY] * decay,
            grad_factor: scalars[GRAD_FACTOR],
            bias1: scalars[BIAS1],
            bias2: scalars[BIAS2],
        }
    }
}

multiversion! {
    fn adam_range(c: AdamConfig, step: Step, grad: &[f32], master: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let Step { lr, weight_decay, grad_factor, bias1, bias2 } = step;
        // Both kinds of decay in one loop: one of these is always neutral.
        let (shrink, l2) = if c.decoupled { (1.0 - lr * weight_decay, 0.0) } else { (1.0, weight_decay) };
        let (rate, root_bias2) = (lr / bias1, bias2.sqrt());
        let (more1, more2) = (1.0 - c.beta1, 1.0 - c.beta2);
        for (((w, m), v), &g) in master.iter_mut().zip(m).zip(v).zip(grad) {
            let g = g * grad_factor + l2 * *w;
            *m = c.beta1 * *m + more1 * g;
            *v = c.beta2 * *v + more2 * g * g;
            *w = *w * shrink - rate * *m / (v.sqrt() / root_bias2 + c.eps);
        }
    }
}

multiversion! {
    fn sgd_range(momentum: f32, step: Step, grad: &[f32], master: &mut [f32], buf: &mut [f32]) {
        let Step { lr, weight_decay, grad_factor, .. } = step;
        for ((w, b), &g) in master.iter_mut().zip(buf).zip(grad) {
            *b = momentum * *b + (g * grad_factor + weight_decay * *w);
            *w -= lr * *b;
        }
    }
}

multiversion! {
    /// The rounded copy.
    fn round(master: &[f32], param: Dst<'_>) {
        let mut param = param;
        param.store(0, master);
    }
}

/// Elements that are updated and then rounded while they are in the L1 cache.
const PIECE: usize = 1024;

impl OptimizerOps for CpuOps {
    fn adam(
        &self,
        s: &Stream,
        c: AdamConfig,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        m: &mut Tensor,
        v: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        let n = check("adam", scalars, grad, &[master, m, v], param.as_deref())?;
        let (scalars, grad) = (In::of(scalars), In::of(grad));
        let (master, m, v, param) = (Out::of(master), Out::of(m), Out::of(v), param.map(Out::of));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (scalars, grad) = unsafe { (scalars.get::<f32>(), grad.get::<f32>()) };
            // SAFETY: as above.
            let (master, m, v) = unsafe { (master.get::<f32>(), m.get::<f32>(), v.get::<f32>()) };
            // SAFETY: as above.
            let param = param.map(|p| unsafe { DstRows::of(p, 1) });
            let step = Step::new(scalars, decay, lr_mult);
            let out = (rows(master, 1), rows(m, 1), rows(v, 1), param);
            team.rows(out, n, GRAIN, |r, (master, m, v, mut param), _| {
                let pieces = master.chunks_mut(PIECE).zip(m.chunks_mut(PIECE)).zip(v.chunks_mut(PIECE));
                for (i, (((w, m), v), grad)) in pieces.zip(grad[r].chunks(PIECE)).enumerate() {
                    adam_range(team.isa(), c, step, grad, w, m, v);
                    if let Some(param) = &mut param {
                        round(team.isa(), w, param.slice_mut(i * PIECE..i * PIECE + w.len()));
                    }
                }
            })
        })
    }

    fn sgd(
        &self,
        s: &Stream,
        momentum: f32,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        buf: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        let n = check("sgd", scalars, grad, &[master, buf], param.as_deref())?;
        let (scalars, grad) = (In::of(scalars), In::of(grad));
        let (master, buf, param) = (Out::of(master), Out::of(buf), param.map(Out::of));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (scalars, grad) = unsafe { (scalars.get::<f32>(), grad.get::<f32>()) };
            // SAFETY: as above.
            let (master, buf) = unsafe { (master.get::<f32>(), buf.get::<f32>()) };
            // SAFETY: as above.
            let param = param.map(|p| unsafe { DstRows::of(p, 1) });
            let step = Step::new(scalars, decay, lr_mult);
            team.rows((rows(master, 1), rows(buf, 1), param), n, GRAIN, |r, (master, buf, mut param), _| {
                let pieces = master.chunks_mut(PIECE).zip(buf.chunks_mut(PIECE));
                for (i, ((w, buf), grad)) in pieces.zip(grad[r].chunks(PIECE)).enumerate() {
                    sgd_range(team.isa(), momentum, step, grad, w, buf);
                    if let Some(param) = &mut param {
                        round(team.isa(), w, param.slice_mut(i * PIECE..i * PIECE + w.len()));
                    }
                }
            })
        })
    }

    fn sum_squares(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let n = check_reduction("sum_squares", x, out)?;
        let (x, out) = (In::of(x), Out::of(out));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (x, out) = unsafe { (Src::of(x), out.get::<f32>()) };
            let sum = reduce::sum(team, n, |isa, r| reduce::squares(isa, x.slice(r.clone()), r.len()))?;
            out[0] = (f64::from(out[0]) + sum) as f32;
            Ok(())
        })
    }

    fn count_zeros(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let n = check_reduction("count_zeros", x, out)?;
        let (x, out) = (In::of(x), Out::of(out));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (x, out) = unsafe { (Src::of(x), out.get::<f32>()) };
            let sum = reduce::sum(team, n, |isa, r| reduce::zeros(isa, x.slice(r.clone()), r.len()))?;
            out[0] = (f64::from(out[0]) + sum) as f32;
            Ok(())
        })
    }
}
