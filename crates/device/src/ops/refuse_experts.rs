//! What a device says that has no kernels for mixtures of experts.

/// Implements [`MoeOps`](crate::ops::MoeOps) for a device's kernels: each call is checked as on every device, and then
/// refused by name. `$device` tells the device's name from (kernels, stream, op); `$why` is what to do about it.
#[macro_export]
macro_rules! refuse_experts {
    ($ops:ty, $device:expr, $why:expr) => {
        const _: () = {
            use $crate::ops::{MoeOps, RouteGrads, moe};
            use $crate::{Error, Result, Stream, Tensor};

            fn refuse(ops: &$ops, s: &Stream, op: &'static str) -> Result<()> {
                let name: fn(&$ops, &Stream, &'static str) -> Result<String> = $device;
                Err(Error::Unsupported { op, device: name(ops, s, op)?, why: $why.into() })
            }

            impl MoeOps for $ops {
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
                    refuse(self, s, "route")
                }

                fn route_backward(&self, s: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()> {
                    moe::check_route_backward(&g, dz)?;
                    refuse(self, s, "route_backward")
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
                    refuse(self, s, "sort_by_expert")
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
                    refuse(self, s, "load_balance")
                }

                fn gather_rows(
                    &self,
                    s: &Stream,
                    x: &Tensor,
                    index: &Tensor,
                    per: usize,
                    y: &mut Tensor,
                ) -> Result<()> {
                    moe::check_gather(x, index, per, y)?;
                    refuse(self, s, "gather_rows")
                }

                fn combine(
                    &self,
                    s: &Stream,
                    rows: &Tensor,
                    place: &Tensor,
                    weights: Option<&Tensor>,
                    y: &mut Tensor,
                ) -> Result<()> {
                    moe::check_combine(rows, place, weights, y)?;
                    refuse(self, s, "combine")
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
                    refuse(self, s, "combine_backward")
                }
            }
        };
    };
}
