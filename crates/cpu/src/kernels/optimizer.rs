//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl OptimizerOps for CpuOps {
    fn adam(
        &self,
        s: &Stream,
        c: AdamConfig,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        m: &mut Tensor,
        v: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "adam", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn sgd(
        &self,
        s: &Stream,
        momentum: f32,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        buf: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "sgd", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn sum_squares(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "sum_squares", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn count_zeros(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "count_zeros", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
