//! The router: a linear layer in f32, softmax, the best K. (megatron/core/transformer/moe/router.py, `TopKRouter`.)
//!
//! Logits are F32 whatever x and W are stored in: products of 16-bit values are exact in f32, so this is Megatron's
//! `--moe-router-dtype fp32`. dW accumulates in backward, whatever `cx.when` says; the auxiliary losses are added to the
//! step's statistics there too, for backward runs once where a recomputed forward runs twice.
//!
//! Ranks that share rows (split experts) have each a part of the weights' gradients, and all of them the auxiliary
//! losses, of which the first rank takes care. Ranks with rows of their own (of context parallel too) sum the counts.

use ferrotron_base::ShardSpec;
use ferrotron_comm::ReduceOp;
use ferrotron_device::ops::{Gemm, RouteGrads};
use ferrotron_device::{DType, Result, Tensor};
use ferrotron_runtime::{Ctx, Micro, ParamId, ParamSpec, Tensors, stat};

use super::MoeConfig;
use crate::{Builder, Sees};

/// Chooses experts.
pub struct Router {
    weight: ParamId,
    experts: usize,
    chosen: usize,
    pre_softmax: bool,
    balance: f32,
    z_loss: f32,
}

/// Choices of T tokens.
pub struct Routed {
    /// Softmax over all experts, `F32[T,E]`.
    scores: Tensor,
    /// `F32[T]`
    lse: Tensor,
    /// `I32[T,K]`
    experts: Tensor,
    /// `F32[T,K]`
    pub weights: Tensor,
    /// Tokens of each expert, `F32[E]`.
    pub counts: Tensor,
    /// Slots in the order of experts, `I32[T K]`.
    pub slots: Tensor,
    /// Where each slot went, `I32[T,K]`.
    pub place: Tensor,
}

impl Tensors for Routed {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        let Routed { scores, lse, experts, weights, counts, slots, place } = self;
        [scores, lse, experts, weights, counts, slots, place].into_iter().for_each(f);
    }
}

impl Router {
    /// Registers `name.router.weight` `[E,H]`.
    pub fn new(b: &mut Builder<'_>, name: &str, c: &MoeConfig) -> Router {
        let shard = ShardSpec::whole(format!("{name}.router.weight"), &[c.experts, c.hidden]);
        let weight = b.replicated(ParamSpec::matrix(shard, c.std), Sees::Heads);
        let MoeConfig { experts, chosen, pre_softmax, balance, z_loss, .. } = *c;
        Router { weight, experts, chosen, pre_softmax, balance, z_loss }
    }

    /// Choices for rows x `[T,H]`.
    pub fn forward(&self, cx: &Ctx, x: &Tensor) -> Result<Routed> {
        let (t, e, k) = (x.rows(), self.experts, self.chosen);
        let mut z = cx.alloc_f32([t, e])?;
        cx.ops().gemm(&cx.stream, Gemm::NT, x, &cx.weight(self.weight).data, None, &mut z)?;
        let ids = |shape: &[usize]| cx.pool.alloc(DType::I32, shape);
        let mut r = Routed {
            scores: cx.alloc_f32([t, e])?,
            lse: cx.alloc_f32([t])?,
            experts: ids(&[t, k])?,
            weights: cx.alloc_f32([t, k])?,
            counts: cx.alloc_f32([e])?,
            slots: ids(&[t * k])?,
            place: ids(&[t, k])?,
        };
        let (ops, s) = (cx.ops(), &cx.stream);
        ops.route(s, !self.pre_softmax, &z, &mut r.scores, &mut r.lse, &mut r.experts, &mut r.weights)?;
        ops.sort_by_expert(s, &r.experts, &mut r.counts, &mut r.slots, &mut r.place)?;
        Ok(r)
    }

