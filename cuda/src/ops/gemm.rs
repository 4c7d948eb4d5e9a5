//! Matrix products: cublasLt, and what it leaves to do (`add_bias` of `kernels/elementwise.cu`).

use ferrotron_device::ops::{Gemm, GemmOps};
use ferrotron_device::{DType, Error, Result, Stream, Tensor};

use crate::blas::Matrix;
use crate::device::CudaOps;
use crate::shared::lock;
use crate::stream::CudaStream;

impl CudaOps {
    /// `c = beta c + product + bias`
    fn add_bias(
        &self,
        s: &Stream,
        beta: f32,
        product: Option<Matrix>,
        bias: Option<&Tensor>,
        c: &mut Tensor,
    ) -> Result<()> {
        let launch = self.kernel(s, "add_bias")?;
        let launch = match product {
            Some(p) => launch.memory(p.at, c.numel(), p.dtype),
            None => launch.optional(None),
        };
        launch.optional(bias).tensor(c).value(c.cols() as u64).value(beta).over(c.numel())
    }
}

impl GemmOps for CudaOps {
    fn gemm(&self, s: &Stream, g: Gemm, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &mut Tensor) -> Result<()> {
        let (m, n, k) = g.check(a, b, bias, c)?;
        if m * n == 0 {
            return Ok(());
        }
        if k == 0 {
            return self.add_bias(s, g.beta, None, bias, c);
        }
        let core = CudaStream::of(s)?;
        core.begin()?;
        let (size, [at, bt]) = ((m, n, k), [a, b].map(Matrix::of));
        // the library adds a bias of C's type, which its kernels may read 16 bytes at a time
        let inside = bias.filter(|b| b.dtype() == c.dtype() && b.ptr().0.is_multiple_of(16));
        if inside.is_some() && self.blas.product(core, g, size, at, bt, inside, Matrix::of(c))? {
            return Ok(());
        }
        // else it is added after the product, which stays in float until then: C is rounded once
        let (g_inner, to) = if bias.is_none() || c.dtype() == DType::F32 {
            (g, Matrix::of(c))
        } else {
            let at = lock(&core.workspace).product(core, 4 * m * n)?;
            (Gemm { beta: 0.0, ..g }, Matrix { at, dtype: DType::F32 })
        };
        if !self.blas.product(core, g_inner, size, at, bt, None, to)? {
            let why = format!("cublasLt has no algorithm for {a:?} times {b:?} into {}", to.dtype);
            return Err(Error::Unsupported { op: "gemm", device: self.name.clone(), why });
        }
        match bias {
            None => Ok(()),
            Some(_) if to.at == c.ptr().0 => self.add_bias(s, 1.0, None, bias, c),
            Some(_) => self.add_bias(s, g.beta, Some(to), bias, c),
        }
    }
}
