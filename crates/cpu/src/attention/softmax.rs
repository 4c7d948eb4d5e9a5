//! Row loops of attention, compiled for every instruction set: online softmax, its gradient, dropout.

use crate::kernels::math::{LANES, exp, fold};
use crate::kernels::philox::{WIDTH, philox};
use crate::multiversion;

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

multiversion! {
    /// One step of the online softmax (Milakov & Gimelshein 2018) over the visible scores of a row in a block:
    /// `row = exp(row - m')`, where m' is the larger of `m` and the row's maximum. Gives m' and the sum of the row.
    pub(super) fn softmax_row(row: &mut [f32], m: f32) -> (f32, f32) {
        let mut acc = [m; LANES];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for c in chunks {
            for (a, &x) in acc.iter_mut().zip(c) {
                *a = larger(*a, x);
            }
        }
        for (a, &x) in acc.iter_mut().zip(rest) {
            *a = larger(*a, x);
        }
        let m = fold(acc, larger);
        let mut acc = [0f32; LANES];
        let (chunks, rest) = row.as_chunks_mut::<LANES>();
        for c in chunks {
            for (a, x) in acc.iter_mut().zip(c) {
                *x = exp(*x - m);
                *a += *x;
            }
        }
        for (a, x) in acc.iter_mut().zip(rest) {
            *x = exp(*x - m);
            *a += *x;
        }
        (m, fold(acc, |a, b| a + b))
    }
}

multiversion! {
    /// Softmax gradient of a row: `p = exp(s - lse)`, `ds = p (keep dp - delta)`; `s` becomes `p keep`, `dp` becomes
    /// `ds`. `lse` and `delta` hold one number a column, or one for all; `keep` is empty without dropout.
    pub(super) fn gradient_row(s: &mut [f32], dp: &mut [f32], lse: &[f32], delta: &[f32], keep: &[f32]) {
        let n = s.len();
        let dp = &mut dp[..n];
        if !keep.is_empty() {
            for (dp, keep) in dp.iter_mut().zip(keep) {
                *dp *= keep;
            }
        }
        if let (&[lse], &[delta]) = (lse, delta) {
            for (s, dp) in s.iter_mut().zip(dp) {
                *s = exp(*s - lse);
                *dp = *s * (*dp - delta);
            }
        } else {
            let (lse, delta) = (&lse[..n], &delta[..n]);
            for (i, (s, dp)) in s.iter_mut().zip(dp).enumerate() {
                *s = exp(*s - lse[i]);
                *dp = *s * (*dp - delta[i]);
            }
        }
        if !keep.is_empty() {
            for (s, keep) in s.iter_mut().zip(keep) {
                *s *= keep;
            }
        }
    }
}

multiversion! {
    /// `row *= keep`
    pub(super) fn multiply_row(row: &mut [f32], keep: &[f32]) {
        for (x, k) in row.iter_mut().zip(keep) {
            *x *= k;
        }
    }
}

multiversion! {
    /// `row *= factor`
    pub(super) fn scale_row(row: &mut [f32], factor: f32) {
        for x in row {
            *x *= factor;
        }
    }
}

/// Dropout of one head.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    pub key: u64,
    /// Elements whose random word is below this are dropped.
    pub threshold: u32,
    /// What kept elements are multiplied by.
    pub scale: f32,
    /// Global head + 1.
    pub word: u32,
}

impl Keep {
    /// Factors of up to [`WIDTH`] elements, from the counters' first three words.
    #[inline(always)]
    fn factors(self, sample: [u32; WIDTH], query: [u32; WIDTH], key: [u32; WIDTH], out: &mut [f32]) {
        let mut random = [sample, query, key, [self.word; WIDTH]];
        philox(self.key, &mut random);
        for (o, &bits) in out.iter_mut().zip(&random[0]) {
            *o = if bits < self.threshold { 0.0 } else { self.scale };
        }
    }
}

/// The first of some ids as counter words; those that are missing are never looked at.
#[inline(always)]
fn words(ids: &[i32]) -> [u32; WIDTH] {
    let mut words = [0; WIDTH];
    for (w, &id) in words.iter_mut().zip(ids) {
        *w = id as u32;
    }
    words
}

multiversion! {
    /// Factors of one query's row.
    pub(super) fn keep_keys(keep: Keep, sample: i32, query: i32, keys: &[i32], out: &mut [f32]) {
        for (out, keys) in out.chunks_mut(WIDTH).zip(keys.chunks(WIDTH)) {
            keep.factors([sample as u32; WIDTH], [query as u32; WIDTH], words(keys), out);
        }
    }
}

multiversion! {
    /// Factors of one key's column.
    pub(super) fn keep_queries(keep: Keep, samples: &[i32], queries: &[i32], key: i32, out: &mut [f32]) {
        for (out, (samples, queries)) in out.chunks_mut(WIDTH).zip(samples.chunks(WIDTH).zip(queries.chunks(WIDTH))) {
            keep.factors(words(samples), words(queries), [key as u32; WIDTH], out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn rows_of_every_length() {
        for &isa in Isa::available() {
            for n in [1, 5, 31, 32, 33, 100] {
                let x: Vec<f32> = (0..n).map(|i| ((i * 37) % 19) as f32 / 4.0).collect();
                let mut row = x.clone();
                let (m, sum) = softmax_row(isa, &mut row, f32::NEG_INFINITY);
                assert_eq!(m, x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                let want: f64 = x.iter().map(|x| f64::from(x - m).exp()).sum();
                assert!((f64::from(sum) / want - 1.0).abs() < 1e-6);
            }
        }
    }
}
