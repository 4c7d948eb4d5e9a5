//! Cross-entropy in the pieces that a vocabulary shard computes.

/// (max, sum of exponentials, logit of the label or 0) of each row of z `[R,V]`; the shard starts at `first`.
pub fn stats(v: usize, z: &[f64], labels: &[i32], first: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut max, mut sum, mut target) = (Vec::new(), Vec::new(), Vec::new());
    for (z, &label) in z.chunks(v).zip(labels) {
        let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        max.push(m);
        sum.push(z.iter().map(|z| (z - m).exp()).sum());
        target.push(column(label, first, v).map_or(0.0, |c| z[c]));
    }
    (max, sum, target)
}

fn column(label: i32, first: usize, v: usize) -> Option<usize> {
    let c = i64::from(label) - first as i64;
    (c >= 0 && c < v as i64).then_some(c as usize)
}

/// `sum` brought from `old_max` to `new_max`.
pub fn rescale(old_max: &[f64], new_max: &[f64], sum: &[f64]) -> Vec<f64> {
    (0..sum.len()).map(|t| sum[t] * (old_max[t] - new_max[t]).exp()).collect()
}

/// (lse, loss).
pub fn loss(max: &[f64], sum: &[f64], target: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let lse: Vec<f64> = max.iter().zip(sum).map(|(m, s)| m + s.ln()).collect();
    let loss = lse.iter().zip(target).map(|(l, x)| l - x).collect();
    (lse, loss)
}

/// dz `[R,V]`.
pub fn backward(
    v: usize,
    z: &[f64],
    labels: &[i32],
    first: usize,
    lse: &[f64],
    weight: &[f64],
    scale: f64,
) -> Vec<f64> {
    let mut dz = Vec::new();
    for (t, z) in z.chunks(v).enumerate() {
        let label = column(labels[t], first, v);
        dz.extend((0..v).map(|c| {
            let hit = if label == Some(c) { 1.0 } else { 0.0 };
            ((z[c] - lse[t]).exp() - hit) * weight[t] * scale
        }));
    }
    dz
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    #[test]
    fn gradient_of_the_weighted_loss() {
        let (z, weight, labels) = (noise(1, 3 * 5), [0.5, 0.0, 2.0], [4, 0, 2]);
        let forward = |z: &[f64]| {
            let (m, s, x) = stats(5, z, &labels, 0);
            loss(&m, &s, &x)
        };
        let dz = backward(5, &z, &labels, 0, &forward(&z).0, &weight, 3.0);
        assert_gradient("dz", &z, &dz, |z| 3.0 * dot(&forward(z).1, &weight));
    }

    #[test]
    fn two_shards_give_the_whole() {
        let (z, labels) = (noise(2, 2 * 6), [4, 1]);
        let whole = stats(6, &z, &labels, 0);
        let half = |from: usize| [&z[from..from + 3], &z[6 + from..9 + from]].concat();
        let (a, b) = (stats(3, &half(0), &labels, 0), stats(3, &half(3), &labels, 3));
        for t in 0..2 {
            let sum = rescale(&a.0, &whole.0, &a.1)[t] + rescale(&b.0, &whole.0, &b.1)[t];
            assert!((sum - whole.1[t]).abs() < 1e-12 && a.2[t] + b.2[t] == whole.2[t]);
        }
    }
}
