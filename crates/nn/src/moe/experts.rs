//! The experts of a rank: MLPs over rows in the order of experts. (megatron/core/transformer/moe/experts.py.)
//!
//! One matrix product for each expert and layer, over the rows it got; an expert without a row makes none, and its
//! gradients, which are 0, still count as added, so that buckets of gradients leave in the same order on all ranks.
//! dW and db accumulate; dx is new.

use ferrotron_base::ShardSpec;
use ferrotron_device::ops::Gemm;
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Init, ParamId, ParamSpec, Tensors};

use super::MoeConfig;
use crate::Builder;
use crate::mlp::Gate;

/// The MLPs of this rank's experts.
pub struct Experts {
    experts: Vec<Expert>,
    gate: Gate,
    /// fc1's outputs and fc2's, here.
    widths: (usize, usize),
}

struct Expert {
    fc1: ParamId,
    fc2: ParamId,
    biases: Option<(ParamId, ParamId)>,
}

/// What the weight gradients of experts need.
pub struct Held {
    /// fc1's input and the gradient of its output.
    fc1: (Tensor, Tensor),
    /// The same of fc2.
    fc2: (Tensor, Tensor),
    /// Rows of each expert.
    counts: Vec<usize>,
}

/// What deferred weight gradients need; nothing when they are done.
pub type ExpertGrads = Option<Held>;

impl Tensors for Held {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        self.fc1.each(f);
        self.fc2.each(f);
    }
}

impl Experts {
    /// Registers `name.experts.local_experts.{e}.linear_fc1` and `linear_fc2`, e counted over all ranks.
    pub fn new(b: &mut Builder<'_>, name: &str, c: &MoeConfig) -> Experts {
        let here = c.experts / b.ep_size;
        let first = b.ep_rank * here;
        let gate = Gate { activation: c.activation, gated: c.gated };
        let parts = gate.fc1_parts(c.ffn);
        let b = b.of_experts();
        let expert = |e: usize| {
            let name = format!("{name}.experts.local_experts.{e}");
            let fc1 = b.split_rows(&format!("{name}.linear_fc1.weight"), &parts, &[c.hidden]);
            let fc2 = b.split_cols(&format!("{name}.linear_fc2.weight"), c.hidden, c.ffn);
            let bias1 = b.split_rows(&format!("{name}.linear_fc1.bias"), &parts, &[]);
            let bias2 = ShardSpec::whole(format!("{name}.linear_fc2.bias"), &[c.hidden]);
            // The bias of fc2 is not split: of ranks that share an expert, one adds it and all have its gradient.
            let bias2 = ParamSpec { tp_replicated: b.tp_size > 1, ..ParamSpec::vector(bias2, Init::Zeros) };
            let mut add = |spec: ParamSpec| b.table.add(ParamSpec { expert: true, ..spec });
            Expert {
                fc1: add(ParamSpec::matrix(fc1, c.std)),
                fc2: add(ParamSpec::matrix(fc2, c.out_std)),
                biases: c.bias.then(|| (add(ParamSpec::vector(bias1, Init::Zeros)), add(bias2))),
            }
        };
        let experts: Vec<Expert> = (first..first + here).map(expert).collect();
        let tp = b.tp_size;
        Experts { experts, gate, widths: (parts.iter().sum::<usize>() / tp, c.hidden) }
    }

    /// y `[R,H]` and fc1's output, of rows x `[R,H]`, `counts` of them for each expert.
    pub fn forward(&self, cx: &Ctx, counts: &[usize], x: &Tensor) -> Result<(Tensor, Tensor)> {
        let fc1 = |e: &Expert| (e.fc1, e.biases.map(|b| b.0));
        let first = cx.groups.etp.rank() == 0;
        let fc2 = |e: &Expert| (e.fc2, e.biases.map(|b| b.1).filter(|_| first));
        let u = self.products(cx, counts, Gemm::NT, x, self.widths.0, fc1)?;
        let a = self.gate.forward(cx, &u)?;
        let y = self.products(cx, counts, Gemm::NT, &a, self.widths.1, fc2)?;
        Ok((y, u))
    }

    /// dx, and what the weight gradients need.
    pub fn backward(
        &self,
        cx: &Ctx,
        counts: &[usize],
        x: Tensor,
        u: Tensor,
        dy: Tensor,
    ) -> Result<(Tensor, ExpertGrads)> {
        let a = self.gate.forward(cx, &u)?;
        let da = self.products(cx, counts, Gemm::NN, &dy, a.cols(), |e| (e.fc2, None))?;
        let du = self.gate.backward(cx, u, da)?;
        let dx = self.products(cx, counts, Gemm::NN, &du, x.cols(), |e| (e.fc1, None))?;
        Ok((dx, Some(Held { fc1: (x, du), fc2: (a, dy), counts: counts.to_vec() })))
    }

    /// Accumulates dW and db.
    pub fn weight_grad(&self, cx: &mut Ctx, grads: ExpertGrads) -> Result<()> {
        let Some(Held { fc1, fc2, counts }) = grads else { return Ok(()) };
        for (e, (start, n)) in self.experts.iter().zip(ranges(&counts)) {
            let layers = [(e.fc1, e.biases.map(|b| b.0), &fc1), (e.fc2, e.biases.map(|b| b.1), &fc2)];
            for (weight, bias, (x, dy)) in layers {
                if n == 0 {
                    cx.add_grad(weight, |_, _| Ok(()))?;
                    bias.map_or(Ok(()), |b| cx.add_grad(b, |_, _| Ok(())))?;
                    continue;
                }
                let dy = dy.rows_view(start, n);
                cx.accumulate_weight_grad(weight, &dy, &x.rows_view(start, n))?;
                bias.map_or(Ok(()), |b| cx.accumulate_bias_grad(b, &dy))?;
            }
        }
        Ok(())
    }

    /// Each expert's product of its rows with its matrix (and bias), `[R,width]`.
    fn products(
        &self,
        cx: &Ctx,
        counts: &[usize],
        g: Gemm,
        x: &Tensor,
        width: usize,
        of: impl Fn(&Expert) -> (ParamId, Option<ParamId>),
    ) -> Result<Tensor> {
        let y = cx.alloc([x.rows(), width])?;
        for (e, (start, n)) in self.experts.iter().zip(ranges(counts)) {
            let (weight, bias) = of(e);
            // Asked for even where there is no row: what arrives here must be waited for before the next update.
            let (w, bias) = (cx.weight(weight).data, bias.map(|b| cx.weight(b).data));
            if n == 0 {
                continue;
            }
            cx.ops().gemm(&cx.stream, g, &x.rows_view(start, n), &w, bias.as_ref(), &mut y.rows_view(start, n))?;
        }
        Ok(y)
    }
}

/// First row and number of rows of each expert.
fn ranges(counts: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    counts.iter().scan(0, |at, &n| {
        *at += n;
        Some((*at - n, n))
    })
}
