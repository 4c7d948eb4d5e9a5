//! Transcendental functions that compilers turn into wide registers: no branches, no calls, no tables.
//!
//! Errors below are the largest over the ranges that the unit tests scan, against f64.

/// `e^x` with a relative error below 1.2e-7 (2^-23). Zero below -87.33 (no subnormals), infinite above 88.72; NaN
/// stays NaN.
///
/// `x = n ln 2 + r`, `|r| <= ln 2 / 2` (Cody & Waite 1980: ln 2 in two parts, of which the first times n is exact),
/// then the series of `e^r` with coefficients of Cephes' `expf` (Moshier), then n is added to the exponent.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.336_54;
    const HIGHEST: f32 = 88.722_83;
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let t = x * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let y = f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23));
    let y = if x < LOWEST { 0.0 } else { y };
    let y = if x > HIGHEST { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Standard normal distribution function and density at x, from one exponential.
///
/// With `t = |x|/sqrt 2`, `erfc(t) = e^(-t^2) R(w)` where `w = 1/(1 + 0.42 t)` and R is the polynomial of degree 8
/// that interpolates `e^(t^2) erfc(t)` at Chebyshev nodes in w for t up to 9.3: 6.2e-8 relative (the form is Hastings'
/// 1955). Absolute error of the first below 1.4e-7; relative to it, 1e-6 at x = -5, where torch's f32 form `(1 + erf)/2`
/// has lost all digits.
#[inline(always)]
pub fn normal(x: f32) -> (f32, f32) {
    const HALF_R: [f32; 9] = [
        0.5 * 2.398_604e-5,
        0.5 * 0.236_366_38,
        0.5 * 0.243_239_67,
        0.5 * 0.178_806_74,
        0.5 * 0.310_193_06,
        0.5 * -0.196_682_35,
        0.5 * 0.504_018_55,
        0.5 * -0.353_613_2,
        0.5 * 0.077_647_22,
    ];
    let gauss = exp(-0.5 * x * x);
    let w = 1.0 / (1.0 + (0.42 * std::f32::consts::FRAC_1_SQRT_2) * x.abs());
    let mut r = HALF_R[8];
    let mut i = 8;
    while i > 0 {
        i -= 1;
        r = r * w + HALF_R[i];
    }
    let tail = r * gauss;
    (if x < 0.0 { tail } else { 1.0 - tail }, gauss * 0.398_942_3)
}

/// Independent sums that a loop keeps, enough for two zmm registers: as many on every instruction set.
pub const LANES: usize = 32;

/// `sum f(a[i], b[i], ..)` over slices of one length, in [`LANES`] lanes, then pairwise.
#[inline(always)]
pub fn sum<const N: usize>(of: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let mut acc = [0.0f32; LANES];
    let n = of[0].len();
    let whole = n / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        // One bounds check a chunk, none in the loop over lanes.
        let chunks = of.map(|x| &x[i..i + LANES]);
        for (l, a) in acc.iter_mut().enumerate() {
            *a += f(chunks.map(|c| c[l]));
        }
    }
    for (i, a) in (whole..n).zip(&mut acc) {
        *a += f(of.map(|x| x[i]));
    }
    fold(acc, |a, b| a + b)
}

/// Largest of a slice; minus infinity when it is empty; NaN is passed over.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut acc = [f32::NEG_INFINITY; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for c in &mut chunks {
        for (a, &x) in acc.iter_mut().zip(c) {
            *a = if x > *a { x } else { *a };
        }
    }
    for (a, &x) in acc.iter_mut().zip(chunks.remainder()) {
        *a = if x > *a { x } else { *a };
    }
    fold(acc, |a, b| if b > a { b } else { a })
}

/// Folds lanes pairwise.
#[inline(always)]
pub fn fold(mut acc: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            acc[l] = f(acc[l], acc[l + half]);
        }
        half /= 2;
    }
    acc[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 37th float of a range: a few million points.
    fn scan(from: f32, to: f32, mut f: impl FnMut(f32)) {
        let step = (to - from) / 2_000_003.0;
        let mut x = from;
        while x < to {
            f(x);
            x += step;
        }
    }

    #[test]
    fn exp_is_within_one_unit() {
        let mut worst = 0f64;
        scan(-87.3, 88.7, |x| {
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / want - 1.0).abs());
        });
        assert!(worst < 1.2e-7, "{worst:e}");
        assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert_eq!((exp(89.0), exp(f32::INFINITY)), (f32::INFINITY, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan() && exp(f32::from_bits(u32::MAX)).is_nan());
        assert!((exp(88.72) / 3.388e38 - 1.0).abs() < 1e-2 && exp(-87.33) > 0.0);
    }

    /// Phi by Simpson's rule on its density, in f64, from x = 0: independent of the formula above.
    #[test]
    fn normal_is_accurate() {
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (mut phi, mut x, h) = (0.5, 0.0f64, 1.0 / 1024.0);
        let (mut worst, mut worst_density) = (0f64, 0f64);
        while x < 9.0 {
            for (sign, want) in [(1.0, phi), (-1.0, 1.0 - phi)] {
                let (got, got_density) = normal((sign * x) as f32);
                worst = worst.max((f64::from(got) - want).abs());
                worst_density = worst_density.max((f64::from(got_density) - density(x)).abs());
            }
            phi += h / 6.0 * (density(x) + 4.0 * density(x + h / 2.0) + density(x + h));
            x += h;
        }
        assert!(worst < 1.4e-7 && worst_density < 1e-7, "{worst:e} {worst_density:e}");
        // Abramowitz & Stegun, table 26.2: Q(5) = 2.8665e-7
        assert!((normal(-5.0).0 / 2.866_515_7e-7 - 1.0).abs() < 1e-6, "{}", normal(-5.0).0);
        assert_eq!((normal(-40.0).0, normal(40.0).0), (0.0, 1.0));
        assert!(normal(f32::NAN).0.is_nan());
    }

    #[test]
    fn lanes_cover_every_length() {
        for n in [0, 1, 31, 32, 33, 100] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(sum([&x, &x], |[x, y]| 2.0 * x - y), (0..n).sum::<usize>() as f32);
            assert_eq!(max(&x), if n == 0 { f32::NEG_INFINITY } else { (n - 1) as f32 });
        }
    }
}
