//! Row lookup. Ids of other ranks' rows are looked up as any valid row, and their result is left out.

use ferrotron_device::ops::EmbeddingOps;
use ferrotron_device::ops::embedding::{check, check_backward};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::launch::Launch;
use crate::steps::step;
use crate::view::View;

impl EmbeddingOps for AscendOps {
    fn embedding(
        &self,
        s: &Stream,
        ids: &Tensor,
        first: usize,
        w: &Tensor,
        accumulate: bool,
        y: &mut Tensor,
    ) -> Result<()> {
        let (t, v, h) = check(ids, w, y)?;
        if t * h == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "embedding")?;
        let (w, y) = (View::of(w, &[v, h]), View::of(y, &[t, h]));
        let (rows, here) = l.local_rows(&flat(ids), first, v)?;
        let found = l.scratch(w.dtype, &[t, h])?;
        let (wt, it, ft) = (l.tensor(&w)?, l.tensor(&rows)?, l.tensor(&found)?);
        step!(l, aclnnEmbedding; [&w, &rows, &found]; wt, it, ft)?;
        let sum = l.f32(&[t, h])?;
        let found = l.in_f32(&found)?;
        l.select(&here, &found, &sum)?;
        if accumulate {
            let before = l.in_f32(&y)?;
            l.add_to(&sum, &before, 1.0)?;
        }
        l.copy(&sum, &y)
    }

    fn embedding_backward(&self, s: &Stream, ids: &Tensor, first: usize, dy: &Tensor, dw: &mut Tensor) -> Result<()> {
        let (t, v, h) = check_backward(ids, dy, dw)?;
        if t * h * v == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "embedding_backward")?;
        let (rows, here) = l.local_rows(&flat(ids), first, v)?;
        let dy32 = l.in_f32(&View::of(dy, &[t, h]))?;
        let (own, sum) = (l.f32(&[t, h])?, l.f32(&[v, h])?);
        l.select(&here, &dy32, &own)?;
        let (gt, it, st) = (l.tensor(&own)?, l.tensor(&rows)?, l.tensor(&sum)?);
        // all ones: no padding row
        step!(l, aclnnEmbeddingDenseBackward; [&own, &rows, &sum]; gt, it, v as u64, u64::MAX, false, st)?;
        l.add_to(&View::of(dw, &[v, h]), &sum, 1.0)
    }
}
