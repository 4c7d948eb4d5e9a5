//! RMSNorm and LayerNorm. Contract: `ferrotron_device::ops::norm`.
//!
//! Both share their loops: RMSNorm is LayerNorm with a mean of zero and no bias. Weight gradients are summed before
//! dx, which may overwrite dy, by tasks of [`COLUMNS`] columns that add rows in their order.

use ferrotron_device::ops::NormOps;
use ferrotron_device::ops::norm::{check_backward, check_forward};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{BLOCK, Dst, DstRows, Src, blocks, read_or};
use super::elementwise::{COLUMNS, sum_rows};
use super::math;
use crate::CpuOps;
use crate::multiversion;
use crate::team::{Team, row_grain};
use crate::view::{In, Out, rows};

/// `w`, or `1 + w`: what is added to w.
fn shift(plus_one: bool) -> f32 {
    if plus_one { 1.0 } else { 0.0 }
}

multiversion! {
    /// (mean, 1/std) of each row; with `centred` false the mean is 0 and the variance is the mean square. Two passes
    /// over a row in the cache: `E[x^2] - E[x]^2` would cancel.
    fn statistics(centred: bool, eps: f32, h: usize, x: Src<'_>, mean: Option<&mut [f32]>, rstd: &mut [f32]) {
        let mut buf = [0.0; BLOCK];
        let mut mean = mean;
        for (t, rstd) in rstd.iter_mut().enumerate() {
            let mut mu = 0.0;
            if centred {
                let mut total = 0.0;
                for (c, n) in blocks(h) {
                    let x = x.read(t * h + c, n, &mut buf);
                    total += math::sum([x], |[x]| x);
                }
                mu = total / h as f32;
            }
            let mut total = 0.0;
            for (c, n) in blocks(h) {
                let x = x.read(t * h + c, n, &mut buf);
                total += math::sum([x], |[x]| (x - mu) * (x - mu));
            }
            *rstd = 1.0 / (total / h as f32 + eps).sqrt();
            if let Some(mean) = &mut mean {
                mean[t] = mu;
            }
        }
    }
}

multiversion! {
    /// `y = (x - mean) rstd (w + shift) + b`
    fn normalise(shift: f32, x: Src<'_>, w: Src<'_>, b: Option<Src<'_>>, mean: Option<&[f32]>, rstd: &[f32], h: usize, y: Dst<'_>) {
        let mut y = y;
        let (mut bx, mut bw, mut bb, mut by) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for (t, &r) in rstd.iter().enumerate() {
            let mu = mean.map_or(0.0, |m| m[t]);
            for (c, n) in blocks(h) {
                let x = x.read(t * h + c, n, &mut bx);
                let w = w.read(c, n, &mut bw);
                let b = b.as_ref().map(|b| b.read(c, n, &mut bb));
                y.write(t * h + c, n, &mut by, |y| match b {
                    None => {
                        for ((y, &x), &w) in y.iter_mut().zip(x).zip(w) {
                            *y = x * r * (w + shift);
                        }
                    }
                    Some(b) => {
                        for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(w).zip(b) {
                            *y = (x - mu) * r * (w + shift) + b;
                        }
                    }
                });
            }
        }
    }
}

multiversion! {
    /// `dx = rstd (g - mean(g) - xh mean(g xh))`, `g = dy (w + shift)`, `xh = (x - mean) rstd`; without `mean(g)` when
    /// there is no mean.
    fn input_gradient(shift: f32, x: Src<'_>, w: Src<'_>, mean: Option<&[f32]>, rstd: &[f32], h: usize, dy: Option<Src<'_>>, dx: Dst<'_>) {
        let mut dx = dx;
        let (mut bx, mut bw, mut bd, mut out) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for (t, &r) in rstd.iter().enumerate() {
            let mu = mean.map_or(0.0, |m| m[t]);
            let (mut sum_g, mut sum_gxh) = (0.0, 0.0);
            for (c, n) in blocks(h) {
                let x = x.read(t * h + c, n, &mut bx);
                let w = w.read(c, n, &mut bw);
                let dy = read_or(&dy, &dx, t * h + c, n, &mut bd);
                if mean.is_some() {
                    sum_g += math::sum([dy, w], |[dy, w]| dy * (w + shift));
                }
                sum_gxh += math::sum([dy, w, x], |[dy, w, x]| dy * (w + shift) * ((x - mu) * r));
            }
            let (mean_g, mean_gxh) = (sum_g / h as f32, sum_gxh / h as f32);
            for (c, n) in blocks(h) {
                let x = x.read(t * h + c, n, &mut bx);
                let w = w.read(c, n, &mut bw);
                let dy = read_or(&dy, &dx, t * h + c, n, &mut bd);
                dx.write(t * h + c, n, &mut out, |dx| {
                    for (((dx, &x), &w), &dy) in dx.iter_mut().zip(x).zip(w).zip(dy) {
                        *dx = r * (dy * (w + shift) - mean_g - (x - mu) * r * mean_gxh);
                    }
                });
            }
        }
    }
}

multiversion! {
    /// `dw[c] += sum_t dy xh` over columns `first ..`, in the order of t.
    fn weight_gradient(x: Src<'_>, mean: Option<&[f32]>, rstd: &[f32], h: usize, dy: Src<'_>, first: usize, dw: &mut [f32]) {
        let (mut bx, mut bd) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (t, &r) in rstd.iter().enumerate() {
            let mu = mean.map_or(0.0, |m| m[t]);
            for (at, n) in blocks(dw.len()) {
                let x = x.read(t * h + first + at, n, &mut bx);
                let dy = dy.read(t * h + first + at, n, &mut bd);
                for ((dw, &x), &dy) in dw[at..at + n].iter_mut().zip(x).zip(dy) {
                    *dw += dy * ((x - mu) * r);
                }
            }
        }
    }
}

