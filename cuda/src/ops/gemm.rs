//! Matrix products: cublasLt, and what it leaves to do (`add_bias` of `kernels/elementwise.cu`).

use ferrotron_device::ops::gemm::{check_activated, gemm_then_activation, gemm_then_slope};
use ferrotron_device::ops::{Activation, Gemm, GemmOps};
use ferrotron_device::{DType, Error, Result, Stream, Tensor};

use crate::blas::{After, Matrix};
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
        let inside = bias.filter(|b| is_taken(b, c.dtype()));
        if inside.is_some() && self.blas.product(core, g, size, at, bt, After::Bias(inside), Matrix::of(c))? {
            return Ok(());
        }
        // else it is added after the product, which stays in float until then: C is rounded once
        let (g_inner, to) = if bias.is_none() || c.dtype() == DType::F32 {
            (g, Matrix::of(c))
        } else {
            let at = lock(&core.workspace).product(core, 4 * m * n)?;
            (Gemm { beta: 0.0, ..g }, Matrix { at, dtype: DType::F32 })
        };
        if !self.blas.product(core, g_inner, size, at, bt, After::Bias(None), to)? {
            let why = format!("cublasLt has no algorithm for {a:?} times {b:?} into {}", to.dtype);
            return Err(Error::Unsupported { op: "gemm", device: self.name.clone(), why });
        }
        match bias {
            None => Ok(()),
            Some(_) if to.at == c.ptr().0 => self.add_bias(s, 1.0, None, bias, c),
            Some(_) => self.add_bias(s, g.beta, Some(to), bias, c),
        }
    }

    fn gemm_activation(
        &self,
        s: &Stream,
        g: Gemm,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        f: Activation,
        inner: &mut Tensor,
        y: &mut Tensor,
    ) -> Result<()> {
        let size = check_activated("gemm_activation", g, a, b, bias, inner, y)?;
        let taken = bias.is_none_or(|b| is_taken(b, y.dtype()));
        if taken && self.gelu(s, g, size, [a, b], f, inner, y, After::Gelu(bias, inner))? {
            return Ok(());
        }
        gemm_then_activation(self, s, g, a, b, bias, f, inner, y)
    }

    fn gemm_activation_backward(
        &self,
        s: &Stream,
        g: Gemm,
        a: &Tensor,
        b: &Tensor,
        f: Activation,
        inner: &Tensor,
        d: &mut Tensor,
    ) -> Result<()> {
        let size = check_activated("gemm_activation_backward", g, a, b, None, inner, d)?;
        if self.gelu(s, g, size, [a, b], f, inner, d, After::GeluSlope(inner))? {
            return Ok(());
        }
        gemm_then_slope(self, s, g, a, b, f, inner, d)
    }
}

/// True for a bias that the library adds: of C's type, at an address that its kernels may read 16 bytes at a time from.
fn is_taken(bias: &Tensor, c: DType) -> bool {
    bias.dtype() == c && bias.ptr().0.is_multiple_of(16)
}

impl CudaOps {
    /// A product with GELU by tanh, or its slope, behind it; `Ok(false)`: the library does not do this one.
    #[allow(clippy::too_many_arguments)] // as the ops
    fn gelu(
        &self,
        s: &Stream,
        g: Gemm,
        size: (usize, usize, usize),
        [a, b]: [&Tensor; 2],
        f: Activation,
        inner: &Tensor,
        c: &Tensor,
        after: After<'_>,
    ) -> Result<bool> {
        let (m, n, k) = size;
        let fits = n.is_multiple_of(8) && inner.ptr().0.is_multiple_of(16);
        if f != Activation::GeluTanh || m * n * k == 0 || !fits {
            return Ok(false);
        }
        let core = CudaStream::of(s)?;
        core.begin()?;
        let [a, b, c] = [a, b, c].map(Matrix::of);
        self.blas.product(core, g, size, a, b, after, c)
    }
}
