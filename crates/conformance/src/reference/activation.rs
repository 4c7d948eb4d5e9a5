//! Activations and their derivatives; the error function in f64.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use ferrotron_device::ops::Activation;

/// `2/sqrt(pi) integral_0^x exp(-t^2) dt`, to about 1e-15 relative.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 3.0 { x.signum() * (1.0 - erfc(x.abs())) } else { erf_series(x) }
}

/// `1 - erf(x)` without cancellation in the upper tail.
pub fn erfc(x: f64) -> f64 {
    if x < 2.0 { 1.0 - erf(x) } else { erfc_fraction(x) }
}

/// Abramowitz & Stegun 7.1.6: `erf(x) = 2/sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (1 3 5 .. (2n+1))`. No term is
/// negative, so nothing cancels.
fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    let mut n = 1.0;
    while term.abs() > 1e-17 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// Abramowitz & Stegun 7.1.14, the continued fraction `exp(-x^2)/sqrt(pi) 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + ..`,
/// from the inside out.
fn erfc_fraction(x: f64) -> f64 {
    let tail = (1..=80).rev().fold(x, |inner, k| x + f64::from(k) / 2.0 / inner);
    (-x * x).exp() / (PI.sqrt() * tail)
}

/// Standard normal distribution function.
fn phi(x: f64) -> f64 {
    0.5 * erfc(-x * FRAC_1_SQRT_2)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `f(x)`.
pub fn value(f: Activation, x: f64) -> f64 {
    match f {
        Activation::Gelu => x * phi(x),
        Activation::GeluTanh => x * sigmoid(2.0 * tanh_argument(x)), // (1 + tanh u)/2 = sigmoid(2u), exact in the tail
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Silu => x * sigmoid(x),
        Activation::Relu => x.max(0.0),
        Activation::SquaredRelu => x.max(0.0) * x.max(0.0),
    }
}

fn tanh_argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// `f'(x)`; 0 at the corner of relu, as torch has it.
pub fn slope(f: Activation, x: f64) -> f64 {
    let gated = |s: f64, inner_slope: f64| s + x * s * (1.0 - s) * inner_slope;
    match f {
        Activation::Gelu => phi(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
        Activation::GeluTanh => {
            gated(sigmoid(2.0 * tanh_argument(x)), 2.0 * (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x))
        }
        Activation::QuickGelu => gated(sigmoid(1.702 * x), 1.702),
        Activation::Silu => gated(sigmoid(x), 1.0),
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        Activation::SquaredRelu => 2.0 * x.max(0.0),
    }
}

/// `f` of every element.
pub fn forward(f: Activation, x: &[f64]) -> Vec<f64> {
    x.iter().map(|&x| value(f, x)).collect()
}

/// dx of dy.
pub fn backward(f: Activation, x: &[f64], dy: &[f64]) -> Vec<f64> {
    x.iter().zip(dy).map(|(&x, dy)| dy * slope(f, x)).collect()
}

/// y `[T,F]` of x `[T,2F]` = (gate | up).
pub fn glu(f: Activation, width: usize, x: &[f64]) -> Vec<f64> {
    let rows = x.chunks(2 * width);
    rows.flat_map(|row| (0..width).map(|c| value(f, row[c]) * row[width + c]).collect::<Vec<_>>()).collect()
}

/// dx `[T,2F]` of dy `[T,F]`.
pub fn glu_backward(f: Activation, width: usize, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let mut dx = Vec::new();
    for (x, dy) in x.chunks(2 * width).zip(dy.chunks(width)) {
        dx.extend((0..width).map(|c| dy[c] * slope(f, x[c]) * x[width + c]));
        dx.extend((0..width).map(|c| dy[c] * value(f, x[c])));
    }
    dx
}

/// All of them.
pub const ALL: [Activation; 6] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Silu,
    Activation::Relu,
    Activation::SquaredRelu,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    /// Abramowitz & Stegun, table 7.1 and 7.3 (erfc of 3 and 5 from the same handbook's asymptotic entries).
    #[test]
    fn error_function_known_values() {
        for (x, want) in [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9)] {
            assert!((erf(x) - want).abs() < 1e-15, "erf({x})");
            assert!((erf(-x) + want).abs() < 1e-15, "erf(-{x})");
        }
        for (x, want) in
            [(2.0, 4.677_734_981_047_266e-3), (3.0, 2.209_049_699_858_544e-5), (5.0, 1.537_459_794_428_035e-12)]
        {
            assert!((erfc(x) / want - 1.0).abs() < 1e-12, "erfc({x}) = {}", erfc(x));
        }
        // the two expansions meet
        assert!(((1.0 - erf_series(2.5)) / erfc_fraction(2.5) - 1.0).abs() < 1e-11);
    }

    #[test]
    fn gradients() {
        let (x, dy) = (noise(1, 40), noise(2, 40));
        for f in ALL {
            assert_gradient("dx", &x, &backward(f, &x, &dy), |x| dot(&forward(f, x), &dy));
            let wide = noise(3, 80);
            assert_gradient("glu dx", &wide, &glu_backward(f, 10, &wide, &dy), |x| dot(&glu(f, 10, x), &dy));
        }
    }

    #[test]
    fn gelu_tanh_is_the_published_form() {
        for x in noise(4, 50) {
            let published = 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
            assert!((value(Activation::GeluTanh, x) - published).abs() < 1e-14);
        }
    }
}
