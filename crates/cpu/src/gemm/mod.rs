//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl GemmOps for CpuOps {
    fn gemm(&self, s: &Stream, g: Gemm, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "gemm", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
