//! Mixture of experts, dropless: each token passes the K of E experts that its router prefers.
//! (Shazeer et al. 2017; Fedus et al. 2021; megatron/core/transformer/moe/moe_layer.py.)
//!
//! Forward: route; rows in the order of experts; all-to-all to the ranks that hold them; the experts' MLPs; all-to-all
//! back; weighted sum. Backward is its mirror. How many rows go where depends on the tokens: the host reads the counts
//! of a layer once, in forward, while the device gathers rows, and all sizes of both passes follow from them.
//!
//! Tensor parallel with split experts: rows are gathered first and every rank of the group routes all of them, so that
//! parts of a row's result meet in one reduction, as in any row-parallel layer. Experts that are whole on each rank:
//! each routes and sends its own rows.
//!
//! Shared experts (Dai et al., DeepSeekMoE, 2024; megatron/core/transformer/moe/shared_experts.py): one MLP, split over the
//! tensor-parallel group as any, that every token passes beside its K; its result is added. It has no biases.
//!
//! Saved: x, routing, the experts' inputs, fc1's outputs, and the rows that came back (whose products with dy are the
//! gradients of the weights). K times the rows of a dense MLP.

mod exchange;
mod experts;
mod router;

use ferrotron_device::ops::Activation;
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro, Tensors, WeightGrads};

use crate::compose::SavesInput;
use crate::mlp::{Mlp, MlpConfig};
use crate::{Builder, linear::LinearGrad};

use exchange::Exchange;
use experts::{ExpertGrads, Experts};
use router::{Routed, Router};

/// Shape and options of a mixture of experts. Experts and F of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeConfig {
    /// H.
    pub hidden: usize,
    /// E.
    pub experts: usize,
    /// K.
    pub chosen: usize,
    /// F of an expert.
    pub ffn: usize,
    /// F of all shared experts together; 0 for none.
    pub shared_ffn: usize,
    /// The experts' function.
    pub activation: Activation,
    /// fc1 gives gate and up.
    pub gated: bool,
    /// Biases of both layers.
    pub bias: bool,
    /// Standard deviation of the router's and fc1's initial weights.
    pub std: f32,
    /// Standard deviation of fc2's.
    pub out_std: f32,
    /// Weights are the scores of all experts (`--moe-router-pre-softmax`), not a softmax over the chosen.
    pub pre_softmax: bool,
    /// Coefficient of the balancing loss; 0 for none.
    pub balance: f32,
    /// Coefficient of the z-loss; 0 for none.
    pub z_loss: f32,
}

/// A router and this rank's experts.
pub struct Moe {
    router: Router,
    experts: Experts,
    shared: Option<Mlp>,
    chosen: usize,
}

/// What a mixture of experts saves.
pub struct MoeSaved {
    x: Tensor,
    routed: Routed,
    exchange: Exchange,
    /// Rows of the experts here, and fc1's outputs.
    inner: (Tensor, Tensor),
    /// Results of this rank's rows.
    back: Tensor,
    /// Of the shared experts' fc1.
    shared: Option<Tensor>,
}

/// What the weights' gradients are made of.
pub struct MoeGrads {
    experts: ExpertGrads,
    shared: Option<(LinearGrad, LinearGrad)>,
}

impl Tensors for MoeGrads {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        self.experts.each(f);
        self.shared.each(f);
    }
}

impl Tensors for MoeSaved {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        f(&mut self.x);
        self.routed.each(f);
        self.exchange.each(f);
        self.inner.each(f);
        f(&mut self.back);
        self.shared.each(f);
    }
}

impl Moe {
    /// Registers the parameters under `name` (`decoder.layers.3.mlp`): router, experts, shared experts.
    pub fn new(b: &mut Builder<'_>, name: &str, c: &MoeConfig) -> Moe {
        let MoeConfig { hidden, activation, gated, std, out_std, shared_ffn, chosen, .. } = *c;
        let (router, experts) = (Router::new(b, name, c), Experts::new(b, name, c));
        let shared = MlpConfig { hidden, ffn: shared_ffn, activation, gated, bias: false, std, out_std };
        let shared = (shared_ffn > 0).then(|| Mlp::new(b, &format!("{name}.shared_experts"), &shared));
        Moe { router, experts, shared, chosen }
    }

