//! Mixture of experts. Contract: `ferrotron_device::ops::moe`.

use ferrotron_device::ops::moe::{
    check_combine, check_combine_backward, check_gather, check_load_balance, check_route, check_route_backward,
    check_sort,
};
use ferrotron_device::ops::{MoeOps, RouteGrads};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{BLOCK, Dst, DstRows, Src, blocks};
use super::{math, reduce};
use crate::CpuOps;
use crate::team::row_grain;
use crate::view::{In, Out, rows};
use crate::{dispatch, multiversion};

/// Integers in the order of floats; the two zeros are one, NaN is above all.
#[inline(always)]
fn key(z: f32) -> i32 {
    let bits = (z + 0.0).to_bits() as i32;
    if z.is_nan() { i32::MAX } else { bits ^ ((bits >> 31) as u32 >> 1) as i32 }
}

/// The largest logits, of equals the first. Each is the best of those that come after the one before it.
#[inline(always)]
fn choose(z: &[f32], experts: &mut [i32]) {
    let mut last: Option<(i32, usize)> = None;
    for slot in experts {
        let mut best: Option<(i32, usize)> = None;
        for (e, &z) in z.iter().enumerate() {
            let k = key(z);
            let free = last.is_none_or(|(lk, le)| k < lk || (k == lk && e > le));
            if free && best.is_none_or(|(b, _)| k > b) {
                best = Some((k, e));
            }
        }
        // There are at least as many experts as choices.
        if let Some((_, e)) = best {
            *slot = e as i32;
        }
        last = best;
    }
}

multiversion! {
    /// Scores, choices and weights of one token; gives lse.
    fn route_row(after_choice: bool, z: &[f32], p: &mut [f32], experts: &mut [i32], w: &mut [f32]) -> f32 {
        let m = math::max(z);
        for (p, &z) in p.iter_mut().zip(z) {
            *p = math::exp(z - m);
        }
        let sum = math::sum([&*p], |[p]| p);
        for p in p.iter_mut() {
            *p /= sum;
        }
        choose(z, experts);
        if after_choice {
            let first = z[experts[0] as usize];
            for (w, &e) in w.iter_mut().zip(&*experts) {
                *w = math::exp(z[e as usize] - first);
            }
            // The terms fall: a running f32 sum would round them one way.
            let of_chosen = math::sum([&*w], |[w]| w);
            for w in w.iter_mut() {
                *w /= of_chosen;
            }
        } else {
            for (w, &e) in w.iter_mut().zip(&*experts) {
                *w = p[e as usize];
            }
        }
        (f64::from(m) + f64::from(sum).ln()) as f32
    }
}

/// One token's part of [`RouteGrads`], factors with their scale.
#[derive(Clone, Copy)]
struct Token<'a> {
    after_choice: bool,
    p: &'a [f32],
    lse: f32,
    experts: &'a [i32],
    w: &'a [f32],
    dw: &'a [f32],
    slope: &'a [f32],
    balance: f32,
    z_slope: f32,
}

multiversion! {
    fn route_gradient(t: Token<'_>, dz: &mut [f32]) {
        let mean = math::sum([t.p, t.slope], |[p, s]| p * s);
        let of_weights = t.w.iter().zip(t.dw).fold(0.0, |sum, (w, dw)| sum + w * dw);
        let same = t.z_slope * t.lse - if t.after_choice { 0.0 } else { of_weights };
        for ((dz, p), s) in dz.iter_mut().zip(t.p).zip(t.slope) {
            *dz = p * (t.balance * (s - mean) + same);
        }
        let centre = if t.after_choice { of_weights } else { 0.0 };
        for ((&e, w), dw) in t.experts.iter().zip(t.w).zip(t.dw) {
            dz[e as usize] += w * (dw - centre);
        }
    }
}

/// Counting sort by expert, stable. `next` is scratch: the place of each expert's next slot, exact in f32.
fn sort(experts: &[i32], counts: &mut [f32], next: &mut [f32], slots: &mut [i32], place: &mut [i32]) {
    counts.fill(0.0);
    for &e in experts {
        counts[e as usize] += 1.0;
    }
    let mut at = 0.0;
    for (next, n) in next.iter_mut().zip(&*counts) {
        *next = at;
        at += n;
    }
    for (slot, &e) in experts.iter().enumerate() {
        let r = next[e as usize] as usize;
        next[e as usize] += 1.0;
        slots[r] = slot as i32;
        place[slot] = r as i32;
    }
}

multiversion! {
    /// `y[t] = sum_j w[t,j] rows[place[t,j]]`
    fn combine_rows(k: usize, h: usize, place: &[i32], w: Option<&[f32]>, rows: Src<'_>, y: Dst<'_>) {
        let mut y = y;
        let (mut sum, mut buf) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (t, place) in place.chunks_exact(k).enumerate() {
            for (c, n) in blocks(h) {
                let sum = &mut sum[..n];
                sum.fill(0.0);
                for (j, &r) in place.iter().enumerate() {
                    let w = w.map_or(1.0, |w| w[t * k + j]);
                    for (s, x) in sum.iter_mut().zip(rows.read(r as usize * h + c, n, &mut buf)) {
                        *s += w * x;
                    }
                }
                y.store(t * h + c, sum);
            }
        }
    }
}

