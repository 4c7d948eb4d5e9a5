//! Optimizer updates, composed: aclnn's AdamW takes the learning rate from the host, the contract has it on the device.

use ferrotron_device::ops::OptimizerOps;
use ferrotron_device::ops::optimizer::{
    AdamConfig, BIAS1, BIAS2, GRAD_FACTOR, LR, WEIGHT_DECAY, check, check_reduction,
};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::launch::Launch;
use crate::view::View;

/// Elements updated at a time: a bound for scratch.
const CHUNK: usize = 1 << 24;

/// Ranges of at most [`CHUNK`] elements.
fn chunks(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(CHUNK).map(move |start| (start, CHUNK.min(n - start)))
}

/// Elements `start .. start + n` of a flat tensor.
fn range(t: &Tensor, (start, n): (usize, usize)) -> View {
    flat(&t.view(start, [n]))
}

/// One of the step's scalars.
fn scalar(scalars: &Tensor, i: usize) -> View {
    flat(scalars).strided(&[1], &[1], i)
}

/// Learning rate and weight decay of a range, `F32[1]` each.
fn rates(l: &mut Launch<'_>, scalars: &Tensor, decay: f32, lr_mult: f32) -> Result<(View, View)> {
    let (lr, wd) = (l.f32(&[1])?, l.f32(&[1])?);
    l.mul_number(&scalar(scalars, LR), lr_mult, &lr)?;
    l.mul_number(&scalar(scalars, WEIGHT_DECAY), decay, &wd)?;
    Ok((lr, wd))
}

impl OptimizerOps for AscendOps {
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
        let p = check("adam", scalars, grad, &[master, m, v], param.as_deref())?;
        // 1 - beta in f64: in f32 the second has few digits left
        let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
        for part in chunks(p) {
            let mut l = Launch::begin(s, "adam")?;
            let (w, m, v) = (range(master, part), range(m, part), range(v, part));
            let (g, x) = (l.f32(&w.dims)?, l.f32(&w.dims)?);
            let (lr, wd) = rates(&mut l, scalars, decay, lr_mult)?;
            l.mul(&range(grad, part), &scalar(scalars, GRAD_FACTOR), &g)?;
            l.mul(&w, &wd, &x)?;
            if c.decoupled {
                l.mul(&x, &lr, &x)?;
                l.add_to(&w, &x, -1.0)?;
            } else {
                l.add_to(&g, &x, 1.0)?;
            }
            l.mul_number(&m, c.beta1, &m)?;
            l.add_to(&m, &g, rest(c.beta1))?;
            l.mul(&g, &g, &x)?;
            l.mul_number(&v, c.beta2, &v)?;
            l.add_to(&v, &x, rest(c.beta2))?;
            l.div(&v, &scalar(scalars, BIAS2), &x)?;
            l.sqrt(&x, &x)?;
            l.add_number(&x, c.eps, &x)?;
            l.div(&m, &scalar(scalars, BIAS1), &g)?;
            l.div(&g, &x, &g)?;
            l.mul(&g, &lr, &g)?;
            l.add_to(&w, &g, -1.0)?;
            if let Some(param) = param.as_deref() {
                l.copy(&w, &range(param, part))?;
            }
        }
        Ok(())
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
        let p = check("sgd", scalars, grad, &[master, buf], param.as_deref())?;
        for part in chunks(p) {
            let mut l = Launch::begin(s, "sgd")?;
            let (w, buf) = (range(master, part), range(buf, part));
            let (g, x) = (l.f32(&w.dims)?, l.f32(&w.dims)?);
            let (lr, wd) = rates(&mut l, scalars, decay, lr_mult)?;
            l.mul(&range(grad, part), &scalar(scalars, GRAD_FACTOR), &g)?;
            l.mul(&w, &wd, &x)?;
            l.add_to(&g, &x, 1.0)?;
            l.mul_number(&buf, momentum, &buf)?;
            l.add_to(&buf, &g, 1.0)?;
            l.mul(&buf, &lr, &x)?;
            l.add_to(&w, &x, -1.0)?;
            if let Some(param) = param.as_deref() {
                l.copy(&w, &range(param, part))?;
            }
        }
        Ok(())
    }

    fn sum_squares(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let p = check_reduction("sum_squares", x, out)?;
        for part in chunks(p) {
            let mut l = Launch::begin(s, "sum_squares")?;
            let x32 = l.in_f32(&range(x, part))?;
            let (squares, sum) = (l.f32(&x32.dims)?, l.f32(&[1])?);
            l.mul(&x32, &x32, &squares)?;
            l.sum(&squares, 0, &sum)?;
            l.add_to(&flat(out), &sum, 1.0)?;
        }
        Ok(())
    }

    fn count_zeros(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let p = check_reduction("count_zeros", x, out)?;
        for part in chunks(p) {
            let mut l = Launch::begin(s, "count_zeros")?;
            let zeros = l.equals(&range(x, part), 0.0)?;
            let sum = l.f32(&[1])?;
            l.sum(&zeros, 0, &sum)?;
            l.add_to(&flat(out), &sum, 1.0)?;
        }
        Ok(())
    }
}
