//! Mixture of experts, composed of general operators: `MoeTokenPermute` and its kin promise no order of equals and sums.
//!
//! Order holds by construction: choices and slots come from `aclnnSort` with `stable` (`aclnnTopk` promises nothing of
//! equals), results of choices are added one after the other, and `aclnnScatterAdd`, whose terms come in any order, has
//! one term an element or adds ones, which float32 holds exactly below 2^24.

use ferrotron_acl_sys as acl;
use ferrotron_device::ops::moe::{
    check_combine, check_combine_backward, check_gather, check_load_balance, check_route, check_route_backward,
    check_sort,
};
use ferrotron_device::ops::{MoeOps, RouteGrads};
use ferrotron_device::{Error, Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::launch::Launch;
use crate::view::View;

/// Positions up to here are exact in float32.
const EXACT: usize = 1 << 24;

impl Launch<'_> {
    /// Rows of softmax(z) for z `[T,n]` with its maxima `[T,1]`; gives the sums of exponentials, `[T,1]`.
    fn softmax(&mut self, z: &View, max: &View, out: &View) -> Result<View> {
        let sum = self.f32(&[z.dims[0], 1])?;
        self.sub(z, max, 1.0, out)?;
        self.exp(out, out)?;
        self.sum(out, 1, &sum)?;
        self.div(out, &sum, out)?;
        Ok(sum)
    }

    /// `index / per` for indices `I32[R]` below `n per`, which is below [`EXACT`]: looked up, for a division of integers
    /// by floats may be off by one.
    fn quotients(&mut self, index: &View, n: usize, per: usize) -> Result<View> {
        let (table, out) = (self.scratch(acl::ACL_INT32, &[n, per])?, self.scratch(acl::ACL_INT32, &index.dims)?);
        // each position, `per` times
        let repeated = self.positions(n)?.strided(&[n, per], &[1, 0], 0);
        self.copy(&repeated, &table)?;
        let r = index.numel();
        self.gather(&table.reshaped(&[1, n * per]), &index.reshaped(&[1, r]), &out.reshaped(&[1, r]))?;
        Ok(out)
    }
}

