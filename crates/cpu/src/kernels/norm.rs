//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl NormOps for CpuOps {
    fn rms_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        y: &mut Tensor,
        rstd: &mut Tensor,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "rms_norm", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn rms_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dw: Option<&mut Tensor>,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "rms_norm_backward", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn layer_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        y: &mut Tensor,
        stats: &mut Tensor,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "layer_norm", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn layer_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dwb: Option<(&mut Tensor, &mut Tensor)>,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "layer_norm_backward", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