multiversion! {
    /// `dw[t,j] = dy[t] . rows[place[t,j]]`
    fn weight_gradients(k: usize, h: usize, first: usize, place: &[i32], dy: Src<'_>, rows: Src<'_>, dw: &mut [f32]) {
        let (mut bd, mut br) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (i, (dw, &r)) in dw.iter_mut().zip(place).enumerate() {
            let (t, mut sum) = (first + i / k, 0f64);
            for (c, n) in blocks(h) {
                let dy = dy.read(t * h + c, n, &mut bd);
                let x = rows.read(r as usize * h + c, n, &mut br);
                sum += f64::from(math::sum([dy, x], |[dy, x]| dy * x));
            }
            *dw = sum as f32;
        }
    }
}

multiversion! {
    /// `d_rows[r] = w[slots[r]] dy[slots[r] / k]`
    fn row_gradients(k: usize, h: usize, slots: &[i32], w: &[f32], dy: Src<'_>, d_rows: Dst<'_>) {
        let mut d_rows = d_rows;
        let (mut bd, mut out) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (r, &slot) in slots.iter().enumerate() {
            let (t, w) = (slot as usize / k, w[slot as usize]);
            for (c, n) in blocks(h) {
                let dy = dy.read(t * h + c, n, &mut bd);
                d_rows.write(r * h + c, n, &mut out, |d| {
                    for (d, dy) in d.iter_mut().zip(dy) {
                        *d = w * dy;
                    }
                });
            }
        }
    }
}

