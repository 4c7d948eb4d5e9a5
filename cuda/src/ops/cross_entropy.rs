//! Cross-entropy pieces: `kernels/cross_entropy.cu`.

use ferrotron_device::ops::CrossEntropyOps;
use ferrotron_device::ops::cross_entropy::{check_backward, check_loss, check_rescale, check_stats};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;

impl CrossEntropyOps for CudaOps {
    fn ce_stats(
        &self,
        s: &Stream,
        z: &Tensor,
        labels: &Tensor,
        first: usize,
        max: &mut Tensor,
        sum: &mut Tensor,
        target: &mut Tensor,
    ) -> Result<()> {
        let (r, v) = check_stats(z, labels, [max, sum, target])?;
        if r * v == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "ce_stats")?.tensor(z).tensor(labels).tensor(max).tensor(sum).tensor(target);
        launch.value(first as i64).blocks(r, 1, 0)
    }

    fn ce_rescale(&self, s: &Stream, old_max: &Tensor, new_max: &Tensor, sum: &mut Tensor) -> Result<()> {
        match check_rescale(old_max, new_max, sum)? {
            0 => Ok(()),
            t => self.kernel(s, "ce_rescale")?.tensor(old_max).tensor(new_max).tensor(sum).over(t),
        }
    }

    fn ce_loss(
        &self,
        s: &Stream,
        max: &Tensor,
        sum: &Tensor,
        target: &Tensor,
        lse: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()> {
        match check_loss([max, sum, target], lse, loss)? {
            0 => Ok(()),
            t => self.kernel(s, "ce_loss")?.tensor(max).tensor(sum).tensor(target).tensor(lse).tensor(loss).over(t),
        }
    }

    fn ce_backward(
        &self,
        s: &Stream,
        z: &Tensor,
        labels: &Tensor,
        first: usize,
        lse: &Tensor,
        weight: &Tensor,
        scale: &Tensor,
        dz: &mut Tensor,
    ) -> Result<()> {
        let (r, v) = check_backward(z, labels, lse, weight, scale, dz)?;
        if r * v == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "ce_backward")?.tensor(z).tensor(labels).tensor(lse).tensor(weight);
        launch.tensor(scale).tensor(dz).value(first as i64).over(r * v)
    }
}
