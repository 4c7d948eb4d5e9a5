//! Mixture of experts: `kernels/moe.cu`.

use ferrotron_device::ops::moe::{
    check_combine, check_combine_backward, check_gather, check_load_balance, check_route, check_route_backward,
    check_sort,
};
use ferrotron_device::ops::{MoeOps, RouteGrads};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::Sum;
use crate::device::CudaOps;

impl MoeOps for CudaOps {
    fn route(
        &self,
        s: &Stream,
        after_choice: bool,
        z: &Tensor,
        scores: &mut Tensor,
        lse: &mut Tensor,
        experts: &mut Tensor,
        weights: &mut Tensor,
    ) -> Result<()> {
        let (t, ..) = check_route(z, scores, lse, experts, weights)?;
        if t == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "route")?.tensor(z).tensor(scores).tensor(lse).tensor(experts).tensor(weights);
        launch.value(u32::from(after_choice)).over_warps(t)
    }

    fn route_backward(&self, s: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()> {
        let (t, ..) = check_route_backward(&g, dz)?;
        if t == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "route_backward")?.tensor(g.scores).tensor(g.lse).tensor(g.experts);
        let launch = launch.tensor(g.weights).tensor(g.d_weights).tensor(g.slope).tensor(g.scale).tensor(dz);
        launch.value(u32::from(g.after_choice)).value(g.balance).value(g.z_slope).over_warps(t)
    }

    fn sort_by_expert(
        &self,
        s: &Stream,
        experts: &Tensor,
        counts: &mut Tensor,
        slots: &mut Tensor,
        place: &mut Tensor,
    ) -> Result<()> {
        // without a slot there are still counts to write
        let (_, e) = check_sort(experts, counts, slots, place)?;
        let launch = self.kernel(s, "sort_by_expert")?.tensor(experts).tensor(counts).tensor(slots).tensor(place);
        launch.blocks(e, 1, 0)
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
        let (_, e) = check_load_balance(scores, counts, tokens, chosen, slope, loss)?;
        if e == 0 {
            return Ok(());
        }
        let factor = e as f64 / (chosen as f64 * (tokens as f64).powi(2));
        self.kernel(s, "load_balance")?.tensor(counts).tensor(slope).value(factor).over(e)?;
        self.sum(s, Sum::Weighted(slope), scores, loss)
    }

    fn gather_rows(&self, s: &Stream, x: &Tensor, index: &Tensor, per: usize, y: &mut Tensor) -> Result<()> {
        let (r, h) = check_gather(x, index, per, y)?;
        if r * h == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "gather_rows")?.tensor(x).tensor(index).tensor(y);
        launch.value(per as u64).value(h as u64).over(r * h)
    }

    fn combine(
        &self,
        s: &Stream,
        rows: &Tensor,
        place: &Tensor,
        weights: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        let (t, k, h) = check_combine(rows, place, weights, y)?;
        if t * h == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "combine")?.tensor(rows).tensor(place).optional(weights).tensor(y);
        launch.value(k as u64).value(h as u64).over(t * h)
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
        let (t, k, h) = check_combine_backward(dy, rows, slots, place, weights, d_rows, d_weights)?;
        let r = t * k;
        if r == 0 {
            return Ok(());
        }
        // rows of no elements have weights, whose gradient is 0
        let launch = self.kernel(s, "combine_backward_weights")?.tensor(dy).tensor(rows).tensor(place);
        launch.tensor(d_weights).value(k as u64).value(h as u64).over_warps(r)?;
        if h == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "combine_backward")?.tensor(dy).tensor(slots).tensor(weights).tensor(d_rows);
        launch.value(k as u64).value(h as u64).over(r * h)
    }
}
