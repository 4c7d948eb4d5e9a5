//! Matrix products, row-major.
//!
//! `C[M,N] = alpha * op(A) op(B) + beta * C (+ bias[N])`, op = identity or transpose as stored.
//! A linear layer with weight `W[out,in]`: forward `Gemm::NT` (y = x W^T), input gradient `Gemm::NN` (dx = dy W),
//! weight gradient `Gemm::TN_ACC` (dW += dy^T x, C in F32 whatever A and B are).

use super::{expect_dtype, expect_storage, no_overlap};
use crate::error::expect;
use crate::{DType, Result, Stream, Tensor};

/// Which product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// A is stored `[K,M]`.
    pub trans_a: bool,
    /// B is stored `[N,K]`.
    pub trans_b: bool,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of what C held. 0 means that C is not read (it may hold NaN).
    pub beta: f32,
}

impl Gemm {
    /// `C = A B^T`
    pub const NT: Gemm = Gemm { trans_a: false, trans_b: true, alpha: 1.0, beta: 0.0 };
    /// `C = A B`
    pub const NN: Gemm = Gemm { trans_a: false, trans_b: false, alpha: 1.0, beta: 0.0 };
    /// `C = A^T B`
    pub const TN: Gemm = Gemm { trans_a: true, trans_b: false, alpha: 1.0, beta: 0.0 };
    /// `C += A^T B`
    pub const TN_ACC: Gemm = Gemm { trans_a: true, trans_b: false, alpha: 1.0, beta: 1.0 };

    /// Checks shapes and dtypes; gives (M, N, K).
    pub fn check(&self, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &Tensor) -> Result<(usize, usize, usize)> {
        let (m, k) = if self.trans_a { (a.cols(), a.rows()) } else { (a.rows(), a.cols()) };
        let (n, kb) = if self.trans_b { (b.rows(), b.cols()) } else { (b.cols(), b.rows()) };
        expect("gemm", "K of B", k, kb)?;
        expect("gemm", "shape of C", (m, n), (c.rows(), c.cols()))?;
        expect_storage("gemm", "dtype of A", a)?;
        expect_dtype("gemm", "dtype of B", b, a.dtype())?;
        if c.dtype() != DType::F32 {
            expect_dtype("gemm", "dtype of C", c, a.dtype())?;
        }
        if let Some(bias) = bias {
            expect("gemm", "elements of bias", n, bias.numel())?;
            expect_storage("gemm", "dtype of bias", bias)?;
        }
        no_overlap("gemm", c, &[a, b], false)?;
        Ok((m, n, k))
    }
}

/// Matrix products.
pub trait GemmOps {
    /// `c = alpha * op(a) op(b) + beta * c + bias`. A and B have one storage dtype; C has the same or F32; bias any
    /// storage dtype. The sum over K runs in f32 in an order that depends on the shape only.
    fn gemm(&self, s: &Stream, g: Gemm, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &mut Tensor) -> Result<()>;
}