impl MoeOps for AscendOps {
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
        if t == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "route")?;
        let (z, scores, lse) = (View::of(z, &[t, e]), View::of(scores, &[t, e]), View::of(lse, &[t, 1]));
        let (experts, weights) = (View::of(experts, &[t, k]), View::of(weights, &[t, k]));
        let max = l.f32(&[t, 1])?;
        l.max(&z, 1, &max)?;
        let sum = l.softmax(&z, &max, &scores)?;
        l.log(&sum, &lse)?;
        l.add_to(&lse, &max, 1.0)?;
        // -0 + 0 is 0: both zeros are one key, however keys are compared
        let (keys, sorted) = (l.f32(&[t, e])?, l.f32(&[t, e])?);
        let order = l.scratch(acl::ACL_INT64, &[t, e])?;
        l.add_number(&z, 0.0, &keys)?;
        l.sort_rows(&keys, true, &sorted, &order)?;
        l.copy(&order.strided(&[t, k], &[e, 1], 0), &experts)?;
        if after_choice {
            let (chosen, largest) = (sorted.strided(&[t, k], &[e, 1], 0), sorted.strided(&[t, 1], &[e, 1], 0));
            l.softmax(&chosen, &largest, &weights)?;
            Ok(())
        } else {
            l.gather(&scores, &experts, &weights)
        }
    }

    fn route_backward(&self, s: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()> {
        let (t, e, k) = check_route_backward(&g, dz)?;
        if t == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "route_backward")?;
        let (scores, lse, dz) = (View::of(g.scores, &[t, e]), View::of(g.lse, &[t, 1]), View::of(dz, &[t, e]));
        let (slope, chosen) = (View::of(g.slope, &[1, e]), |x: &Tensor| View::of(x, &[t, k]));
        let (experts, weights, d_weights) = (chosen(g.experts), chosen(g.weights), chosen(g.d_weights));
        let (d, mean) = (l.f32(&[t, e])?, l.f32(&[t, 1])?);
        let (terms, of_weights, of_lse) = (l.f32(&[t, k])?, l.f32(&[t, 1])?, l.f32(&[t, 1])?);
        // d = scale (balance (slope - mean) + z_slope lse)
        l.mul(&scores, &slope, &d)?;
        l.sum(&d, 1, &mean)?;
        l.sub(&slope, &mean, 1.0, &d)?;
        l.mul_number(&d, g.balance, &d)?;
        l.mul_number(&lse, g.z_slope, &of_lse)?;
        l.add_to(&d, &of_lse, 1.0)?;
        l.mul(&d, &flat(g.scale), &d)?;
        l.mul(&weights, &d_weights, &terms)?;
        l.sum(&terms, 1, &of_weights)?;
        if g.after_choice {
            l.sub(&d_weights, &of_weights, 1.0, &terms)?;
            l.mul(&terms, &weights, &terms)?;
        } else {
            l.add_to(&d, &of_weights, -1.0)?;
        }
        l.mul(&d, &scores, &d)?;
        // a token's experts are all apart: one term an element
        l.scatter_add(&d, &experts, &terms, &dz)
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
        let mut l = Launch::begin(s, "sort_by_expert")?;
        if r == 0 {
            return l.zero(&flat(counts));
        }
        let row = |t: &Tensor| View::of(t, &[1, r]);
        let (experts, slots, place, counts) = (row(experts), row(slots), row(place), View::of(counts, &[1, e]));
        // The cores sort floats, which hold expert numbers exactly; integers would go to the device's processors.
        let (keys, sorted) = (l.in_f32(&experts)?, l.f32(&[1, r])?);
        let order = l.scratch(acl::ACL_INT64, &[1, r])?;
        l.sort_rows(&keys, false, &sorted, &order)?;
        l.copy(&order, &slots)?;
        // place: each position goes to its slot, one term an element
        let (zeros, at) = (l.f32(&[1, r.max(e)])?, l.f32(&[1, r])?);
        l.zero(&zeros)?;
        let positions = l.positions(r)?.reshaped(&[1, r]);
        l.scatter_add(&zeros.strided(&[1, r], &[r, 1], 0), &slots, &positions, &at)?;
        l.copy(&at, &place)?;
        // counts: sums of ones, exact in any order
        let ones = l.f32(&[1, r])?;
        l.fill(&ones, 1.0)?;
        l.scatter_add(&zeros.strided(&[1, e], &[e, 1], 0), &experts, &ones, &counts)
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
        if e == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "load_balance")?;
        let slope = View::of(slope, &[1, e]);
        let n = tokens as f64;
        l.mul_number(&View::of(counts, &[1, e]), (e as f64 / (chosen as f64 * n * n)) as f32, &slope)?;
        if t == 0 {
            return Ok(());
        }
        let (of_expert, sum) = (l.f32(&[1, e])?, l.f32(&[1, 1])?);
        l.sum(&View::of(scores, &[t, e]), 0, &of_expert)?;
        l.mul(&of_expert, &slope, &of_expert)?;
        l.sum(&of_expert, 1, &sum)?;
        l.add_to(&flat(loss), &sum.reshaped(&[1]), 1.0)
    }

    fn gather_rows(&self, s: &Stream, x: &Tensor, index: &Tensor, per: usize, y: &mut Tensor) -> Result<()> {
        let (r, h) = check_gather(x, index, per, y)?;
        let (op, n) = ("gather_rows", x.rows());
        if r * h == 0 {
            return Ok(());
        }
        if per > 1 && n.checked_mul(per).is_none_or(|slots| slots > EXACT) {
            return Err(Error::mismatch(
                op,
                "choices of all rows on this device",
                format!("at most {EXACT}"),
                (n, per),
            ));
        }
        let mut l = Launch::begin(s, op)?;
        let index = flat(index);
        let rows = if per == 1 { index } else { l.quotients(&index, n, per)? };
        l.rows(&View::of(x, &[n, h]), &rows, &View::of(y, &[r, h]))
    }

    fn combine(
        &self,
        s: &Stream,
        rows: &Tensor,
        place: &Tensor,
        weights: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        let (t, k, h) = check_combine(rows, place, weights, y)?;
        if t * k * h == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "combine")?;
        let (rows, y) = (View::of(rows, &[t * k, h]), View::of(y, &[t, h]));
        let by_slot = l.scratch(rows.dtype, &[t * k, h])?;
        l.rows(&rows, &flat(place), &by_slot)?;
        let terms = l.in_f32(&by_slot.reshaped(&[t, k, h]))?;
        if let Some(w) = weights {
            l.mul(&terms, &View::of(w, &[t, k, 1]), &terms)?;
        }
        let sum = if y.dtype == acl::ACL_FLOAT { y.clone() } else { l.f32(&[t, h])? };
        let of_choice = |j: usize| terms.strided(&[t, h], &[k * h, 1], j * h);
        l.copy(&of_choice(0), &sum)?;
        // not one sum over the dim: the order of choices is the contract's
        (1..k).try_for_each(|j| l.add_to(&sum, &of_choice(j), 1.0))?;
        if y.dtype == acl::ACL_FLOAT { Ok(()) } else { l.copy(&sum, &y) }
    }

    fn combine_backward(
        &self,
        s: &Stream,
        dy: &Tensor,
        rows: &Tensor,
        slots: &Tensor,
        place: &Tensor,
        weights: &Tensor,
        d_rows: &mut Tensor,
        d_weights: &mut Tensor,
    ) -> Result<()> {
        let (t, k, h) = check_combine_backward(dy, rows, slots, place, weights, d_rows, d_weights)?;
        if t * k * h == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "combine_backward")?;
        let (r, dtype) = (t * k, View::of(dy, &[t, 1, h]).dtype);
        let dy = l.in_f32(&View::of(dy, &[t, 1, h]))?;
        let (products, moved) = (l.f32(&[t, k, h])?, l.scratch(dtype, &[r, h])?);
        // dw: rows in the order of slots, times their token's gradient
        l.rows(&View::of(rows, &[r, h]), &flat(place), &moved)?;
        let by_slot = l.in_f32(&moved.reshaped(&[t, k, h]))?;
        l.mul(&by_slot, &dy, &products)?;
        l.sum(&products, 2, &View::of(d_weights, &[t, k, 1]))?;
        // rows: gradients in the order of slots, rounded once, then in that of experts
        l.mul(&dy, &View::of(weights, &[t, k, 1]), &products)?;
        l.copy(&products.reshaped(&[r, h]), &moved)?;
        l.rows(&moved, &flat(slots), &View::of(d_rows, &[r, h]))
    }
}
