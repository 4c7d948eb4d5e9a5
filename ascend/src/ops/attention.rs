//! Attention where the fused operators (`flash`) do not suit, composed of batched products: in float32, by parts of the query rows, so that no S x S buffer exists.
//!
//! A part is `R` query rows of all heads of one sequence, with the `K` keys that any of them sees. Shapes: `[G, n, R, D]`
//! queries, n of the N/G heads of a group; as products `[G, n R, D]` by `[G, D, K]`.

use std::ops::Range;

use ferrotron_device::ops::{AttentionArgs, AttentionDims, AttentionOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::flash;
use super::sequences::{Sequence, sequences};
use crate::device::AscendOps;
use crate::keep::{Ids, Probabilities};
use crate::launch::Launch;
use crate::shared::Omit;
use crate::view::View;

/// Elements of a part's scores: a bound for scratch.
const PART: usize = 1 << 24;

/// Head counts and sizes of a call: groups, heads of a group, head dim.
#[derive(Clone, Copy)]
struct Heads {
    g: usize,
    n: usize,
    d: usize,
}

impl Heads {
    fn of(d: &AttentionDims) -> Heads {
        Heads { g: d.groups, n: d.heads / d.groups, d: d.head_dim }
    }

    /// Rows of a tensor like q `[T,N,D]`, heads first: `[G,n,R,D]`.
    fn queries(&self, x: &Tensor, rows: &Range<usize>) -> View {
        let Heads { g, n, d } = *self;
        let whole = View::of(x, &[x.numel()]);
        whole.strided(&[g, n, rows.len(), d], &[n * d, d, g * n * d, 1], rows.start * g * n * d)
    }

    /// Rows of a tensor like k `[T,G,D]`, groups first: `[G,L,D]`.
    fn keys(&self, x: &Tensor, rows: &Range<usize>) -> View {
        let Heads { g, d, .. } = *self;
        let whole = View::of(x, &[x.numel()]);
        whole.strided(&[g, rows.len(), d], &[d, g * d, 1], rows.start * g * d)
    }

    /// Rows of statistics `[N,T]`: `[G,n,R,1]`.
    fn stats(&self, x: &Tensor, rows: &Range<usize>) -> View {
        let t = x.numel() / (self.g * self.n);
        let whole = View::of(x, &[x.numel()]);
        whole.strided(&[self.g, self.n, rows.len(), 1], &[self.n * t, t, 1, 1], rows.start)
    }
}

/// What the parts of a call share.
struct Call<'a> {
    a: AttentionArgs<'a>,
    heads: Heads,
    /// Ids for dropout: sample, offsets of queries, offsets of keys.
    ids: Option<[Ids; 3]>,
}

/// Scores of a part and what belongs to them.
struct Part {
    /// Query rows, in the sequence.
    rows: Range<usize>,
    /// Key rows, in the sequence.
    keys: Range<usize>,
}

