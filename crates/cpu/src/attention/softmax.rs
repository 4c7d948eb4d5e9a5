//! Row loops of attention, compiled for every instruction set: online softmax, its gradient, dropout.

use crate::kernels::math::{LANES, exp, fold};
use crate::kernels::philox::{WIDTH, philox};
use crate::multiversion;

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// [`LANES`] elements from `at` on; what lies beyond the end is `fill`. Rows are short and of any length: an end taken
/// one by one would cost as much as all the rest.
#[inline(always)]
fn load(x: &[f32], at: usize, fill: f32) -> [f32; LANES] {
    let rest = &x[at..];
    rest.first_chunk().copied().unwrap_or_else(|| {
        let mut chunk = [fill; LANES];
        chunk[..rest.len()].copy_from_slice(rest);
        chunk
    })
}

/// The other way round.
#[inline(always)]
fn store(x: &mut [f32], at: usize, chunk: &[f32; LANES]) {
    let rest = &mut x[at..];
    let n = rest.len().min(LANES);
    match rest.first_chunk_mut() {
        Some(whole) => *whole = *chunk,
        None => rest.copy_from_slice(&chunk[..n]),
    }
}

multiversion! {
    /// One step of the online softmax (Milakov & Gimelshein 2018) over the visible scores of a row in a block:
    /// `row = exp(row - m')`, where m' is the larger of `m` and the row's maximum. Gives m' and the sum of the row.
    pub(super) fn softmax_row(row: &mut [f32], m: f32) -> (f32, f32) {
        let mut acc = [m; LANES];
        for at in (0..row.len()).step_by(LANES) {
            for (a, x) in acc.iter_mut().zip(load(row, at, f32::NEG_INFINITY)) {
                *a = larger(*a, x);
            }
        }
        let m = fold(acc, larger);
        let mut acc = [0f32; LANES];
        for at in (0..row.len()).step_by(LANES) {
            // Beyond the end stands e^-inf = 0.
            let p = load(row, at, f32::NEG_INFINITY).map(|x| exp(x - m));
            for (a, p) in acc.iter_mut().zip(p) {
                *a += p;
            }
            store(row, at, &p);
        }
        (m, fold(acc, |a, b| a + b))
    }
}

multiversion! {
    /// Softmax gradient of a row: `p = exp(s - lse)`, `ds = p (keep dp - delta)`; `s` becomes `p keep`, `dp` becomes
    /// `ds`. `lse` and `delta` hold one number a column, or one for all; `keep` is empty without dropout.
    pub(super) fn gradient_row(s: &mut [f32], dp: &mut [f32], lse: &[f32], delta: &[f32], keep: &[f32]) {
        let each = |x: &[f32], at| if let &[one] = x { [one; LANES] } else { load(x, at, 0.0) };
        for at in (0..s.len()).step_by(LANES) {
            let (lse, delta) = (each(lse, at), each(delta, at));
            let keep = if keep.is_empty() { [1.0; LANES] } else { load(keep, at, 1.0) };
            let (mut p, mut ds) = (load(s, at, 0.0), load(dp, at, 0.0));
            for l in 0..LANES {
                let probability = exp(p[l] - lse[l]);
                ds[l] = probability * (ds[l] * keep[l] - delta[l]);
                p[l] = probability * keep[l];
            }
            store(s, at, &p);
            store(dp, at, &ds);
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
