//! Dropout by counters: `kernels/dropout.cu`.

use ferrotron_base::philox::drop_threshold;
use ferrotron_device::ops::{DropSite, DropoutOps};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;

impl DropoutOps for CudaOps {
    fn dropout(
        &self,
        s: &Stream,
        site: DropSite,
        first_col: usize,
        sample: &Tensor,
        offset: &Tensor,
        x: &Tensor,
        residual: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        let (t, c) = site.check(sample, offset, x, residual, y)?;
        if t * c == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "dropout")?.tensor(sample).tensor(offset).tensor(x).optional(residual).tensor(y);
        let launch = launch.value(site.key).value(drop_threshold(site.p)).value(1.0 / (1.0 - site.p));
        launch.value(first_col as u32).over(t * c)
    }
}