impl<'a> Call<'a> {
    fn begin(l: &mut Launch<'_>, a: AttentionArgs<'a>) -> Result<Call<'a>> {
        let ids = match a.drop.filter(|d| d.site.p > 0.0) {
            Some(d) => Some([l.ids(d.sample)?, l.ids(d.offset_q)?, l.ids(d.offset_k)?]),
            None => None,
        };
        Ok(Call { a, heads: Heads::of(&a.dims), ids })
    }

    /// Parts of the rows of a sequence that see any key.
    fn parts(&self, s: &Sequence) -> Vec<Part> {
        let seeing = s.seeing(&self.a.dims);
        let rows = (PART / (self.a.dims.heads * s.k.len()).max(1)).clamp(1, seeing.len().max(1));
        let part = |first: usize| {
            let rows = first..(first + rows).min(seeing.end);
            let keys = s.keys(&self.a.dims, rows.start).start..s.keys(&self.a.dims, rows.end - 1).end;
            Part { rows, keys }
        };
        seeing.clone().step_by(rows).map(part).collect()
    }

    /// Rows of a tensor like q in float32, `[G, n R, D]`.
    fn rows(&self, l: &mut Launch<'_>, x: &Tensor, rows: &Range<usize>, factor: f32) -> Result<View> {
        let Heads { g, n, d } = self.heads;
        let out = l.f32(&[g, n, rows.len(), d])?;
        l.copy(&self.heads.queries(x, rows), &out)?;
        if factor != 1.0 {
            l.mul_number(&out, factor, &out)?;
        }
        Ok(out.reshaped(&[g, n * rows.len(), d]))
    }

    /// `x y^T` of rows `[G, n R, D]` and some of the keys `[G, L, D]`: `[G, n, R, K]`.
    fn products(&self, l: &mut Launch<'_>, x: &View, y: &View, part: &Part) -> Result<View> {
        let Heads { g, n, d } = self.heads;
        let (k, length) = (part.keys.len(), y.dims[1]);
        let turned = y.strided(&[g, d, k], &[length * d, 1, d], part.keys.start * d);
        let out = l.f32(&[g, n * part.rows.len(), k])?;
        l.batch_matmul(x, &turned, &out)?;
        Ok(out.reshaped(&[g, n, part.rows.len(), k]))
    }

    /// Scores that a row does not see become minus infinity.
    fn hide(&self, l: &mut Launch<'_>, s: &Sequence, part: &Part, scores: &View) -> Result<()> {
        let dims = &self.a.dims;
        let (first, last) = (s.keys(dims, part.rows.start), s.keys(dims, part.rows.end - 1));
        if first == last || l.core().shared.omits(Omit::Hide) {
            return Ok(());
        }
        // key minus position of the query, of which at most 0 are seen and, in a window w, those above -w
        let (r, k) = (part.rows.len(), part.keys.len());
        let positions = l.positions(s.q.len().max(s.k.len()))?;
        let row = l.f32(&[r, 1])?;
        let shift = s.k.len() as f32 - s.q.len() as f32;
        l.add_number(&positions.strided(&[r, 1], &[1, 1], part.rows.start), shift, &row)?;
        let (distance, flags) = (l.f32(&[r, k])?, l.scratch(ferrotron_acl_sys::ACL_BOOL, &[r, k])?);
        l.sub(&positions.strided(&[1, k], &[k, 1], part.keys.start), &row, 1.0, &distance)?;
        if dims.causal {
            l.less(&distance, 1.0, &flags)?;
            l.choose(&flags, scores, f32::NEG_INFINITY, scores)?;
        }
        if let Some(w) = dims.window.filter(|_| first.start != last.start) {
            l.at_least(&distance, 1.0 - w as f32, &flags)?;
            l.choose(&flags, scores, f32::NEG_INFINITY, scores)?;
        }
        Ok(())
    }

    /// What was dropped becomes 0; the factor 1/(1-p) is left to the caller.
    fn drop(&self, l: &mut Launch<'_>, s: &Sequence, part: &Part, all: &[&View]) -> Result<()> {
        let (Some([sample, offset_q, offset_k]), Some(drop)) = (self.ids, self.a.drop) else { return Ok(()) };
        let within = |all: &Range<usize>, some: &Range<usize>| all.start + some.start..all.start + some.end;
        let (queries, keys) = (within(&s.q, &part.rows), within(&s.k, &part.keys));
        let (first_head, heads) = (self.a.dims.first_head, self.a.dims.heads);
        let p = Probabilities { sample, offset_q, offset_k, first_head, heads, queries, keys };
        let keep = l.keep_probabilities(drop.site, p)?;
        for x in all {
            l.choose(&keep.reshaped(&x.dims), x, 0.0, x)?;
        }
        Ok(())
    }

    /// 1/(1-p).
    fn raise(&self) -> f32 {
        self.ids.and(self.a.drop).map_or(1.0, |d| 1.0 / (1.0 - d.site.p))
    }

    /// Keys of a sequence in float32, `[G, L, D]`.
    fn keys(&self, l: &mut Launch<'_>, x: &Tensor, s: &Sequence) -> Result<View> {
        let out = l.f32(&[self.heads.g, s.k.len(), self.heads.d])?;
        l.copy(&self.heads.keys(x, &s.k), &out)?;
        Ok(out)
    }

    /// Some of the keys `[G, L, D]`: `[G, K, D]`.
    fn seen(&self, y: &View, part: &Part) -> View {
        let Heads { g, d, .. } = self.heads;
        y.strided(&[g, part.keys.len(), d], &[y.dims[1] * d, d, 1], part.keys.start * d)
    }

    fn forward(&self, l: &mut Launch<'_>, s: &Sequence, o: &Tensor, lse: &Tensor) -> Result<()> {
        let Heads { g, n, d } = self.heads;
        let (k, v) = (self.keys(l, self.a.k, s)?, self.keys(l, self.a.v, s)?);
        let mark = l.mark();
        for part in self.parts(s) {
            let rows = s.q.start + part.rows.start..s.q.start + part.rows.end;
            let r = rows.len();
            let q = self.rows(l, self.a.q, &rows, self.a.dims.scale)?;
            let scores = self.products(l, &q, &k, &part)?;
            self.hide(l, s, &part, &scores)?;
            let (max, sum) = (l.f32(&[g, n, r, 1])?, l.f32(&[g, n, r, 1])?);
            l.max(&scores, 3, &max)?;
            l.sub(&scores, &max, 1.0, &scores)?;
            l.exp(&scores, &scores)?;
            l.sum(&scores, 3, &sum)?;
            self.drop(l, s, &part, &[&scores])?;
            let out = l.f32(&[g, n * r, d])?;
            l.batch_matmul(&scores.reshaped(&[g, n * r, part.keys.len()]), &self.seen(&v, &part), &out)?;
            let out = out.reshaped(&[g, n, r, d]);
            l.div(&out, &sum, &out)?;
            if self.raise() != 1.0 {
                l.mul_number(&out, self.raise(), &out)?;
            }
            l.copy(&out, &self.heads.queries(o, &rows))?;
            l.log(&sum, &sum)?;
            l.add_to(&sum, &max, 1.0)?;
            l.copy(&sum, &self.heads.stats(lse, &rows))?;
            l.release(mark);
        }
        for rows in s.blind(&self.a.dims) {
            l.zero(&self.heads.queries(o, &rows))?;
            l.fill(&self.heads.stats(lse, &rows), f32::NEG_INFINITY)?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn backward(
        &self,
        l: &mut Launch<'_>,
        s: &Sequence,
        [o, lse, dout]: [&Tensor; 3],
        [dq, dk, dv]: [&Tensor; 3],
    ) -> Result<()> {
        let Heads { g, n, d } = self.heads;
        let (k, v) = (self.keys(l, self.a.k, s)?, self.keys(l, self.a.v, s)?);
        let (sum_k, sum_v) = (l.f32(&k.dims)?, l.f32(&v.dims)?);
        l.zero(&sum_k)?;
        l.zero(&sum_v)?;
        let mark = l.mark();
        for part in self.parts(s) {
            let rows = s.q.start + part.rows.start..s.q.start + part.rows.end;
            let (r, m, keys) = (rows.len(), n * rows.len(), part.keys.len());
            let (four, three) = ([g, n, r, keys], [g, m, keys]);
            let q = self.rows(l, self.a.q, &rows, self.a.dims.scale)?;
            let p = self.products(l, &q, &k, &part)?;
            self.hide(l, s, &part, &p)?;
            let (row_lse, delta) = (l.f32(&[g, n, r, 1])?, l.f32(&[g, n, r, 1])?);
            l.copy(&self.heads.stats(lse, &rows), &row_lse)?;
            l.sub(&p, &row_lse, 1.0, &p)?;
            l.exp(&p, &p)?;
            // delta = rowsum(do o)
            let (dout, o) = (self.rows(l, dout, &rows, 1.0)?, self.rows(l, o, &rows, 1.0)?);
            l.mul(&o, &dout, &o)?;
            l.sum(&o.reshaped(&[g, n, r, d]), 3, &delta)?;
            // dP, and the P that v was multiplied with
            let (dp, kept) = (self.products(l, &dout, &v, &part)?, l.f32(&four)?);
            let kept = if self.ids.is_some() {
                l.mul_number(&p, self.raise(), &kept)?;
                l.mul_number(&dp, self.raise(), &dp)?;
                self.drop(l, s, &part, &[&kept, &dp])?;
                kept
            } else {
                p.clone()
            };
            let turned = |x: &View, cols: usize| x.strided(&[g, cols, m], &[m * cols, 1, cols], 0);
            let part_of = |l: &mut Launch<'_>, x: &View, y: &View, sum: &View| -> Result<()> {
                let product = l.f32(&[g, keys, d])?;
                l.batch_matmul(&turned(x, keys), y, &product)?;
                l.add_to(&self.seen(sum, &part), &product, 1.0)
            };
            part_of(l, &kept, &dout, &sum_v)?;
            // dS = P (dP - delta)
            l.sub(&dp, &delta, 1.0, &dp)?;
            l.mul(&dp, &p, &dp)?;
            part_of(l, &dp, &q, &sum_k)?;
            let sum_q = l.f32(&[g, m, d])?;
            l.batch_matmul(&dp.reshaped(&three), &self.seen(&k, &part), &sum_q)?;
            l.mul_number(&sum_q, self.a.dims.scale, &sum_q)?;
            l.copy(&sum_q.reshaped(&[g, n, r, d]), &self.heads.queries(dq, &rows))?;
            l.release(mark);
        }
        l.copy(&sum_k, &self.heads.keys(dk, &s.k))?;
        l.copy(&sum_v, &self.heads.keys(dv, &s.k))?;
        s.blind(&self.a.dims).into_iter().try_for_each(|rows| l.zero(&self.heads.queries(dq, &rows)))
    }
}

