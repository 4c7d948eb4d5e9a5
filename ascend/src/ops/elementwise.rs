//! Element by element, and small reductions.

use ferrotron_device::ops::ElementwiseOps;
use ferrotron_device::ops::elementwise::{check_copy, check_f32, check_same, check_weighted_sum};
use ferrotron_device::ops::{expect_dtype, expect_numel, expect_storage};
use ferrotron_device::{DType, Result, Stream, Tensor};

use crate::device::AscendOps;
use crate::launch::Launch;
use crate::view::View;

/// A tensor as one row of elements.
pub fn flat(t: &Tensor) -> View {
    View::of(t, &[t.numel()])
}

impl ElementwiseOps for AscendOps {
    fn fill(&self, s: &Stream, value: f32, y: &mut Tensor) -> Result<()> {
        expect_storage("fill", "dtype", y)?;
        if y.numel() == 0 {
            return Ok(());
        }
        Launch::begin(s, "fill")?.fill(&flat(y), value)
    }

    fn copy(&self, s: &Stream, x: &Tensor, y: &mut Tensor) -> Result<()> {
        if check_copy(x, y)? == 0 || x.same_memory(y) {
            return Ok(());
        }
        Launch::begin(s, "copy")?.copy(&flat(x), &flat(y))
    }

    fn add(&self, s: &Stream, a: &Tensor, b: &Tensor, y: &mut Tensor) -> Result<()> {
        if check_same("add", a, b, y)? == 0 {
            return Ok(());
        }
        Launch::begin(s, "add")?.add(&flat(a), &flat(b), 1.0, &flat(y))
    }

    fn axpy(&self, s: &Stream, alpha: f32, x: &Tensor, y: &mut Tensor) -> Result<()> {
        check_f32("axpy", x, x.numel(), y)?;
        if x.numel() == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "axpy")?;
        let x = l.in_f32(&flat(x))?;
        l.add_to(&flat(y), &x, alpha)
    }

    fn scale(&self, s: &Stream, factor: &Tensor, x: &mut Tensor) -> Result<()> {
        check_f32("scale", x, 1, factor)?;
        if x.numel() == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "scale")?;
        let (xv, factor) = (flat(x), flat(factor));
        let x32 = l.in_f32(&xv)?;
        l.mul(&x32, &factor, &x32)?;
        if x.dtype() == DType::F32 { Ok(()) } else { l.cast(&x32, &xv) }
    }

    fn column_sum(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let (t, c) = (x.rows(), x.cols());
        check_f32("column_sum", x, c, out)?;
        if t * c == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "column_sum")?;
        let x = l.in_f32(&View::of(x, &[t, c]))?;
        let sum = l.f32(&[1, c])?;
        l.sum(&x, 0, &sum)?;
        l.add_to(&flat(out), &sum.reshaped(&[c]), 1.0)
    }

    fn weighted_sum(&self, s: &Stream, x: &Tensor, w: &Tensor, out: &mut Tensor) -> Result<()> {
        if check_weighted_sum(x, w, out)? == 0 {
            return Ok(());
        }
        expect_numel("weighted_sum", "elements of out", out, 1)?;
        expect_dtype("weighted_sum", "dtype of out", out, DType::F32)?;
        let mut l = Launch::begin(s, "weighted_sum")?;
        let (products, sum) = (l.f32(&[x.numel()])?, l.f32(&[1])?);
        l.mul(&flat(x), &flat(w), &products)?;
        l.sum(&products, 0, &sum)?;
        l.add_to(&flat(out), &sum, 1.0)
    }
}
