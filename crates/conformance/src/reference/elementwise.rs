//! Loops over elements, and two small reductions.

/// `a + b`.
pub fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `y + alpha x`.
pub fn axpy(alpha: f64, x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| y + alpha * x).collect()
}

/// `factor x`.
pub fn scale(factor: f64, x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| factor * x).collect()
}

/// Sums of the columns of x `[T,C]`.
pub fn column_sum(c: usize, x: &[f64]) -> Vec<f64> {
    (0..c).map(|col| x.iter().skip(col).step_by(c).sum()).collect()
}

/// `sum_t x[t] w[t]`.
pub fn weighted_sum(x: &[f64], w: &[f64]) -> f64 {
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        assert_eq!(column_sum(2, &[1., 2., 3., 4., 5., 6.]), [9., 12.]);
        assert_eq!(weighted_sum(&[1., 2.], &[3., 4.]), 11.);
        assert_eq!(axpy(2., &[1., 2.], &[10., 20.]), [12., 24.]);
    }
}
