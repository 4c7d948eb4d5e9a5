//! Element by element, and small reductions: `kernels/elementwise.cu` and `kernels/reduce.cu`.

use ferrotron_device::ops::ElementwiseOps;
use ferrotron_device::ops::elementwise::{check_copy, check_f32, check_same, check_weighted_sum};
use ferrotron_device::ops::{expect_dtype, expect_numel, expect_storage};
use ferrotron_device::{DType, Result, Stream, Tensor};

use crate::device::CudaOps;
use crate::shared::{Omit, lock};
use crate::stream::CudaStream;

/// What [`CudaOps::sum`] adds up; the codes of the kernel.
#[derive(Clone, Copy)]
pub enum Sum<'a> {
    Squares,
    Zeros,
    /// By weights, which begin again where they are shorter.
    Weighted(&'a Tensor),
}

/// Most parts of a sum, and elements that make one part worth while.
const MAX_PARTS: usize = 1024;
const PART: usize = 4096;

impl CudaOps {
    /// `out[0] += sum` over x, in double, in an order given by the length.
    pub fn sum(&self, s: &Stream, what: Sum<'_>, x: &Tensor, out: &mut Tensor) -> Result<()> {
        if x.numel() == 0 {
            return Ok(());
        }
        let (code, weight) = match what {
            Sum::Squares => (0u32, None),
            Sum::Zeros => (1, None),
            Sum::Weighted(w) => (2, Some(w)),
        };
        let parts = x.numel().div_ceil(PART).min(MAX_PARTS);
        let core = CudaStream::of(s)?;
        core.begin()?;
        let scratch = lock(&core.workspace).at(&core.shared)?;
        let launch = self.kernel(s, "sum_parts")?.tensor(x).optional(weight).memory(scratch, parts, DType::F64);
        launch.value(code).blocks(parts, 1, 0)?;
        self.kernel(s, "sum_finish")?.memory(scratch, parts, DType::F64).tensor(out).blocks(1, 1, 0)
    }
}

impl ElementwiseOps for CudaOps {
    fn fill(&self, s: &Stream, value: f32, y: &mut Tensor) -> Result<()> {
        expect_storage("fill", "dtype", y)?;
        if y.numel() == 0 {
            return Ok(());
        }
        self.kernel(s, "fill")?.tensor(y).value(value).over(y.numel())
    }

    fn copy(&self, s: &Stream, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let n = check_copy(x, y)?;
        if n == 0 || x.same_memory(y) {
            return Ok(());
        }
        if x.dtype() != y.dtype() {
            return self.kernel(s, "convert")?.tensor(x).tensor(y).over(n);
        }
        let core = CudaStream::of(s)?;
        core.begin()?;
        core.note(format!("copy of {} bytes", x.bytes()));
        let stream = core.shared.stream_for(core, Omit::KernelStream);
        let copy = core.shared.cuda.driver.cuMemcpyDtoDAsync_v2;
        // SAFETY: both are memory of this device of as many bytes, and this runs in stream order.
        core.check("cuMemcpyDtoDAsync", unsafe { copy(y.ptr().0, x.ptr().0, x.bytes(), stream) })
    }

    fn add(&self, s: &Stream, a: &Tensor, b: &Tensor, y: &mut Tensor) -> Result<()> {
        match check_same("add", a, b, y)? {
            0 => Ok(()),
            n => self.kernel(s, "add")?.tensor(a).tensor(b).tensor(y).over(n),
        }
    }

    fn axpy(&self, s: &Stream, alpha: f32, x: &Tensor, y: &mut Tensor) -> Result<()> {
        check_f32("axpy", x, x.numel(), y)?;
        if x.numel() == 0 {
            return Ok(());
        }
        self.kernel(s, "axpy")?.tensor(x).tensor(y).value(alpha).over(x.numel())
    }

    fn scale(&self, s: &Stream, factor: &Tensor, x: &mut Tensor) -> Result<()> {
        check_f32("scale", x, 1, factor)?;
        if x.numel() == 0 {
            return Ok(());
        }
        self.kernel(s, "scale")?.tensor(factor).tensor(x).over(x.numel())
    }

    fn column_sum(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let (t, c) = (x.rows(), x.cols());
        check_f32("column_sum", x, c, out)?;
        if t * c == 0 {
            return Ok(());
        }
        self.kernel(s, "column_sum")?.tensor(x).tensor(out).value(t as u64).over_columns(c)
    }

    fn weighted_sum(&self, s: &Stream, x: &Tensor, w: &Tensor, out: &mut Tensor) -> Result<()> {
        check_weighted_sum(x, w, out)?;
        expect_numel("weighted_sum", "elements of out", out, 1)?;
        expect_dtype("weighted_sum", "dtype of out", out, DType::F32)?;
        self.sum(s, Sum::Weighted(w), x, out)
    }
}