    /// Adds the router's part to dx and accumulates dW, from the gradients of the weights.
    pub fn backward(
        &self,
        cx: &mut Ctx,
        mb: &Micro,
        x: &Tensor,
        r: &Routed,
        d_weights: &Tensor,
        dx: &mut Tensor,
    ) -> Result<()> {
        let tokens = self.tokens(cx, x.rows());
        let slope = self.balance_slope(cx, r, tokens)?;
        // Of ranks that share rows one adds the auxiliary losses.
        let aux = if self.speaks(cx) { mb.aux_weight } else { 0.0 };
        let mut dz = cx.alloc_f32(*r.scores.shape())?;
        let g = RouteGrads {
            after_choice: !self.pre_softmax,
            scores: &r.scores,
            lse: &r.lse,
            experts: &r.experts,
            weights: &r.weights,
            d_weights,
            slope: &slope,
            balance: aux * self.balance,
            z_slope: aux * self.z_loss * 2.0 / tokens as f32,
            scale: &cx.loss_scale,
        };
        cx.ops().route_backward(&cx.stream, g, &mut dz)?;
        let w = as_f32(cx, &cx.weight(self.weight).data)?;
        let mut of_router = cx.alloc_f32(*dx.shape())?;
        cx.ops().gemm(&cx.stream, Gemm::NN, &dz, &w, None, &mut of_router)?;
        let of_router = if dx.dtype() == DType::F32 { of_router } else { stored(cx, &of_router)? };
        cx.ops().add(&cx.stream, &dx.clone(), &of_router, dx)?;
        let x = as_f32(cx, x)?;
        cx.accumulate_weight_grad(self.weight, &dz, &x)
    }

    /// Whether this rank counts what all that share its rows know.
    fn speaks(&self, cx: &Ctx) -> bool {
        cx.groups.etp.size() == 1 || cx.groups.etp.rank() == 0
    }

    /// Tokens of the micro-batch, of `rows` here.
    fn tokens(&self, cx: &Ctx, rows: usize) -> usize {
        let whole_experts = if cx.groups.etp.size() > 1 { 1 } else { cx.groups.tp.size() };
        rows.max(1) * whole_experts * cx.groups.cp.size()
    }

    /// Gradient of the balancing loss by each token's scores, `F32[E]`; adds the auxiliary losses to the statistics.
    fn balance_slope(&self, cx: &Ctx, r: &Routed, tokens: usize) -> Result<Tensor> {
        let (ops, s) = (cx.ops(), &cx.stream);
        let mut counts = cx.alloc_f32([self.experts])?;
        ops.copy(s, &r.counts, &mut counts)?;
        let (etp, tp, cp) = (&cx.groups.etp, &cx.groups.tp, &cx.groups.cp);
        for (group, others) in [(tp, etp.size() == 1), (cp, true)] {
            if others && group.size() > 1 {
                counts = group.all_reduce(s, counts, ReduceOp::Sum)?.wait();
            }
        }
        let mut slope = cx.alloc_f32([self.experts])?;
        let mut ignored = cx.alloc_f32([1])?;
        ops.fill(s, 0.0, &mut ignored)?;
        let spoken = self.speaks(cx);
        let mut loss = if spoken { cx.stat(stat::BALANCE) } else { ignored };
        ops.load_balance(s, &r.scores, &counts, tokens, self.chosen, &mut slope, &mut loss)?;
        if spoken {
            ops.weighted_sum(s, &r.lse, &r.lse, &mut cx.stat(stat::ROUTER_Z))?;
        }
        Ok(slope)
    }
}

/// `x` in f32: itself, or converted.
fn as_f32(cx: &Ctx, x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::F32 {
        return Ok(x.clone());
    }
    let mut wide = cx.alloc_f32(*x.shape())?;
    cx.ops().copy(&cx.stream, x, &mut wide)?;
    Ok(wide)
}

/// `x` in the type of activations.
fn stored(cx: &Ctx, x: &Tensor) -> Result<Tensor> {
    let mut narrow = cx.alloc(*x.shape())?;
    cx.ops().copy(&cx.stream, x, &mut narrow)?;
    Ok(narrow)
}
