//! Mixture of experts: refused by name, after the checks that every device makes, until the operators are bound.

use ferrotron_device::ops::{MoeOps, RouteGrads, moe};
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::device::AscendOps;
use crate::launch::Launch;

const EXPERTS: &str = "its operators (softmax, top-k, sort, MoeTokenPermute, MoeTokenUnpermute) are not bound yet; train \
     without --num-experts";

fn refuse(s: &Stream, op: &'static str) -> Result<()> {
    let device = Launch::begin(s, op)?.core().shared.name.clone();
    Err(Error::Unsupported { op, device, why: EXPERTS.into() })
}

impl MoeOps for AscendOps {
    fn route(
        &self,
        s: &Stream,
        _: bool,
        z: &Tensor,
        scores: &mut Tensor,
        lse: &mut Tensor,
        experts: &mut Tensor,
        weights: &mut Tensor,
    ) -> Result<()> {
        moe::check_route(z, scores, lse, experts, weights)?;
        refuse(s, "route")
    }

    fn route_backward(&self, s: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()> {
        moe::check_route_backward(&g, dz)?;
        refuse(s, "route_backward")
    }

    fn sort_by_expert(
        &self,
        s: &Stream,
        experts: &Tensor,
        counts: &mut Tensor,
        slots: &mut Tensor,
        place: &mut Tensor,
    ) -> Result<()> {
        moe::check_sort(experts, counts, slots, place)?;
        refuse(s, "sort_by_expert")
    }

    fn load_balance(
        &self,
        s: &Stream,
        scores: &Tensor,
        counts: &Tensor,
        tokens: usize,
        chosen: usize,
        slope: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()> {
        moe::check_load_balance(scores, counts, tokens, chosen, slope, loss)?;
        refuse(s, "load_balance")
    }

    fn gather_rows(&self, s: &Stream, x: &Tensor, index: &Tensor, per: usize, y: &mut Tensor) -> Result<()> {
        moe::check_gather(x, index, per, y)?;
        refuse(s, "gather_rows")
    }

    fn combine(&self, s: &Stream, rows: &Tensor, place: &Tensor, w: Option<&Tensor>, y: &mut Tensor) -> Result<()> {
        moe::check_combine(rows, place, w, y)?;
        refuse(s, "combine")
    }

    fn combine_backward(
        &self,
        s: &Stream,
        dy: &Tensor,
        rows: &Tensor,
        slots: &Tensor,
        place: &Tensor,
        weights: &Tensor,
        d_rows: &mut Tensor,
        d_weights: &mut Tensor,
    ) -> Result<()> {
        moe::check_combine_backward(dy, rows, slots, place, weights, d_rows, d_weights)?;
        refuse(s, "combine_backward")
    }
}
