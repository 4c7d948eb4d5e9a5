//! The maths of every op in plain f64 loops over host slices, forward and backward, written from the contracts in
//! `ferrotron_device::ops`: the yardstick of every device, and the arithmetic of the vendors' mocks.
//!
//! Nothing here is fast or clever. Outputs that a contract overwrites are returned; of outputs that accumulate the
//! increment is returned. Backward functions are checked against central finite differences in their unit tests.

pub mod activation;
pub mod attention;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod gemm;
pub mod layout;
pub mod moe;
pub mod norm;
pub mod optimizer;
pub mod rope;

#[cfg(test)]
pub(crate) mod finite {
    //! Central finite differences.

    use ferrotron_base::philox::normal;

    /// `n` standard normals, the same for the same `key`.
    pub fn noise(key: u64, n: usize) -> Vec<f64> {
        (0..n as u64).map(|i| f64::from(normal(key, i))).collect()
    }

    /// Inner product: turns a function with many outputs into a scalar one whose gradient backward must give.
    pub fn dot(a: &[f64], b: &[f64]) -> f64 {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }

    /// Asserts that `grad` is the gradient of `f` at `x`. A step of 1e-5 leaves a truncation error of 1e-10 and a
    /// rounding error of 1e-11 for values of order one; 1e-7 is far above both and far below any wrong term.
    pub fn assert_gradient(what: &str, x: &[f64], grad: &[f64], f: impl Fn(&[f64]) -> f64) {
        assert_eq!(x.len(), grad.len(), "{what}: length of the gradient");
        let step = 1e-5;
        let mut at = x.to_vec();
        for i in 0..x.len() {
            at[i] = x[i] + step;
            let up = f(&at);
            at[i] = x[i] - step;
            let down = f(&at);
            at[i] = x[i];
            let want = (up - down) / (2.0 * step);
            assert!((grad[i] - want).abs() <= 1e-7 * (1.0 + want.abs()), "{what}[{i}]: {} should be {want}", grad[i]);
        }
    }
}