impl AttentionOps for AscendOps {
    fn attention(&self, s: &Stream, a: AttentionArgs<'_>, o: &mut Tensor, lse: &mut Tensor) -> Result<()> {
        if a.check_forward(o, lse)?.0 == 0 {
            return Ok(());
        }
        let sequences = sequences(s, &a)?;
        let mut l = Launch::begin(s, "attention")?;
        if flash::suits(&l.core().shared, &a, &sequences) {
            return flash::forward(&mut l, &a, &sequences, o, lse);
        }
        let call = Call::begin(&mut l, a)?;
        let mark = l.mark();
        for sequence in sequences {
            call.forward(&mut l, &sequence, o, lse)?;
            l.release(mark);
        }
        Ok(())
    }

    fn attention_backward(
        &self,
        s: &Stream,
        a: AttentionArgs<'_>,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &mut Tensor,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
    ) -> Result<()> {
        let (tq, tk, _) = a.check_backward(o, lse, dout, delta, dq, dk, dv)?;
        if tq + tk == 0 {
            return Ok(());
        }
        let sequences = sequences(s, &a)?;
        let mut l = Launch::begin(s, "attention_backward")?;
        if flash::suits(&l.core().shared, &a, &sequences) {
            return flash::backward(&mut l, &a, &sequences, [o, lse, dout], [dq, dk, dv]);
        }
        let call = Call::begin(&mut l, a)?;
        let mark = l.mark();
        for sequence in sequences {
            call.backward(&mut l, &sequence, [o, lse, dout], [dq, dk, dv])?;
            l.release(mark);
        }
        Ok(())
    }
}