/// Arguments of either backward pass, as a job holds them.
#[derive(Clone, Copy)]
struct Backward {
    t: usize,
    h: usize,
    shift: f32,
    x: In,
    w: In,
    /// `[T]` 1/std, or `[2,T]` with the means first.
    stats: In,
    centred: bool,
    dy: In,
    dx: Out,
    dw: Option<Out>,
    db: Option<Out>,
}

impl Backward {
    fn run(self, team: &Team) -> Result<()> {
        let Backward { t, h, shift, .. } = self;
        // SAFETY: stream order keeps the tensors until this job is done; outputs are apart from inputs, but for dx
        // that may be dy, of which there is only one slice at a time.
        let (x, w, stats) = unsafe { (Src::of(self.x), Src::of(self.w), self.stats.get::<f32>()) };
        let (mean, rstd) = stats.split_at(stats.len() - t);
        let mean = self.centred.then_some(mean);
        if self.dw.is_some() || self.db.is_some() {
            // SAFETY: as above; this slice ends before dx is written.
            let dy = unsafe { Src::of(self.dy) };
            if let Some(dw) = self.dw {
                // SAFETY: as above.
                let dw = unsafe { dw.get::<f32>() };
                team.rows(rows(dw, 1), h, COLUMNS, |c, dw, _| {
                    weight_gradient(team.isa(), x, mean, rstd, h, dy, c.start, dw);
                })?;
            }
            if let Some(db) = self.db {
                // SAFETY: as above.
                let db = unsafe { db.get::<f32>() };
                team.rows(rows(db, 1), h, COLUMNS, |c, db, _| sum_rows(team.isa(), dy, h, t, c.start, db))?;
            }
        }
        let dy = (!self.dx.same(self.dy)).then_some(self.dy);
        // SAFETY: as above.
        let (dy, dx) = unsafe { (dy.map(|dy| Src::of(dy)), DstRows::of(self.dx, h)) };
        team.rows(dx, t, row_grain(h * 12), |r, dx, _| {
            let row = r.start * h..r.end * h;
            let (x, dy, mean) = (x.slice(row.clone()), dy.map(|dy| dy.slice(row)), mean.map(|m| &m[r.clone()]));
            input_gradient(team.isa(), shift, x, w, mean, &rstd[r], h, dy, dx);
        })
    }
}

impl NormOps for CpuOps {
    fn rms_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        y: &mut Tensor,
        rstd: &mut Tensor,
    ) -> Result<()> {
        let (t, h) = check_forward("rms_norm", x, &[w], y, rstd, 1)?;
        let (x, w, y, rstd) = (In::of(x), In::of(w), Out::of(y), Out::of(rstd));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the checks have them apart.
            let (x, w, rstd) = unsafe { (Src::of(x), Src::of(w), rstd.get::<f32>()) };
            // SAFETY: as above.
            let y = unsafe { DstRows::of(y, h) };
            team.rows((rows(rstd, 1), y), t, row_grain(h * 8), |r, (rstd, y), _| {
                let x = x.slice(r.start * h..r.end * h);
                statistics(team.isa(), false, eps, h, x, None, rstd);
                normalise(team.isa(), shift(plus_one), x, w, None, None, rstd, h, y);
            })
        })
    }

    fn rms_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dw: Option<&mut Tensor>,
    ) -> Result<()> {
        let (t, h) = check_backward("rms_norm_backward", x, w, rstd, 1, dy, dx, dw.as_deref().as_slice())?;
        let job = Backward {
            t,
            h,
            shift: shift(plus_one),
            x: In::of(x),
            w: In::of(w),
            stats: In::of(rstd),
            centred: false,
            dy: In::of(dy),
            dx: Out::of(dx),
            dw: dw.map(Out::of),
            db: None,
        };
        self.run(s, move |team| job.run(team))
    }

    fn layer_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        y: &mut Tensor,
        stats: &mut Tensor,
    ) -> Result<()> {
        let (t, h) = check_forward("layer_norm", x, &[w, b], y, stats, 2)?;
        let (x, w, b, y, stats) = (In::of(x), In::of(w), In::of(b), Out::of(y), Out::of(stats));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the checks have them apart.
            let (x, w, b) = unsafe { (Src::of(x), Src::of(w), Src::of(b)) };
            // SAFETY: as above.
            let (y, stats) = unsafe { (DstRows::of(y, h), stats.get::<f32>()) };
            let (mean, rstd) = stats.split_at_mut(t);
            team.rows((rows(mean, 1), rows(rstd, 1), y), t, row_grain(h * 8), |r, (mean, rstd, y), _| {
                let x = x.slice(r.start * h..r.end * h);
                statistics(team.isa(), true, eps, h, x, Some(&mut *mean), rstd);
                normalise(team.isa(), shift(plus_one), x, w, Some(b), Some(mean), rstd, h, y);
            })
        })
    }

    fn layer_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dwb: Option<(&mut Tensor, &mut Tensor)>,
    ) -> Result<()> {
        let (dw, db) = dwb.unzip();
        let grads = dw.as_deref().zip(db.as_deref()).map(|(dw, db)| [dw, db]);
        let grads = grads.as_ref().map_or(&[][..], |g| g);
        let (t, h) = check_backward("layer_norm_backward", x, w, stats, 2, dy, dx, grads)?;
        let job = Backward {
            t,
            h,
            shift: shift(plus_one),
            x: In::of(x),
            w: In::of(w),
            stats: In::of(stats),
            centred: true,
            dy: In::of(dy),
            dx: Out::of(dx),
            dw: dw.map(Out::of),
            db: db.map(Out::of),
        };
        self.run(s, move |team| job.run(team))
    }
}
