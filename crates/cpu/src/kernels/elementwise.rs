//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl ElementwiseOps for CpuOps {
    fn fill(&self, s: &Stream, value: f32, y: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "fill", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn copy(&self, s: &Stream, x: &Tensor, y: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "copy", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn add(&self, s: &Stream, a: &Tensor, b: &Tensor, y: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "add", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn axpy(&self, s: &Stream, alpha: f32, x: &Tensor, y: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "axpy", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn scale(&self, s: &Stream, factor: &Tensor, x: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "scale", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn column_sum(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "column_sum", device: "cpu:0".into(), why: "not written yet".into() })
    }
    fn weighted_sum(&self, s: &Stream, x: &Tensor, w: &Tensor, out: &mut Tensor) -> Result<()> {
        Err(Error::Unsupported { op: "weighted_sum", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
