//! Single operators over views.

use ferrotron_acl_sys as acl;
use ferrotron_device::Result;

use crate::launch::{Launch, Number, text};
use crate::shared::Omit;
use crate::view::View;

/// Plans and runs one operator: its name, its views for error messages, its arguments.
macro_rules! step {
    ($self:ident, $op:ident; [$($view:expr),*]; $($call:expr),*) => {
        // SAFETY: the operands were made just above for this call and live until the op ends.
        $self.run(|o| &o.$op, stringify!($op), &[$($view),*], |plan, bytes, executor| unsafe {
            plan($($call,)* bytes, executor)
        })
    };
}
pub(crate) use step;

/// Groups of `aclnnGroupedMatmulAdd` are along K.
const SPLIT_K: i64 = 2;

impl Launch<'_> {
    /// `out = a + alpha b`, with broadcasting.
    pub fn add(&mut self, a: &View, b: &View, alpha: impl Into<Number>, out: &View) -> Result<()> {
        let (x, y, s, z) = (self.tensor(a)?, self.tensor(b)?, self.number(alpha), self.tensor(out)?);
        step!(self, aclnnAdd; [a, b, out]; x, y, s, z)
    }

    /// `a += alpha b`, with broadcasting.
    pub fn add_to(&mut self, a: &View, b: &View, alpha: impl Into<Number>) -> Result<()> {
        let (x, y, s) = (self.tensor(a)?, self.tensor(b)?, self.number(alpha));
        step!(self, aclnnInplaceAdd; [a, b]; x, y, s)
    }

    /// `out = a - alpha b`, with broadcasting.
    pub fn sub(&mut self, a: &View, b: &View, alpha: f32, out: &View) -> Result<()> {
        let (x, y, s, z) = (self.tensor(a)?, self.tensor(b)?, self.number(alpha), self.tensor(out)?);
        step!(self, aclnnSub; [a, b, out]; x, y, s, z)
    }

    /// `out = a b`, with broadcasting.
    pub fn mul(&mut self, a: &View, b: &View, out: &View) -> Result<()> {
        let (x, y, z) = (self.tensor(a)?, self.tensor(b)?, self.tensor(out)?);
        step!(self, aclnnMul; [a, b, out]; x, y, z)
    }

    /// `out = a / b`, with broadcasting.
    pub fn div(&mut self, a: &View, b: &View, out: &View) -> Result<()> {
        let (x, y, z) = (self.tensor(a)?, self.tensor(b)?, self.tensor(out)?);
        step!(self, aclnnDiv; [a, b, out]; x, y, z)
    }

    /// `out = a + c`.
    pub fn add_number(&mut self, a: &View, c: impl Into<Number>, out: &View) -> Result<()> {
        let c = c.into();
        let one = match c {
            Number::F32(_) => Number::F32(1.0),
            Number::I64(_) => Number::I64(1),
        };
        let (x, y, s, z) = (self.tensor(a)?, self.number(c), self.number(one), self.tensor(out)?);
        step!(self, aclnnAdds; [a, out]; x, y, s, z)
    }

    /// `out = a c`.
    pub fn mul_number(&mut self, a: &View, c: f32, out: &View) -> Result<()> {
        let (x, y, z) = (self.tensor(a)?, self.number(c), self.tensor(out)?);
        step!(self, aclnnMuls; [a, out]; x, y, z)
    }

    /// `out = sqrt(a)`.
    pub fn sqrt(&mut self, a: &View, out: &View) -> Result<()> {
        let (x, z) = (self.tensor(a)?, self.tensor(out)?);
        step!(self, aclnnSqrt; [a, out]; x, z)
    }

    /// `out = exp(a)`.
    pub fn exp(&mut self, a: &View, out: &View) -> Result<()> {
        let (x, z) = (self.tensor(a)?, self.tensor(out)?);
        step!(self, aclnnExp; [a, out]; x, z)
    }

    /// `out = ln(a)`.
    pub fn log(&mut self, a: &View, out: &View) -> Result<()> {
        let (x, z) = (self.tensor(a)?, self.tensor(out)?);
        step!(self, aclnnLog; [a, out]; x, z)
    }

    /// `out = a`, converted; strides of both are honoured.
    pub fn copy(&mut self, a: &View, out: &View) -> Result<()> {
        let (z, x) = (self.tensor(out)?, self.tensor(a)?);
        step!(self, aclnnInplaceCopy; [out, a]; z, x)
    }

    /// `out = a`, converted, both contiguous.
    pub fn cast(&mut self, a: &View, out: &View) -> Result<()> {
        let (x, z, dtype) = (self.tensor(a)?, self.tensor(out)?, out.dtype);
        step!(self, aclnnCast; [a, out]; x, dtype, z)
    }

    /// The values in float32: the view itself when it is that already, else converted scratch.
    pub fn in_f32(&mut self, a: &View) -> Result<View> {
        if a.dtype == acl::ACL_FLOAT {
            return Ok(a.clone());
        }
        let out = self.f32(&a.dims)?;
        self.copy(a, &out)?;
        Ok(out)
    }

    /// `out = 0`.
    pub fn zero(&mut self, out: &View) -> Result<()> {
        let z = self.tensor(out)?;
        step!(self, aclnnInplaceZero; [out]; z)
    }

    /// `out = value`.
    pub fn fill(&mut self, out: &View, value: impl Into<Number>) -> Result<()> {
        let (z, s) = (self.tensor(out)?, self.number(value));
        step!(self, aclnnInplaceFillScalar; [out]; z, s)
    }

    /// `out = a @ b`, two dims each, in the inputs' precision.
    pub fn matmul(&mut self, a: &View, b: &View, out: &View) -> Result<()> {
        let (x, y, z) = (self.tensor(a)?, self.tensor(b)?, self.tensor(out)?);
        step!(self, aclnnMatmul; [a, b, out]; x, y, z, acl::KEEP_DTYPE)
    }

    /// True when this release has [`Launch::addmm`].
    pub fn has_addmm(&self) -> bool {
        self.core().shared.cann.ops.aclnnAddmm.is_some()
    }

    /// `out = bias + a @ b`, two dims each, bias one.
    pub fn addmm(&mut self, bias: &View, a: &View, b: &View, out: &View) -> Result<()> {
        let (c, x, y, z) = (self.tensor(bias)?, self.tensor(a)?, self.tensor(b)?, self.tensor(out)?);
        let (beta, alpha) = (self.number(1.0), self.number(1.0));
        step!(self, aclnnAddmm; [bias, a, b, out]; c, x, y, beta, alpha, z, acl::KEEP_DTYPE)
    }

    /// True when this release has [`Launch::matmul_add`].
    pub fn has_matmul_add(&self) -> bool {
        self.core().shared.cann.ops.aclnnGroupedMatmulAdd.is_some()
    }

    /// `out += x^T @ y`: x `[K,M]` and y `[K,N]` of 16 bits, out float32.
    pub fn matmul_add(&mut self, x: &View, y: &View, out: &View) -> Result<()> {
        // ends of the groups along K: one group
        let ends = self.scratch(acl::ACL_INT64, &[1])?;
        self.fill(&ends, Number::I64(x.dims[0] as i64))?;
        let (a, b, e, c) = (self.tensor(x)?, self.tensor(y)?, self.tensor(&ends)?, self.tensor(out)?);
        step!(self, aclnnGroupedMatmulAdd; [x, y, out]; a, b, e, c, true, false, SPLIT_K)
    }

    /// Sum over a dim, which stays as 1, in float32.
    pub fn sum(&mut self, a: &View, dim: i64, out: &View) -> Result<()> {
        let (x, dims, z) = (self.tensor(a)?, self.ints(&[dim]), self.tensor(out)?);
        step!(self, aclnnReduceSum; [a, out]; x, dims, true, acl::ACL_FLOAT, z)
    }

    /// Maximum over a dim, which stays as 1.
    pub fn max(&mut self, a: &View, dim: i64, out: &View) -> Result<()> {
        let (x, dims, z) = (self.tensor(a)?, self.ints(&[dim]), self.tensor(out)?);
        step!(self, aclnnAmax; [a, out]; x, dims, true, z)
    }

    /// 1 where `a == c`, else 0, float32.
    pub fn equals(&mut self, a: &View, c: f32) -> Result<View> {
        let (flags, out) = (self.scratch(acl::ACL_BOOL, &a.dims)?, self.f32(&a.dims)?);
        let (x, s, z) = (self.tensor(a)?, self.number(c), self.tensor(&flags)?);
        step!(self, aclnnEqScalar; [a, &flags]; x, s, z)?;
        self.cast(&flags, &out)?;
        Ok(out)
    }

    /// For ids `I32[T]` and rows `first .. first + n`: the local row, any valid one for ids of other ranks; and 1 for
    /// ids that are here, 0 for others, float32 `[T,1]`.
    pub fn local_rows(&mut self, ids: &View, first: usize, n: usize) -> Result<(View, View)> {
        let t = ids.numel();
        let (flags, row) = (self.scratch(acl::ACL_BOOL, &[t])?, self.scratch(acl::ACL_INT32, &[t])?);
        let (low, high) = (self.f32(&[t])?, self.f32(&[t])?);
        self.add_number(ids, Number::I64(-(first as i64)), &row)?;
        let (x, s, z) = (self.tensor(&row)?, self.number(Number::I64(0)), self.tensor(&flags)?);
        step!(self, aclnnGeScalar; [&row, &flags]; x, s, z)?;
        self.cast(&flags, &low)?;
        let s = self.number(Number::I64(n as i64));
        step!(self, aclnnLtScalar; [&row, &flags]; x, s, z)?;
        self.cast(&flags, &high)?;
        self.mul(&low, &high, &low)?;
        let (zero, top) = (self.number(Number::I64(0)), self.number(Number::I64(n as i64 - 1)));
        step!(self, aclnnClamp; [&row]; x, zero, top, x)?;
        Ok((row, low.reshaped(&[t, 1])))
    }

    /// `out = here ? a : 0`, float32. Not a product: what is elsewhere may be infinite.
    pub fn select(&mut self, here: &View, a: &View, out: &View) -> Result<()> {
        let flags = self.scratch(acl::ACL_BOOL, &here.dims)?;
        let (x, s, z) = (self.tensor(here)?, self.number(1.0), self.tensor(&flags)?);
        step!(self, aclnnEqScalar; [here, &flags]; x, s, z)?;
        self.choose(&flags, a, 0.0, out)
    }

    /// `out = flags ? a : other`, float32, with broadcasting of the flags.
    pub fn choose(&mut self, flags: &View, a: &View, other: f32, out: &View) -> Result<()> {
        let constant = self.f32(&[1])?;
        self.fill(&constant, other)?;
        let (c, x, y, z) = (self.tensor(flags)?, self.tensor(a)?, self.tensor(&constant)?, self.tensor(out)?);
        step!(self, aclnnSWhere; [flags, a, out]; c, x, y, z)
    }

    /// `flags = a < c`.
    pub fn less(&mut self, a: &View, c: f32, flags: &View) -> Result<()> {
        let (x, s, z) = (self.tensor(a)?, self.number(c), self.tensor(flags)?);
        step!(self, aclnnLtScalar; [a, flags]; x, s, z)
    }

    /// `flags = a >= c`.
    pub fn at_least(&mut self, a: &View, c: f32, flags: &View) -> Result<()> {
        let (x, s, z) = (self.tensor(a)?, self.number(c), self.tensor(flags)?);
        step!(self, aclnnGeScalar; [a, flags]; x, s, z)
    }

    /// `out = a @ b` for each of a batch, three dims each, in the inputs' precision.
    pub fn batch_matmul(&mut self, a: &View, b: &View, out: &View) -> Result<()> {
        let (x, y, z) = (self.tensor(a)?, self.tensor(b)?, self.tensor(out)?);
        step!(self, aclnnBatchMatMul; [a, b, out]; x, y, z, acl::KEEP_DTYPE)
    }

    /// 0, 1, 2, ... `n - 1` in float32 `[n]`, which is exact below 2^24. To be read only.
    pub fn positions(&mut self, n: usize) -> Result<View> {
        let core = self.core();
        let at = core.constant(&core.positions, 4 * n, "positions", |bytes| {
            bytes.chunks_exact_mut(4).enumerate().for_each(|(i, b)| b.copy_from_slice(&(i as f32).to_ne_bytes()));
        })?;
        Ok(View::new(at, acl::ACL_FLOAT, &[n]))
    }

    /// Rows of `a [R,C]` by index `I32[T]`.
    pub fn rows(&mut self, a: &View, index: &View, out: &View) -> Result<()> {
        let (x, i, z) = (self.tensor(a)?, self.tensor(index)?, self.tensor(out)?);
        step!(self, aclnnIndexSelect; [a, index, out]; x, 0, i, z)
    }

    /// `out[i][j] = a[i][index[i][j]]`, two dims, index `I32`.
    pub fn gather(&mut self, a: &View, index: &View, out: &View) -> Result<()> {
        let (x, i, z) = (self.tensor(a)?, self.tensor(index)?, self.tensor(out)?);
        step!(self, aclnnGather; [a, index, out]; x, 1, i, z)
    }

    /// `out = a`, then `out[i][index[i][j]] += src[i][j]`, two dims, index `I32`. The order of several terms of one
    /// element is not promised.
    pub fn scatter_add(&mut self, a: &View, index: &View, src: &View, out: &View) -> Result<()> {
        let (x, i, y, z) = (self.tensor(a)?, self.tensor(index)?, self.tensor(src)?, self.tensor(out)?);
        step!(self, aclnnScatterAdd; [a, index, src, out]; x, 1, i, y, z)
    }

    /// Sorts the rows of `a`, two dims; order `I64` has the columns that values came from. Of equals the lower column
    /// comes first, in both directions.
    pub fn sort_rows(&mut self, a: &View, descending: bool, values: &View, order: &View) -> Result<()> {
        let stable = !self.core().shared.omits(Omit::StableSort);
        let (x, v, i) = (self.tensor(a)?, self.tensor(values)?, self.tensor(order)?);
        step!(self, aclnnSort; [a, values, order]; x, stable, 1, descending, v, i)
    }

    /// GELU; by erf or tanh.
    pub fn gelu(&mut self, a: &View, tanh: bool, out: &View) -> Result<()> {
        let (x, z) = (self.tensor(a)?, self.tensor(out)?);
        step!(self, aclnnGeluV2; [a, out]; x, i64::from(tanh), z)
    }

    /// Its gradient.
    pub fn gelu_backward(&mut self, dy: &View, a: &View, tanh: bool, out: &View) -> Result<()> {
        let (g, x, z) = (self.tensor(dy)?, self.tensor(a)?, self.tensor(out)?);
        let approximate = text(if tanh { c"tanh" } else { c"none" });
        step!(self, aclnnGeluBackwardV2; [dy, a, out]; g, x, approximate, z)
    }

    /// `out = a sigmoid(a)`.
    pub fn silu(&mut self, a: &View, out: &View) -> Result<()> {
        let (x, z) = (self.tensor(a)?, self.tensor(out)?);
        step!(self, aclnnSilu; [a, out]; x, z)
    }

    /// Its gradient.
    pub fn silu_backward(&mut self, dy: &View, a: &View, out: &View) -> Result<()> {
        let (g, x, z) = (self.tensor(dy)?, self.tensor(a)?, self.tensor(out)?);
        step!(self, aclnnSiluBackward; [dy, a, out]; g, x, z)
    }

    /// `out = max(a, 0)`.
    pub fn relu(&mut self, a: &View, out: &View) -> Result<()> {
        let (x, z) = (self.tensor(a)?, self.tensor(out)?);
        step!(self, aclnnRelu; [a, out]; x, z)
    }

    /// `out = a > 0 ? dy : 0`.
    pub fn relu_backward(&mut self, dy: &View, a: &View, out: &View) -> Result<()> {
        let (g, x, s, z) = (self.tensor(dy)?, self.tensor(a)?, self.number(0.0), self.tensor(out)?);
        step!(self, aclnnThresholdBackward; [dy, a, out]; g, x, s, z)
    }
}
