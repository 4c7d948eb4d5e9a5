//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl CrossEntropyOps for CpuOps {
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
        Err(Error::Unsupported { op: "ce_stats", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn ce_rescale(&self, s: &Stream, old_max: &Tensor, new_max: &Tensor, sum: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "ce_rescale", device: "cpu:0".into(), why: "not written yet".into() })
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
        Err(Error::Unsupported { op: "ce_loss", device: "cpu:0".into(), why: "not written yet".into() })
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
        Err(Error::Unsupported { op: "ce_backward", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
