//! Ops that no operator of aclnn computes as the contract says: they wait for kernels of our own.

use ferrotron_device::ops::{AttentionArgs, AttentionOps, DropSite, DropoutOps};
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::device::AscendOps;

impl AscendOps {
    fn missing(&self, op: &'static str, why: &str) -> Result<()> {
        Err(Error::Unsupported { op, device: self.name.clone(), why: why.into() })
    }
}

const ATTENTION: &str = "aclnn's varlen attention takes sequence lengths from the host, the contract has them on the \
     device: it needs a kernel of our own";

impl AttentionOps for AscendOps {
    fn attention(&self, _: &Stream, a: AttentionArgs<'_>, o: &mut Tensor, lse: &mut Tensor) -> Result<()> {
        a.check_forward(o, lse)?;
        self.missing("attention", ATTENTION)
    }

    fn attention_backward(
        &self,
        _: &Stream,
        a: AttentionArgs<'_>,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &mut Tensor,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
    ) -> Result<()> {
        a.check_backward(o, lse, dout, delta, dq, dk, dv)?;
        self.missing("attention_backward", ATTENTION)
    }
}

impl DropoutOps for AscendOps {
    fn dropout(
        &self,
        _: &Stream,
        site: DropSite,
        _: usize,
        sample: &Tensor,
        offset: &Tensor,
        x: &Tensor,
        residual: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        site.check(sample, offset, x, residual, y)?;
        let why =
            "aclnn's masks depend on the layout, ours do not: it needs a kernel of our own. Use --hidden-dropout 0";
        self.missing("dropout", why)
    }
}