    /// All rows that this rank routes.
    fn gather(&self, cx: &Ctx, x: Tensor) -> Result<Tensor> {
        if cx.groups.etp.size() > 1 { cx.gather_rows(x) } else { Ok(x) }
    }

    /// The sum of what the ranks that share experts have, in this rank's rows.
    fn reduce(&self, cx: &Ctx, x: Tensor) -> Result<Tensor> {
        if cx.groups.etp.size() > 1 { Ok(cx.reduce_rows(x)?.wait()) } else { Ok(x) }
    }
}

impl Layer for Moe {
    type In = Tensor;
    type Out = Tensor;
    type Saved = MoeSaved;
    type WGrad = MoeGrads;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Tensor) -> Result<(Tensor, MoeSaved)> {
        let full = self.gather(cx, x.clone())?;
        let routed = self.router.forward(cx, &full)?;
        let counts = exchange::gather_counts(cx, &routed.counts)?;
        let mut rows = cx.alloc([full.rows() * self.chosen, full.cols()])?;
        cx.ops().gather_rows(&cx.stream, &full, &routed.slots, self.chosen, &mut rows)?;
        let exchange = Exchange::new(cx, &counts, rows.rows())?;
        let rows = exchange.to_experts(cx, rows)?;
        let (y, u) = self.experts.forward(cx, exchange.counts(), &rows)?;
        let back = exchange.to_tokens(cx, y)?.wait();
        let mut out = cx.alloc([full.rows(), full.cols()])?;
        cx.ops().combine(&cx.stream, &back, &routed.place, Some(&routed.weights), &mut out)?;
        drop(full);
        let mut out = self.reduce(cx, out)?;
        let mut of_shared = None;
        if let Some(shared) = &self.shared {
            let (y, (_, u)) = shared.forward(cx, mb, x.clone())?;
            cx.ops().add(&cx.stream, &out.clone(), &y, &mut out)?;
            of_shared = Some(u);
        }
        Ok((out, MoeSaved { x, routed, exchange, inner: (rows, u), back, shared: of_shared }))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, saved: MoeSaved) -> Result<(Tensor, MoeGrads)> {
        let MoeSaved { x, routed, exchange, inner: (rows, u), back, shared } = saved;
        let shared = match self.shared.as_ref().zip(shared) {
            Some((mlp, u)) => Some(mlp.backward(cx, mb, dy.clone(), (x.clone(), u))?),
            None => None,
        };
        let dy = self.gather(cx, dy)?;
        let mut d_back = cx.alloc(*back.shape())?;
        let mut d_weights = cx.alloc_f32(*routed.weights.shape())?;
        let (slots, place, weights) = (&routed.slots, &routed.place, &routed.weights);
        let (ops, s) = (cx.ops(), &cx.stream);
        ops.combine_backward(s, &dy, &back, slots, place, weights, &mut d_back, &mut d_weights)?;
        drop((dy, back));
        let dy = exchange.to_experts(cx, d_back)?;
        let (d_rows, mut grads) = self.experts.backward(cx, exchange.counts(), rows, u, dy)?;
        // Weight gradients run while rows travel.
        let d_rows = exchange.to_tokens(cx, d_rows)?;
        if cx.when == WeightGrads::Now {
            self.experts.weight_grad(cx, grads.take())?;
        }
        let x = self.gather(cx, x)?;
        let mut dx = cx.alloc(*x.shape())?;
        cx.ops().combine(&cx.stream, &d_rows.wait(), &routed.place, None, &mut dx)?;
        self.router.backward(cx, mb, &x, &routed, &d_weights, &mut dx)?;
        drop(x);
        let mut dx = self.reduce(cx, dx)?;
        let shared = match shared {
            Some((of_shared, grads)) => {
                cx.ops().add(&cx.stream, &dx.clone(), &of_shared, &mut dx)?;
                Some(grads)
            }
            None => None,
        };
        Ok((dx, MoeGrads { experts: grads, shared }))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: MoeGrads) -> Result<()> {
        self.experts.weight_grad(cx, w.experts)?;
        match self.shared.as_ref().zip(w.shared) {
            Some((shared, grads)) => shared.weight_grad(cx, mb, grads),
            None => Ok(()),
        }
    }
}

impl SavesInput for Moe {
    fn input_of(saved: &mut MoeSaved) -> &mut Tensor {
        &mut saved.x
    }
}
