//! Adam and SGD over flat ranges.

use ferrotron_device::ops::AdamConfig;
use ferrotron_device::ops::optimizer::{BIAS1, BIAS2, GRAD_FACTOR, LR, WEIGHT_DECAY};

/// (master, m, v) after one step.
#[allow(clippy::too_many_arguments)]
pub fn adam(
    c: AdamConfig,
    decay: f64,
    lr_mult: f64,
    scalars: &[f64],
    grad: &[f64],
    master: &[f64],
    m: &[f64],
    v: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (lr, wd) = (scalars[LR] * lr_mult, scalars[WEIGHT_DECAY] * decay);
    let (b1, b2, eps) = (f64::from(c.beta1), f64::from(c.beta2), f64::from(c.eps));
    let (mut w_out, mut m_out, mut v_out) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..grad.len() {
        let (mut w, mut g) = (master[i], grad[i] * scalars[GRAD_FACTOR]);
        if c.decoupled {
            w -= lr * wd * w;
        } else {
            g += wd * w;
        }
        let m = b1 * m[i] + (1.0 - b1) * g;
        let v = b2 * v[i] + (1.0 - b2) * g * g;
        w -= lr * (m / scalars[BIAS1]) / ((v / scalars[BIAS2]).sqrt() + eps);
        w_out.push(w);
        m_out.push(m);
        v_out.push(v);
    }
    (w_out, m_out, v_out)
}

/// (master, momentum buffer) after one step.
pub fn sgd(
    momentum: f64,
    decay: f64,
    lr_mult: f64,
    scalars: &[f64],
    grad: &[f64],
    master: &[f64],
    buf: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let (lr, wd) = (scalars[LR] * lr_mult, scalars[WEIGHT_DECAY] * decay);
    let buf: Vec<f64> =
        (0..grad.len()).map(|i| momentum * buf[i] + grad[i] * scalars[GRAD_FACTOR] + wd * master[i]).collect();
    (master.iter().zip(&buf).map(|(w, b)| w - lr * b).collect(), buf)
}

/// `sum x^2`.
pub fn sum_squares(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}

/// Number of zeros of either sign.
pub fn count_zeros(x: &[f64]) -> f64 {
    x.iter().filter(|&&x| x == 0.0).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Torch 2's `AdamW(lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.5)` on w = 1, g = 0.5, first step: by hand
    /// m/c1 = g, v/c2 = g^2, so w = 1 - 0.05 - 0.1 * 0.5 / (0.5 + 1e-8).
    #[test]
    fn first_step_by_hand() {
        let scalars = [0.1, 0.5, 1.0, 1.0 - 0.9, 1.0 - 0.99, 0.0, 0.0, 0.0];
        let c = AdamConfig { beta1: 0.9, beta2: 0.99, eps: 1e-8, decoupled: true };
        let (w, _, _) = adam(c, 1.0, 1.0, &scalars, &[0.5], &[1.0], &[0.0], &[0.0]);
        // beta1 and beta2 pass through f32: 1e-6
        assert!((w[0] - (1.0 - 0.05 - 0.1 * 0.5 / (0.5 + 1e-8))).abs() < 1e-6, "{}", w[0]);
        let l2 = AdamConfig { decoupled: false, ..c };
        let (w, m, _) = adam(l2, 1.0, 2.0, &scalars, &[0.5], &[1.0], &[0.0], &[0.0]);
        assert!((w[0] - 0.8).abs() < 1e-6 && (m[0] - 0.1).abs() < 1e-6);
    }

    #[test]
    fn sgd_by_hand() {
        let scalars = [0.1, 0.5, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0];
        let (w, b) = sgd(0.9, 1.0, 1.0, &scalars, &[0.5], &[1.0], &[1.0]);
        assert!((b[0] - 2.4).abs() < 1e-12 && (w[0] - 0.76).abs() < 1e-12);
        assert_eq!((sum_squares(&[3.0, 4.0]), count_zeros(&[0.0, -0.0, 1.0])), (25.0, 2.0));
    }
}
