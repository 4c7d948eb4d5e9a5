//! Cross-entropy pieces, composed.

use ferrotron_device::ops::CrossEntropyOps;
use ferrotron_device::ops::cross_entropy::{check_backward, check_loss, check_rescale, check_stats};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::launch::Launch;
use crate::view::View;

impl CrossEntropyOps for AscendOps {
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
        let mut l = Launch::begin(s, "ce_stats")?;
        let column = |t: &Tensor| View::of(t, &[r, 1]);
        let (z, max, sum, target) = (View::of(z, &[r, v]), column(max), column(sum), column(target));
        let e = l.f32(&[r, v])?;
        l.max(&z, 1, &max)?;
        l.sub(&z, &max, 1.0, &e)?;
        l.exp(&e, &e)?;
        l.sum(&e, 1, &sum)?;
        let (index, here) = l.local_rows(&flat(labels), first, v)?;
        let (index, found) = (index.reshaped(&[r, 1]), l.f32(&[r, 1])?);
        l.gather(&z, &index, &found)?;
        l.select(&here, &found, &target)
    }

    fn ce_rescale(&self, s: &Stream, old_max: &Tensor, new_max: &Tensor, sum: &mut Tensor) -> Result<()> {
        let t = check_rescale(old_max, new_max, sum)?;
        if t == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "ce_rescale")?;
        let (factor, sum) = (l.f32(&[t])?, flat(sum));
        l.sub(&flat(old_max), &flat(new_max), 1.0, &factor)?;
        l.exp(&factor, &factor)?;
        l.mul(&sum, &factor, &sum)
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
        if check_loss([max, sum, target], lse, loss)? == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "ce_loss")?;
        let lse = flat(lse);
        l.log(&flat(sum), &lse)?;
        l.add_to(&lse, &flat(max), 1.0)?;
        l.sub(&lse, &flat(target), 1.0, &flat(loss))
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
        let mut l = Launch::begin(s, "ce_backward")?;
        let (z, dz) = (View::of(z, &[r, v]), View::of(dz, &[r, v]));
        let (p, d) = (l.f32(&[r, v])?, l.f32(&[r, v])?);
        l.sub(&z, &View::of(lse, &[r, 1]), 1.0, &p)?;
        l.exp(&p, &p)?;
        let (index, here) = l.local_rows(&flat(labels), first, v)?;
        let index = index.reshaped(&[r, 1]);
        l.mul_number(&here, -1.0, &here)?;
        l.scatter_add(&p, &index, &here, &d)?;
        l.mul(&d, &View::of(weight, &[r, 1]), &d)?;
        l.mul(&d, &flat(scale), &d)?;
        l.copy(&d, &dz)
    }
}
