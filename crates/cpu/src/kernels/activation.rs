//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl ActivationOps for CpuOps {
    fn activation(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "activation", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn activation_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "activation_backward", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn glu(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "glu", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn glu_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "glu_backward", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
