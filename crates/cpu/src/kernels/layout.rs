//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl LayoutOps for CpuOps {
    fn qkv_split(
        &self,
        s: &Stream,
        d: QkvDims,
        qkv: &Tensor,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &mut Tensor,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "qkv_split", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn qkv_merge(&self, s: &Stream, d: QkvDims, q: &Tensor, k: &Tensor, v: &Tensor, qkv: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "qkv_merge", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
