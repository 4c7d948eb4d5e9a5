//! Row lookup: `kernels/embedding.cu`.

use ferrotron_device::ops::EmbeddingOps;
use ferrotron_device::ops::embedding::{check, check_backward};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;

impl EmbeddingOps for CudaOps {
    fn embedding(
        &self,
        s: &Stream,
        ids: &Tensor,
        first: usize,
        w: &Tensor,
        accumulate: bool,
        y: &mut Tensor,
    ) -> Result<()> {
        let (t, _, h) = check(ids, w, y)?;
        if t * h == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "embedding")?.tensor(ids).tensor(w).tensor(y).value(first as i64).value(h as u64);
        launch.value(u32::from(accumulate)).over(t * h)
    }

    fn embedding_backward(&self, s: &Stream, ids: &Tensor, first: usize, dy: &Tensor, dw: &mut Tensor) -> Result<()> {
        let (t, v, h) = check_backward(ids, dy, dw)?;
        if t * h * v == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "embedding_backward")?.tensor(ids).tensor(dy).tensor(dw);
        launch.value(first as i64).value(h as u64).blocks(t, 1, 0)
    }
}
