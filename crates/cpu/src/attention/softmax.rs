//! Row loops of attention, compiled for every instruction set: online softmax, its gradient, dropout.

use ferrotron_base::philox::philox4x32;

use crate::multiversion;

/// Independent sums of a row, enough for two zmm registers; the same number on every instruction set.
const LANES: usize = 32;

/// `e^x` for x <= 0 or little above, to 1.5 units in the last place (the tests scan it); 0 below -87.3; NaN stays NaN.
///
/// `x = n ln 2 + r` with ln 2 in two parts (Cody & Waite 1980), then the series of `e^r`, |r| <= 0.35, whose cut-off
/// `r^8 / 8!` is 5e-9. Plain multiplications and additions: no calls, so loops over it use wide registers.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let t = x * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = p * r + c;
    }
    let p = (p * r * r + r) + 1.0;
    let y = f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23));
    let y = if x < -87.3 { 0.0 } else { y };
    if x.is_nan() { x } else { y }
}

/// Folds lanes pairwise.
#[inline(always)]
fn fold(mut acc: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            acc[l] = f(acc[l], acc[l + half]);
        }
        half /= 2;
    }
    acc[0]
}

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
    #[inline(always)]
    fn of(self, sample: i32, query: i32, key: i32) -> f32 {
        let random = philox4x32(self.key, [sample as u32, query as u32, key as u32, self.word])[0];
        if random < self.threshold { 0.0 } else { self.scale }
    }
}

multiversion! {
    /// Factors of one query's row.
    pub(super) fn keep_keys(keep: Keep, sample: i32, query: i32, keys: &[i32], out: &mut [f32]) {
        for (o, &key) in out.iter_mut().zip(keys) {
            *o = keep.of(sample, query, key);
        }
    }
}

multiversion! {
    /// Factors of one key's column.
    pub(super) fn keep_queries(keep: Keep, samples: &[i32], queries: &[i32], key: i32, out: &mut [f32]) {
        for (o, (&sample, &query)) in out.iter_mut().zip(samples.iter().zip(queries)) {
            *o = keep.of(sample, query, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn exp_is_accurate() {
        let mut worst = 0f64;
        let mut x = -87.3f32;
        while x < 1.0 {
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / want - 1.0).abs());
            x += 1.7e-5;
        }
        // 1.5 units of 2^-23
        assert!(worst < 1.8e-7, "{worst:e}");
        assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

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
