//! Dropout masks from Philox counters.

use ferrotron_base::philox::{drop_threshold, philox4x32};
use ferrotron_device::ops::DropSite;

/// What an element is multiplied with: 0 when dropped, else 1/(1-p). `word3` is 0 for activations, the global head
/// plus one for attention probabilities.
pub fn factor(site: DropSite, sample: i32, offset: i32, col: u32, word3: u32) -> f64 {
    let bits = philox4x32(site.key, [sample as u32, offset as u32, col, word3])[0];
    if bits < drop_threshold(site.p) { 0.0 } else { 1.0 / (1.0 - f64::from(site.p)) }
}

/// `dropout(x) + residual` over rows of x `[T,C]`, T = `sample.len()`.
pub fn dropout(
    site: DropSite,
    first_col: usize,
    sample: &[i32],
    offset: &[i32],
    x: &[f64],
    residual: Option<&[f64]>,
) -> Vec<f64> {
    let cols = x.len() / sample.len().max(1);
    (0..x.len())
        .map(|i| {
            let (t, c) = (i / cols, i % cols);
            let kept = x[i] * factor(site, sample[t], offset[t], (first_col + c) as u32, 0);
            kept + residual.map_or(0.0, |r| r[i])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_as_often_as_asked_and_keeps_the_mean() {
        let site = DropSite { p: 0.25, key: 99 };
        let n = 40_000;
        let y = dropout(site, 7, &[3], &[5], &vec![1.0; n], None);
        let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / n as f64;
        // standard error sqrt(p(1-p)/n) = 0.0022; four of it
        assert!((dropped - 0.25).abs() < 0.009, "{dropped}");
        assert!(y.iter().all(|&y| y == 0.0 || (y - 4.0 / 3.0).abs() < 1e-12));
    }

    #[test]
    fn a_column_shard_draws_the_same_mask() {
        let site = DropSite { p: 0.5, key: 7 };
        let whole = dropout(site, 0, &[1], &[2], &[1.0; 64], None);
        assert_eq!(dropout(site, 32, &[1], &[2], &[1.0; 32], None), whole[32..]);
    }
}
