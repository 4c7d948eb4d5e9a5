//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl AttentionOps for CpuOps {
    fn attention(&self, s: &Stream, a: AttentionArgs<'_>, o: &mut Tensor, lse: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "attention", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn attention_backward(
        &self,
        s: &Stream,
        a: AttentionArgs<'_>,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &mut Tensor,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "attention_backward", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
