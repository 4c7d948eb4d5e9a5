//! Cross-entropy in pieces. Contract: `ferrotron_device::ops::cross_entropy`.

use ferrotron_device::ops::CrossEntropyOps;
use ferrotron_device::ops::cross_entropy::{check_backward, check_loss, check_rescale, check_stats};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{BLOCK, Dst, DstRows, GRAIN, Src, apart, blocks, read_or};
use super::math;
use crate::CpuOps;
use crate::multiversion;
use crate::team::row_grain;
use crate::view::{In, Out, rows};

/// Column of a shard that a label names.
#[inline(always)]
fn column(label: i32, first: usize, v: usize) -> Option<usize> {
    let c = i64::from(label) - first as i64;
    (0..v as i64).contains(&c).then_some(c as usize)
}

multiversion! {
    /// Largest logit of a row and the sum of exponentials below it, in one pass over memory: when a block raises the
    /// maximum, the sum so far is brought to it (Milakov & Gimelshein 2018). Sums of blocks are added in f64.
    fn row_stats(z: &[f32]) -> (f32, f32) {
        let (mut m, mut s, mut e) = (f32::NEG_INFINITY, 0f64, [0.0; BLOCK]);
        for z in z.chunks(BLOCK) {
            let higher = math::max(z);
            if higher > m {
                // exp(-inf - m) = 0: right for the first block
                s *= f64::from(math::exp(m - higher));
                m = higher;
            }
            // Nothing but minus infinities so far: they add nothing, and -inf - -inf would be NaN. NaN shows.
            if m > f32::NEG_INFINITY || z.iter().any(|z| z.is_nan()) {
                for (e, &z) in e.iter_mut().zip(z) {
                    *e = math::exp(z - m);
                }
                s += f64::from(math::sum([&e[..z.len()]], |[e]| e));
            }
        }
        (m, s as f32)
    }
}

multiversion! {
    /// One row of dz: `(exp(z - lse) - [label]) factor`.
    fn row_gradient(z: Option<Src<'_>>, label: Option<usize>, lse: f32, factor: f32, dz: Dst<'_>) {
        let mut dz = dz;
        let (mut bz, mut out) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (at, n) in blocks(dz.len()) {
            let z = read_or(&z, &dz, at, n, &mut bz);
            // Read before dz, which may be z, is written. The label's own gradient is near -1: subtract before rounding.
            let hit = label.filter(|c| (at..at + n).contains(c)).map(|c| (c, (math::exp(z[c - at] - lse) - 1.0) * factor));
            dz.write(at, n, &mut out, |dz| {
                for (dz, &z) in dz.iter_mut().zip(z) {
                    *dz = math::exp(z - lse) * factor;
                }
            });
            if let Some((c, value)) = hit {
                dz.store(c, &[value]);
            }
        }
    }
}

multiversion! {
    fn rescale(old_max: &[f32], new_max: &[f32], sum: &mut [f32]) {
        for ((s, &old), &new) in sum.iter_mut().zip(old_max).zip(new_max) {
            *s *= math::exp(old - new);
        }
    }
}

impl CrossEntropyOps for CpuOps {
    fn ce_stats(
        &self,
        s: &Stream,
        z: &Tensor,
        labels: &Tensor,
        first: usize,
        max: &mut Tensor,
        sum: &mut Tensor,
        target: &mut Tensor,
    ) -> Result<()> {
        let (r, v) = check_stats(z, labels, [max, sum, target])?;
        let (z, labels) = (In::of(z), In::of(labels));
        let (max, sum, target) = (Out::of(max), Out::of(sum), Out::of(target));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done.
            let (z, labels) = unsafe { (z.get::<f32>(), labels.get::<i32>()) };
            // SAFETY: as above.
            let (max, sum, target) = unsafe { (max.get::<f32>(), sum.get::<f32>(), target.get::<f32>()) };
            let out = (rows(max, 1), rows(sum, 1), rows(target, 1));
            team.rows(out, r, row_grain(v * 4), |range, (max, sum, target), _| {
                for (i, t) in range.enumerate() {
                    let z = &z[t * v..(t + 1) * v];
                    (max[i], sum[i]) = row_stats(team.isa(), z);
                    target[i] = column(labels[t], first, v).map_or(0.0, |c| z[c]);
                }
            })
        })
    }

    fn ce_rescale(&self, s: &Stream, old_max: &Tensor, new_max: &Tensor, sum: &mut Tensor) -> Result<()> {
        let n = check_rescale(old_max, new_max, sum)?;
        let (old_max, new_max, sum) = (In::of(old_max), In::of(new_max), Out::of(sum));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done.
            let (old, new, sum) = unsafe { (old_max.get::<f32>(), new_max.get::<f32>(), sum.get::<f32>()) };
            team.rows(rows(sum, 1), n, GRAIN, |r, sum, _| rescale(team.isa(), &old[r.clone()], &new[r], sum))
        })
    }

    fn ce_loss(
        &self,
        s: &Stream,
        max: &Tensor,
        sum: &Tensor,
        target: &Tensor,
        lse: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()> {
        let n = check_loss([max, sum, target], lse, loss)?;
        let (max, sum, target) = (In::of(max), In::of(sum), In::of(target));
        let (lse, loss) = (Out::of(lse), Out::of(loss));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done.
            let (max, sum, target) = unsafe { (max.get::<f32>(), sum.get::<f32>(), target.get::<f32>()) };
            // SAFETY: as above.
            let (lse, loss) = unsafe { (lse.get::<f32>(), loss.get::<f32>()) };
            team.rows((rows(lse, 1), rows(loss, 1)), n, GRAIN, |r, (lse, loss), _| {
                for (i, t) in r.enumerate() {
                    // The loss is the sum of a few logs a step; f64 costs nothing and loses nothing.
                    let l = f64::from(max[t]) + f64::from(sum[t]).ln();
                    lse[i] = l as f32;
                    loss[i] = (l - f64::from(target[t])) as f32;
                }
            })
        })
    }

    fn ce_backward(
        &self,
        s: &Stream,
        z: &Tensor,
        labels: &Tensor,
        first: usize,
        lse: &Tensor,
        weight: &Tensor,
        scale: &Tensor,
        dz: &mut Tensor,
    ) -> Result<()> {
        let (r, v) = check_backward(z, labels, lse, weight, scale, dz)?;
        let (z, dz) = (apart(z, dz), Out::of(dz));
        let (labels, lse, weight, scale) = (In::of(labels), In::of(lse), In::of(weight), In::of(scale));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; inputs are apart from dz.
            let (z, dz) = unsafe { (z.map(|z| Src::of(z)), DstRows::of(dz, v)) };
            // SAFETY: as above.
            let (labels, lse, weight) = unsafe { (labels.get::<i32>(), lse.get::<f32>(), weight.get::<f32>()) };
            // SAFETY: as above.
            let scale = unsafe { scale.get::<f32>() }[0];
            team.rows(dz, r, row_grain(v * 8), |range, mut dz, _| {
                for (i, t) in range.enumerate() {
                    let z = z.map(|z| z.slice(t * v..(t + 1) * v));
                    let dz = dz.slice_mut(i * v..(i + 1) * v);
                    let label = column(labels[t], first, v);
                    row_gradient(team.isa(), z, label, lse[t], weight[t] * scale, dz);
                }
            })
        })
    }
}
