//! Ops that no operator of aclnn computes as the contract says: they wait for kernels of our own.

use ferrotron_device::ops::{AttentionArgs, AttentionOps, DropSite, DropoutOps, MoeOps, RouteGrads, moe};
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

const EXPERTS: &str = "its operators (softmax, top-k, sort, MoeTokenPermute, MoeTokenUnpermute) are not bound yet; train \
     without --num-experts";

impl MoeOps for AscendOps {
    fn route(
        &self,
        _: &Stream,
        _: bool,
        z: &Tensor,
        scores: &mut Tensor,
        lse: &mut Tensor,
        experts: &mut Tensor,
        weights: &mut Tensor,
    ) -> Result<()> {
        moe::check_route(z, scores, lse, experts, weights)?;
        self.missing("route", EXPERTS)
    }

    fn route_backward(&self, _: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()> {
        moe::check_route_backward(&g, dz)?;
        self.missing("route_backward", EXPERTS)
    }

    fn sort_by_expert(
        &self,
        _: &Stream,
        experts: &Tensor,
        counts: &mut Tensor,
        slots: &mut Tensor,
        place: &mut Tensor,
    ) -> Result<()> {
        moe::check_sort(experts, counts, slots, place)?;
        self.missing("sort_by_expert", EXPERTS)
    }

    fn load_balance(
        &self,
        _: &Stream,
        scores: &Tensor,
        counts: &Tensor,
        tokens: usize,
        chosen: usize,
        slope: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()> {
        moe::check_load_balance(scores, counts, tokens, chosen, slope, loss)?;
        self.missing("load_balance", EXPERTS)
    }

    fn gather_rows(&self, _: &Stream, x: &Tensor, index: &Tensor, per: usize, y: &mut Tensor) -> Result<()> {
        moe::check_gather(x, index, per, y)?;
        self.missing("gather_rows", EXPERTS)
    }

    fn combine(&self, _: &Stream, rows: &Tensor, place: &Tensor, w: Option<&Tensor>, y: &mut Tensor) -> Result<()> {
        moe::check_combine(rows, place, w, y)?;
        self.missing("combine", EXPERTS)
    }

    fn combine_backward(
        &self,
        _: &Stream,
        dy: &Tensor,
        rows: &Tensor,
        slots: &Tensor,
        place: &Tensor,
        weights: &Tensor,
        d_rows: &mut Tensor,
        d_weights: &mut Tensor,
    ) -> Result<()> {
        moe::check_combine_backward(dy, rows, slots, place, weights, d_rows, d_weights)?;
        self.missing("combine_backward", EXPERTS)
    }
}
