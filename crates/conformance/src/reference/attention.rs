//! Attention over packed sequences, with every probability computed.

use std::ops::Range;

use ferrotron_device::ops::{AttentionDims, DropSite};

use super::dropout::factor;

/// Dropout of probabilities.
#[derive(Clone, Copy)]
pub struct Drop<'a> {
    /// Probability and key.
    pub site: DropSite,
    /// Global sample of each query row.
    pub sample: &'a [i32],
    /// Offset of each query row in its sample.
    pub offset_q: &'a [i32],
    /// Offset of each key row in its sample.
    pub offset_k: &'a [i32],
}

/// Inputs of both directions: q `[Tq,N,D]`, k and v `[Tk,G,D]`, cu_q and cu_k `[B+1]`.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Inputs<'a> {
    pub dims: AttentionDims,
    pub q: &'a [f64],
    pub k: &'a [f64],
    pub v: &'a [f64],
    pub cu_q: &'a [i32],
    pub cu_k: &'a [i32],
    pub drop: Option<Drop<'a>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl<'a> Inputs<'a> {
    fn tq(&self) -> usize {
        self.q.len() / (self.dims.heads * self.dims.head_dim)
    }

    fn group(&self, n: usize) -> usize {
        n / (self.dims.heads / self.dims.groups)
    }

    /// Row `t`, head `n` of a tensor like q.
    fn at_q<'b>(&self, x: &'b [f64], t: usize, n: usize) -> &'b [f64] {
        &x[self.range_q(t, n)]
    }

    fn range_q(&self, t: usize, n: usize) -> Range<usize> {
        let start = (t * self.dims.heads + n) * self.dims.head_dim;
        start..start + self.dims.head_dim
    }

    /// Elements of row `j` of a tensor like k, in the group that query head `n` reads.
    fn range_k(&self, j: usize, n: usize) -> Range<usize> {
        let start = (j * self.dims.groups + self.group(n)) * self.dims.head_dim;
        start..start + self.dims.head_dim
    }

    /// Calls `f(query row, head, key rows it sees)` for all queries.
    fn each_row(&self, mut f: impl FnMut(usize, usize, Range<usize>)) {
        for i in 0..self.cu_q.len().saturating_sub(1) {
            let (q0, q1) = (self.cu_q[i] as i64, self.cu_q[i + 1] as i64);
            let (k0, k1) = (self.cu_k[i] as i64, self.cu_k[i + 1] as i64);
            for t in q0..q1 {
                let p = (t - q0) + (k1 - k0) - (q1 - q0);
                let sees = |j: &i64| {
                    let causal = !self.dims.causal || *j <= p;
                    let near = self.dims.window.is_none_or(|w| *j > p - w as i64);
                    causal && near
                };
                let seen: Vec<i64> = (0..k1 - k0).filter(sees).collect();
                let keys = match (seen.first(), seen.last()) {
                    (Some(a), Some(b)) => (k0 + a) as usize..(k0 + b + 1) as usize,
                    _ => 0..0,
                };
                for n in 0..self.dims.heads {
                    f(t as usize, n, keys.clone());
                }
            }
        }
    }

    fn score(&self, t: usize, n: usize, j: usize) -> f64 {
        f64::from(self.dims.scale) * dot(self.at_q(self.q, t, n), &self.k[self.range_k(j, n)])
    }

    fn keep(&self, t: usize, n: usize, j: usize) -> f64 {
        self.drop.map_or(1.0, |d| {
            let head = (self.dims.first_head + n) as u32;
            factor(d.site, d.sample[t], d.offset_q[t], d.offset_k[j] as u32, head + 1)
        })
    }

    /// (o `[Tq,N,D]`, lse `[N,Tq]`).
    pub fn forward(&self) -> (Vec<f64>, Vec<f64>) {
        let mut o = vec![0.0; self.q.len()];
        let mut lse = vec![f64::NEG_INFINITY; self.dims.heads * self.tq()];
        self.each_row(|t, n, keys| {
            let scores: Vec<f64> = keys.clone().map(|j| self.score(t, n, j)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            if keys.is_empty() {
                return;
            }
            lse[n * self.tq() + t] = max + sum.ln();
            for (j, s) in keys.zip(scores) {
                let p = (s - max).exp() / sum * self.keep(t, n, j);
                for (o, v) in o[self.range_q(t, n)].iter_mut().zip(&self.v[self.range_k(j, n)]) {
                    *o += p * v;
                }
            }
        });
        (o, lse)
    }

    /// (dq, dk, dv) from what forward gave and dout `[Tq,N,D]`.
    pub fn backward(&self, o: &[f64], lse: &[f64], dout: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let scale = f64::from(self.dims.scale);
        let (mut dq, mut dk, mut dv) = (vec![0.0; self.q.len()], vec![0.0; self.k.len()], vec![0.0; self.v.len()]);
        self.each_row(|t, n, keys| {
            let (q, dout) = (self.at_q(self.q, t, n), self.at_q(dout, t, n));
            let delta = dot(dout, self.at_q(o, t, n));
            for j in keys {
                let p = (self.score(t, n, j) - lse[n * self.tq() + t]).exp();
                let keep = self.keep(t, n, j);
                let ds = p * (keep * dot(dout, &self.v[self.range_k(j, n)]) - delta);
                for (d, i) in self.range_k(j, n).enumerate() {
                    dv[i] += p * keep * dout[d];
                    dk[i] += scale * ds * q[d];
                    dq[self.range_q(t, n).start + d] += scale * ds * self.k[i];
                }
            }
        });
        (dq, dk, dv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    fn dims(causal: bool, window: Option<usize>) -> AttentionDims {
        AttentionDims { heads: 4, groups: 2, head_dim: 3, causal, window, scale: 0.7, max_len: 5, first_head: 2 }
    }

    fn gradients(dims: AttentionDims, cu_q: &[i32], cu_k: &[i32], p: f32) {
        let (tq, tk) = (cu_q[cu_q.len() - 1] as usize, cu_k[cu_k.len() - 1] as usize);
        let (q, k, v) = (noise(1, tq * 12), noise(2, tk * 6), noise(3, tk * 6));
        let dout = noise(4, tq * 12);
        let ids: Vec<i32> = (0..tq.max(tk) as i32).collect();
        let site = DropSite { p, key: 5 };
        let drop = (p > 0.0).then_some(Drop { site, sample: &ids[..tq], offset_q: &ids[..tq], offset_k: &ids[..tk] });
        let at = Inputs { dims, q: &q, k: &k, v: &v, cu_q, cu_k, drop };
        let (o, lse) = at.forward();
        let (dq, dk, dv) = at.backward(&o, &lse, &dout);
        assert_gradient("dq", &q, &dq, |q| dot(&Inputs { q, ..at }.forward().0, &dout));
        assert_gradient("dk", &k, &dk, |k| dot(&Inputs { k, ..at }.forward().0, &dout));
        assert_gradient("dv", &v, &dv, |v| dot(&Inputs { v, ..at }.forward().0, &dout));
    }

    #[test]
    fn gradients_of_every_kind() {
        for p in [0.0, 0.3] {
            gradients(dims(true, None), &[0, 5, 5, 7], &[0, 5, 5, 7], p);
            gradients(dims(false, None), &[0, 2, 4], &[0, 5, 6], p);
            gradients(dims(true, Some(2)), &[0, 2, 5], &[0, 5, 6], p);
            // Keys without queries, and queries in the middle of their sequence.
            gradients(dims(true, None), &[0, 0, 2, 2], &[0, 1, 5, 7], p);
        }
    }

    #[test]
    fn a_causal_row_sees_only_its_past() {
        let (q, k) = (noise(1, 12), noise(2, 6));
        let at = |v: &[f64]| {
            Inputs { dims: dims(true, None), q: &q, k: &k, v, cu_q: &[0, 1], cu_k: &[0, 1], drop: None }.forward().0
        };
        let v = noise(3, 6);
        // one key: probability one, so each head copies its group's value
        assert_eq!(at(&v), [&v[..3], &v[..3], &v[3..], &v[3..]].concat());
    }

    #[test]
    fn a_chunk_of_queries_has_the_rows_of_the_whole() {
        // Rows 2..4 of five over their first four keys, and the keys after them in a sequence without queries.
        let (q, k, v) = (noise(1, 60), noise(2, 30), noise(3, 30));
        let dims = dims(true, None);
        let all = Inputs { dims, q: &q, k: &k, v: &v, cu_q: &[0, 5], cu_k: &[0, 5], drop: None };
        let (whole, whole_lse) = all.forward();
        let chunk = Inputs { q: &q[24..48], cu_q: &[0, 2, 2], cu_k: &[0, 4, 5], ..all };
        let (part, lse) = chunk.forward();
        assert_eq!(part, whole[24..48]);
        assert_eq!(lse[..2], whole_lse[2..4]);
        let (_, dk, dv) = chunk.backward(&part, &lse, &noise(4, 24));
        assert!(dk[24..].iter().chain(&dv[24..]).all(|&d| d == 0.0) && dk[..24].iter().all(|&d| d != 0.0));
    }

    #[test]
    fn rows_without_keys_give_zero() {
        // three queries, one key, aligned at the end: only the last query sees it
        let (q, kv) = (noise(1, 36), noise(2, 6));
        let (o, lse) =
            Inputs { dims: dims(true, None), q: &q, k: &kv, v: &kv, cu_q: &[0, 3], cu_k: &[0, 1], drop: None }
                .forward();
        assert!(o[..24].iter().all(|&o| o == 0.0) && o[24] != 0.0);
        assert!(lse[0] == f64::NEG_INFINITY && lse[1] == f64::NEG_INFINITY && lse[2].is_finite());
    }
}
