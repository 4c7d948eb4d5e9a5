//! RMSNorm and LayerNorm over rows of H = `w.len()` elements.

fn factor(plus_one: bool, w: f64) -> f64 {
    if plus_one { 1.0 + w } else { w }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}

/// (y `[T,H]`, rstd `[T]`) of x `[T,H]`.
pub fn rms_norm(eps: f64, plus_one: bool, x: &[f64], w: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut rstd) = (Vec::new(), Vec::new());
    for x in x.chunks(w.len()) {
        let r = 1.0 / (mean(x.iter().map(|x| x * x)) + eps).sqrt();
        rstd.push(r);
        y.extend(x.iter().zip(w).map(|(x, &w)| x * r * factor(plus_one, w)));
    }
    (y, rstd)
}

/// (dx `[T,H]`, increment of dw `[H]`).
pub fn rms_norm_backward(plus_one: bool, x: &[f64], w: &[f64], rstd: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let h = w.len();
    let (mut dx, mut dw) = (Vec::new(), vec![0.0; h]);
    for ((x, dy), &r) in x.chunks(h).zip(dy.chunks(h)).zip(rstd) {
        let g: Vec<f64> = dy.iter().zip(w).map(|(dy, &w)| dy * factor(plus_one, w)).collect();
        let gx = mean(g.iter().zip(x).map(|(g, x)| g * x));
        for c in 0..h {
            dx.push(r * (g[c] - x[c] * r * r * gx));
            dw[c] += dy[c] * x[c] * r;
        }
    }
    (dx, dw)
}

/// (y `[T,H]`, stats `[2,T]`: means, then 1/std) of x `[T,H]`.
pub fn layer_norm(eps: f64, plus_one: bool, x: &[f64], w: &[f64], b: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
    for x in x.chunks(w.len()) {
        let mu = mean(x.iter().copied());
        let r = 1.0 / (mean(x.iter().map(|x| (x - mu) * (x - mu))) + eps).sqrt();
        means.push(mu);
        rstds.push(r);
        y.extend((0..w.len()).map(|c| (x[c] - mu) * r * factor(plus_one, w[c]) + b[c]));
    }
    means.extend(rstds);
    (y, means)
}

/// (dx `[T,H]`, increments of dw and db `[H]`).
pub fn layer_norm_backward(
    plus_one: bool,
    x: &[f64],
    w: &[f64],
    stats: &[f64],
    dy: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let h = w.len();
    let (means, rstds) = stats.split_at(stats.len() / 2);
    let (mut dx, mut dw, mut db) = (Vec::new(), vec![0.0; h], vec![0.0; h]);
    for (t, (x, dy)) in x.chunks(h).zip(dy.chunks(h)).enumerate() {
        let r = rstds[t];
        let xh: Vec<f64> = x.iter().map(|x| (x - means[t]) * r).collect();
        let g: Vec<f64> = dy.iter().zip(w).map(|(dy, &w)| dy * factor(plus_one, w)).collect();
        let mean_g = mean(g.iter().copied());
        let mean_gxh = mean(g.iter().zip(&xh).map(|(g, xh)| g * xh));
        for c in 0..h {
            dx.push(r * (g[c] - mean_g - xh[c] * mean_gxh));
            dw[c] += dy[c] * xh[c];
            db[c] += dy[c];
        }
    }
    (dx, dw, db)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    #[test]
    fn rms_norm_gradients() {
        let (x, w, dy) = (noise(1, 15), noise(2, 5), noise(3, 15));
        for plus_one in [false, true] {
            let (_, rstd) = rms_norm(1e-2, plus_one, &x, &w);
            let (dx, dw) = rms_norm_backward(plus_one, &x, &w, &rstd, &dy);
            assert_gradient("dx", &x, &dx, |x| dot(&rms_norm(1e-2, plus_one, x, &w).0, &dy));
            assert_gradient("dw", &w, &dw, |w| dot(&rms_norm(1e-2, plus_one, &x, w).0, &dy));
        }
    }

    #[test]
    fn layer_norm_gradients() {
        let (x, w, b, dy) = (noise(1, 15), noise(2, 5), noise(3, 5), noise(4, 15));
        for plus_one in [false, true] {
            let (_, stats) = layer_norm(1e-2, plus_one, &x, &w, &b);
            let (dx, dw, db) = layer_norm_backward(plus_one, &x, &w, &stats, &dy);
            assert_gradient("dx", &x, &dx, |x| dot(&layer_norm(1e-2, plus_one, x, &w, &b).0, &dy));
            assert_gradient("dw", &w, &dw, |w| dot(&layer_norm(1e-2, plus_one, &x, w, &b).0, &dy));
            assert_gradient("db", &b, &db, |b| dot(&layer_norm(1e-2, plus_one, &x, &w, b).0, &dy));
        }
    }

    #[test]
    fn a_normalised_row_has_mean_zero_and_variance_one() {
        let x = noise(5, 1000);
        let (y, _) = layer_norm(0.0, false, &x, &vec![1.0; 1000], &vec![0.0; 1000]);
        assert!(mean(y.iter().copied()).abs() < 1e-12 && (mean(y.iter().map(|y| y * y)) - 1.0).abs() < 1e-12);
    }
}
