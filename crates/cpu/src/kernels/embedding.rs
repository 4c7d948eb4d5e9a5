//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl EmbeddingOps for CpuOps {
    fn embedding(
        &self,
        s: &Stream,
        ids: &Tensor,
        first: usize,
        w: &Tensor,
        accumulate: bool,
        y: &mut Tensor,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "embedding", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn embedding_backward(&self, s: &Stream, ids: &Tensor, first: usize, dy: &Tensor, dw: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "embedding_backward", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
