//! Not written yet.
#![allow(unused_variables, clippy::too_many_arguments)]

use ferrotron_device::ops::*;
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::CpuOps;

impl RopeOps for CpuOps {
    fn rope(
        &self,
        s: &Stream,
        d: RopeDims,
        inverse: bool,
        cos: &Tensor,
        sin: &Tensor,
        positions: &Tensor,
        x: &mut Tensor,
    ) -> Result<()> {
        Err(Error::Unsupported { op: "rope", device: "cpu:0".into(), why: "not written yet".into() })
    }
}
