//! Dropout: the mask from the host, the rest composed in float32 and rounded once.

use ferrotron_device::ops::{DropSite, DropoutOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::keep::MASK_BYTES;
use crate::launch::Launch;

impl DropoutOps for AscendOps {
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
        let mut l = Launch::begin(s, "dropout")?;
        let ids = (l.ids(sample)?, l.ids(offset)?);
        let mark = l.mark();
        let rows = (MASK_BYTES / c).clamp(1, t);
        for first in (0..t).step_by(rows) {
            let n = rows.min(t - first);
            let part = |t: &Tensor| flat(&t.view(first * c, [n * c])).reshaped(&[n, c]);
            let keep = l.keep_rows(site, ids, first, [n, c], first_col)?;
            let (x, sum) = (l.in_f32(&part(x))?, l.f32(&[n, c])?);
            l.mul_number(&x, 1.0 / (1.0 - site.p), &sum)?;
            // not a product: what is dropped is 0 whatever it was
            l.choose(&keep, &sum, 0.0, &sum)?;
            if let Some(residual) = residual {
                let residual = l.in_f32(&part(residual))?;
                l.add_to(&sum, &residual, 1.0)?;
            }
            l.copy(&sum, &part(y))?;
            l.release(mark);
        }
        Ok(())
    }
}
