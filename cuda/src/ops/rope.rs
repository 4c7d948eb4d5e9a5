//! Rotary embedding: `kernels/rope.cu`.

use ferrotron_device::ops::{RopeDims, RopeOps};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;

impl RopeOps for CudaOps {
    fn rope(
        &self,
        s: &Stream,
        d: RopeDims,
        inverse: bool,
        cos: &Tensor,
        sin: &Tensor,
        positions: &Tensor,
        x: &mut Tensor,
    ) -> Result<()> {
        let (t, n, dim) = d.check(cos, sin, positions, x)?;
        let pairs = t * n * (d.rot / 2);
        if pairs == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "rope")?.tensor(cos).tensor(sin).tensor(positions).tensor(x);
        let launch = launch.value(n as u32).value(dim as u32).value((d.rot / 2) as u32).value(u32::from(d.interleaved));
        launch.value(if inverse { -1f32 } else { 1.0 }).over(pairs)
    }
}
