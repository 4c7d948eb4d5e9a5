//! Splits and merges: `kernels/layout.cu`.

use ferrotron_device::ops::{LayoutOps, QkvDims};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;
use crate::launch::Launch;

impl Launch<'_> {
    fn dims(self, d: QkvDims) -> Self {
        self.value(d.heads as u32).value(d.groups as u32).value(d.head_dim as u32)
    }
}

impl LayoutOps for CudaOps {
    fn qkv_split(
        &self,
        s: &Stream,
        d: QkvDims,
        qkv: &Tensor,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &mut Tensor,
    ) -> Result<()> {
        if d.check("qkv_split", qkv, q, k, v)? == 0 {
            return Ok(());
        }
        self.kernel(s, "qkv_split")?.tensor(qkv).tensor(q).tensor(k).tensor(v).dims(d).over(qkv.numel())
    }

    fn qkv_merge(&self, s: &Stream, d: QkvDims, q: &Tensor, k: &Tensor, v: &Tensor, qkv: &mut Tensor) -> Result<()> {
        if d.check("qkv_merge", qkv, q, k, v)? == 0 {
            return Ok(());
        }
        self.kernel(s, "qkv_merge")?.tensor(q).tensor(k).tensor(v).tensor(qkv).dims(d).over(qkv.numel())
    }
}
