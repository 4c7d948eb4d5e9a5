//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl DropoutOps for CpuOps {
    fn dropout(
        &self,
        s: &Stream,
        site: DropSite,
        first_col: usize,
        sample: &Tensor,
        offset: &Tensor,
        x: &Tensor,
        residual: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "dropout", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