impl MoeOps for CpuOps {
    fn route(
        &self,
        s: &Stream,
        after_choice: bool,
        z: &Tensor,
        scores: &mut Tensor,
        lse: &mut Tensor,
        experts: &mut Tensor,
        weights: &mut Tensor,
    ) -> Result<()> {
        let (t, e, k) = check_route(z, scores, lse, experts, weights)?;
        let (z, scores, lse) = (In::of(z), Out::of(scores), Out::of(lse));
        let (experts, weights) = (Out::of(experts), Out::of(weights));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has them apart.
            let (z, scores, lse) = unsafe { (z.get::<f32>(), scores.get::<f32>(), lse.get::<f32>()) };
            // SAFETY: as above.
            let (experts, weights) = unsafe { (experts.get::<i32>(), weights.get::<f32>()) };
            let out = (rows(scores, e), rows(lse, 1), rows(experts, k), rows(weights, k));
            team.rows(out, t, row_grain(e * 8), |r, (p, lse, experts, w), _| {
                for (i, t) in r.enumerate() {
                    let (p, of_k) = (&mut p[i * e..(i + 1) * e], i * k..(i + 1) * k);
                    let (experts, w) = (&mut experts[of_k.clone()], &mut w[of_k]);
                    lse[i] = route_row(team.isa(), after_choice, &z[t * e..(t + 1) * e], p, experts, w);
                }
            })
        })
    }

    fn route_backward(&self, s: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()> {
        let (t, e, k) = check_route_backward(&g, dz)?;
        let (scores, lse, experts) = (In::of(g.scores), In::of(g.lse), In::of(g.experts));
        let (weights, d_weights) = (In::of(g.weights), In::of(g.d_weights));
        let (slope, scale, dz) = (In::of(g.slope), In::of(g.scale), Out::of(dz));
        let (after_choice, balance, z_slope) = (g.after_choice, g.balance, g.z_slope);
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has dz apart.
            let (p, lse, experts) = unsafe { (scores.get::<f32>(), lse.get::<f32>(), experts.get::<i32>()) };
            // SAFETY: as above.
            let (w, dw, slope) = unsafe { (weights.get::<f32>(), d_weights.get::<f32>(), slope.get::<f32>()) };
            // SAFETY: as above.
            let (scale, dz) = unsafe { (scale.get::<f32>()[0], dz.get::<f32>()) };
            let (balance, z_slope) = (balance * scale, z_slope * scale);
            team.rows(rows(dz, e), t, row_grain(e * 12), |r, dz, _| {
                for (t, dz) in r.zip(dz.chunks_exact_mut(e)) {
                    let (of_e, of_k) = (t * e..(t + 1) * e, t * k..(t + 1) * k);
                    let (p, experts, w, dw) = (&p[of_e], &experts[of_k.clone()], &w[of_k.clone()], &dw[of_k]);
                    let token = Token { after_choice, p, lse: lse[t], experts, w, dw, slope, balance, z_slope };
                    route_gradient(team.isa(), token, dz);
                }
            })
        })
    }

    fn sort_by_expert(
        &self,
        s: &Stream,
        experts: &Tensor,
        counts: &mut Tensor,
        slots: &mut Tensor,
        place: &mut Tensor,
    ) -> Result<()> {
        let (r, e) = check_sort(experts, counts, slots, place)?;
        let (experts, counts, slots, place) = (In::of(experts), Out::of(counts), Out::of(slots), Out::of(place));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has them apart.
            let (experts, counts) = unsafe { (experts.get::<i32>(), counts.get::<f32>()) };
            // SAFETY: as above.
            let (slots, place) = unsafe { (slots.get::<i32>(), place.get::<i32>()) };
            // One task: a pass over a few integers a token.
            let out = (rows(counts, e), rows(slots, r), rows(place, r));
            team.rows(out, 1, 1, |_, (counts, slots, place), scratch| {
                sort(experts, counts, scratch.f32s(e), slots, place);
            })
        })
    }

    fn load_balance(
        &self,
        s: &Stream,
        scores: &Tensor,
        counts: &Tensor,
        tokens: usize,
        chosen: usize,
        slope: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()> {
        let (t, e) = check_load_balance(scores, counts, tokens, chosen, slope, loss)?;
        let (scores, counts, slope, loss) = (In::of(scores), In::of(counts), Out::of(slope), Out::of(loss));
        let factor = e as f64 / (chosen as f64 * (tokens as f64).powi(2));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has them apart.
            let (p, n) = unsafe { (scores.get::<f32>(), counts.get::<f32>()) };
            // SAFETY: as above.
            let (slope, loss) = unsafe { (slope.get::<f32>(), loss.get::<f32>()) };
            for (s, n) in slope.iter_mut().zip(n) {
                *s = (f64::from(*n) * factor) as f32;
            }
            let slope = &*slope;
            // Terms of equal columns follow each other at a distance of E, wherever a piece begins.
            let sum = reduce::sum(team, t * e, |_, r| {
                let of_column = slope.iter().cycle().skip(r.start % e);
                p[r].iter().zip(of_column).map(|(p, s)| f64::from(*p) * f64::from(*s)).sum()
            })?;
            loss[0] = (f64::from(loss[0]) + sum) as f32;
            Ok(())
        })
    }

    fn gather_rows(&self, s: &Stream, x: &Tensor, index: &Tensor, per: usize, y: &mut Tensor) -> Result<()> {
        let (r, h) = check_gather(x, index, per, y)?;
        let grain = row_grain(2 * h * x.dtype().size());
        let (x, index, y) = (In::of(x), In::of(index), Out::of(y));
        dispatch!(x.dtype(), T => self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has y apart.
            let (x, index, y) = unsafe { (x.get::<T>(), index.get::<i32>(), y.get::<T>()) };
            team.rows(rows(y, h), r, grain, |r, y, _| {
                for (i, y) in index[r].iter().zip(y.chunks_exact_mut(h.max(1))) {
                    let row = *i as usize / per;
                    y.copy_from_slice(&x[row * h..(row + 1) * h]);
                }
            })
        }))
    }

    fn combine(&self, s: &Stream, x: &Tensor, place: &Tensor, w: Option<&Tensor>, y: &mut Tensor) -> Result<()> {
        let (t, k, h) = check_combine(x, place, w, y)?;
        let (x, place, w, y) = (In::of(x), In::of(place), w.map(In::of), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has y apart.
            let (x, place, y) = unsafe { (Src::of(x), place.get::<i32>(), DstRows::of(y, h)) };
            // SAFETY: as above.
            let w = w.map(|w| unsafe { w.get::<f32>() });
            team.rows(y, t, row_grain(h * 4 * (k + 1)), |r, y, _| {
                let of_k = r.start * k..r.end * k;
                combine_rows(team.isa(), k, h, &place[of_k.clone()], w.map(|w| &w[of_k]), x, y);
            })
        })
    }

    fn combine_backward(
        &self,
        s: &Stream,
        dy: &Tensor,
        x: &Tensor,
        slots: &Tensor,
        place: &Tensor,
        weights: &Tensor,
        d_rows: &mut Tensor,
        d_weights: &mut Tensor,
    ) -> Result<()> {
        let (t, k, h) = check_combine_backward(dy, x, slots, place, weights, d_rows, d_weights)?;
        let (dy, x, slots, place, w) = (In::of(dy), In::of(x), In::of(slots), In::of(place), In::of(weights));
        let (d_rows, dw) = (Out::of(d_rows), Out::of(d_weights));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has the outputs apart.
            let (dy, x, slots, place) = unsafe { (Src::of(dy), Src::of(x), slots.get::<i32>(), place.get::<i32>()) };
            // SAFETY: as above.
            let (w, d_rows, dw) = unsafe { (w.get::<f32>(), DstRows::of(d_rows, h), dw.get::<f32>()) };
            team.rows(rows(dw, k), t, row_grain(h * 4 * (k + 1)), |r, dw, _| {
                weight_gradients(team.isa(), k, h, r.start, &place[r.start * k..r.end * k], dy, x, dw);
            })?;
            team.rows(d_rows, t * k, row_grain(h * 8), |r, d, _| row_gradients(team.isa(), k, h, &slots[r], w, dy, d))
        })
    }
}
