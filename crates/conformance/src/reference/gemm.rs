//! Matrix products.

use ferrotron_device::ops::Gemm;

/// Sizes of a product `[M,K] x [K,N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sum.
    pub k: usize,
}

/// `alpha op(a) op(b) + beta c + bias`, C `[M,N]`. With beta 0, c is not read.
pub fn gemm(g: Gemm, s: Size, a: &[f64], b: &[f64], bias: Option<&[f64]>, c: &[f64]) -> Vec<f64> {
    gemm_sized(g, s, a, b, bias, c).0
}

/// [`gemm`], and the same with every term's absolute value: the scale of rounding errors of each element of C.
pub fn gemm_sized(g: Gemm, s: Size, a: &[f64], b: &[f64], bias: Option<&[f64]>, c: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let a = if g.trans_a { transposed(s.k, s.m, a) } else { a.to_vec() };
    let b = if g.trans_b { b.to_vec() } else { transposed(s.k, s.n, b) };
    let (mut values, mut sizes) = (Vec::new(), Vec::new());
    for i in 0..s.m {
        for j in 0..s.n {
            let (mut value, mut size) = (0.0, 0.0);
            for (a, b) in a[i * s.k..(i + 1) * s.k].iter().zip(&b[j * s.k..(j + 1) * s.k]) {
                value += a * b;
                size += (a * b).abs();
            }
            let held = if g.beta == 0.0 { 0.0 } else { f64::from(g.beta) * c[i * s.n + j] };
            let added = bias.map_or(0.0, |bias| bias[j]);
            values.push(f64::from(g.alpha) * value + held + added);
            sizes.push(f64::from(g.alpha).abs() * size + held.abs() + added.abs());
        }
    }
    (values, sizes)
}

/// `[cols, rows]` of x `[rows, cols]`.
fn transposed(rows: usize, cols: usize, x: &[f64]) -> Vec<f64> {
    (0..cols).flat_map(|c| (0..rows).map(move |r| x[r * cols + c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    /// The three products of a linear layer are each other's gradients, as the contract promises.
    #[test]
    fn a_linear_layer_is_consistent() {
        let (x, w, dy) = (noise(1, 4 * 3), noise(2, 2 * 3), noise(3, 4 * 2));
        let y = |x: &[f64], w: &[f64]| gemm(Gemm::NT, Size { m: 4, n: 2, k: 3 }, x, w, Some(&[1.0, 2.0]), &[]);
        let dx = gemm(Gemm::NN, Size { m: 4, n: 3, k: 2 }, &dy, &w, None, &[]);
        let dw = gemm(Gemm::TN, Size { m: 2, n: 3, k: 4 }, &dy, &x, None, &[]);
        assert_gradient("dx", &x, &dx, |x| dot(&y(x, &w), &dy));
        assert_gradient("dw", &w, &dw, |w| dot(&y(&x, w), &dy));
    }

    #[test]
    fn alpha_beta_by_hand() {
        let g = Gemm { trans_a: false, trans_b: false, alpha: 2.0, beta: -1.0 };
        let s = Size { m: 1, n: 1, k: 2 };
        assert_eq!(gemm(g, s, &[1.0, 2.0], &[3.0, -4.0], Some(&[0.5]), &[7.0]), [-10.0 - 7.0 + 0.5]);
        assert_eq!(gemm_sized(g, s, &[1.0, 2.0], &[3.0, -4.0], Some(&[0.5]), &[7.0]).1, [22.0 + 7.0 + 0.5]);
    }
}
