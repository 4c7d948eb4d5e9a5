//! Self-attention: fused qkv projection, optional q/k norm, optional rotation, core attention, output projection.
//! (megatron/core/transformer/attention.py, `SelfAttention`.)
//!
//! Heads are split over the tensor-parallel group. Where it has more ranks than there are KV groups, consecutive ranks
//! split the queries of one group and each holds its key and value head: rows of the qkv projection that the others hold
//! too. Each rank has the gradient that comes from its own queries; they are summed over these ranks only.

use ferrotron_base::philox::hash_name;
use ferrotron_device::ops::QkvDims;
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro, Tensors, kv_sharers};

use crate::compose::SavesInput;
use crate::linear::LinearGrad;
use crate::{
    Builder, ColumnLinear, CoreAttention, LinearSpec, Norm, NormConfig, OwnRows, Qkv, Recompute, Rope, RowLinear, Sees,
};

/// Shape and options of a self-attention layer. Heads and groups of all ranks.
#[derive(Clone)]
pub struct AttentionConfig {
    /// H.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// KV groups.
    pub groups: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of q k^T.
    pub scale: f32,
    /// Keys that a query sees at most.
    pub window: Option<usize>,
    /// Bias of the qkv projection.
    pub qkv_bias: bool,
    /// Bias of the output projection.
    pub proj_bias: bool,
    /// Normalise each head's q and k (`--qk-layernorm`).
    pub qk_norm: Option<NormConfig>,
    /// Rotation.
    pub rope: Option<Rope>,
    /// Dropout of probabilities.
    pub dropout: f32,
    /// Standard deviation of qkv's initial weights.
    pub std: f32,
    /// Standard deviation of the output projection's.
    pub proj_std: f32,
    /// Run core attention's forward again in backward.
    pub recompute_core: bool,
}

/// Self-attention.
pub struct SelfAttention {
    qkv: ColumnLinear,
    qk_norm: Option<(Norm, Norm)>,
    rope: Option<Rope>,
    core: Recompute<CoreAttention>,
    proj: RowLinear,
    dims: QkvDims,
}

/// What self-attention saves.
pub struct AttentionSaved {
    x: Tensor,
    /// q and k before their norms, with the statistics.
    normed: Option<((Tensor, Tensor), (Tensor, Tensor))>,
    core: <Recompute<CoreAttention> as Layer>::Saved,
    context: Tensor,
}

impl Tensors for AttentionSaved {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        f(&mut self.x);
        self.normed.each(f);
        self.core.each(f);
        f(&mut self.context);
    }
}

impl SelfAttention {
    /// Registers the parameters under `name` (`decoder.layers.3.self_attention`).
    pub fn new(b: &mut Builder<'_>, name: &str, c: &AttentionConfig) -> SelfAttention {
        let (dims, own) = own_heads(c, b.tp_rank, b.tp_size);
        let QkvDims { heads, groups, .. } = dims;
        let fused = (c.heads + 2 * c.groups) * c.head_dim;
        let qkv = ColumnLinear::with_rows(
            b,
            &LinearSpec {
                name: &format!("{name}.linear_qkv"),
                out_parts: &[fused],
                inputs: c.hidden,
                bias: c.qkv_bias,
                std: c.std,
            },
            &own,
        );
        let qk_norm = c.qk_norm.map(|norm| {
            let mut of = |which| Norm::new(b, &format!("{name}.{which}_layernorm"), c.head_dim, norm, Sees::Heads);
            (of("q"), of("k"))
        });
        let proj = RowLinear::new(
            b,
            &LinearSpec {
                name: &format!("{name}.linear_proj"),
                out_parts: &[c.hidden],
                inputs: c.heads * c.head_dim,
                bias: c.proj_bias,
                std: c.proj_std,
            },
        );
        let core = CoreAttention {
            heads,
            groups,
            head_dim: c.head_dim,
            scale: c.scale,
            window: c.window,
            drop: (c.dropout, hash_name(&format!("{name}.core_attention"))),
        };
        let core = Recompute { on: c.recompute_core, inner: core };
        SelfAttention { qkv, qk_norm, rope: c.rope.clone(), core, proj, dims }
    }

    /// Three tensors for q, k and v of `t` tokens.
    fn alloc_qkv(&self, cx: &Ctx, t: usize) -> Result<Qkv> {
        let d = self.dims;
        let kv = || cx.alloc([t, d.groups, d.head_dim]);
        Ok(Qkv { q: cx.alloc([t, d.heads, d.head_dim])?, k: kv()?, v: kv()? })
    }
}

/// The heads of one of `tp` ranks, and its rows of the fused projection, whose groups lie one after the other: queries,
/// key, value.
///
/// # Panics
/// When heads or groups do not divide: validation of the configuration comes first.
fn own_heads(c: &AttentionConfig, rank: usize, tp: usize) -> (QkvDims, OwnRows) {
    let sharers = kv_sharers(tp, c.groups);
    assert!(
        c.heads.is_multiple_of(tp) && (c.groups * sharers).is_multiple_of(tp),
        "{} heads in {} groups do not divide over {tp} ranks",
        c.heads,
        c.groups
    );
    let dims = QkvDims { heads: c.heads / tp, groups: c.groups * sharers / tp, head_dim: c.head_dim };
    let (queries, place) = (c.heads / c.groups * c.head_dim, rank % sharers);
    let first = rank * c.groups / tp * (queries + 2 * c.head_dim);
    if sharers == 1 {
        let own = OwnRows { parts: vec![(first, dims.fused_cols())], shared: 0, counts: true };
        return (dims, own);
    }
    let (mine, kv) = (dims.heads * c.head_dim, 2 * c.head_dim);
    let parts = vec![(first + place * mine, mine), (first + queries, kv)];
    (dims, OwnRows { parts, shared: kv, counts: place == 0 })
}

impl Layer for SelfAttention {
    type In = Tensor;
    type Out = Tensor;
    type Saved = AttentionSaved;
    type WGrad = (LinearGrad, LinearGrad);

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Tensor) -> Result<(Tensor, AttentionSaved)> {
        let (fused, x) = self.qkv.forward(cx, mb, x)?;
        let mut h = self.alloc_qkv(cx, fused.rows())?;
        cx.ops().qkv_split(&cx.stream, self.dims, &fused, &mut h.q, &mut h.k, &mut h.v)?;
        drop(fused);
        let mut normed = None;
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            let (q, q_saved) = q_norm.forward(cx, mb, h.q)?;
            let (k, k_saved) = k_norm.forward(cx, mb, h.k)?;
            (h.q, h.k) = (q, k);
            normed = Some((q_saved, k_saved));
        }
        if let Some(rope) = &self.rope {
            rope.apply(cx, mb, false, &mut h.q)?;
            rope.apply(cx, mb, false, &mut h.k)?;
        }
        let (context, core) = self.core.forward(cx, mb, h)?;
        let (y, context) = self.proj.forward(cx, mb, context)?;
        Ok((y, AttentionSaved { x, normed, core, context }))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, saved: AttentionSaved) -> Result<(Tensor, Self::WGrad)> {
        let (d_context, proj_grad) = self.proj.backward(cx, mb, dy, saved.context)?;
        let (mut d, ()) = self.core.backward(cx, mb, d_context, saved.core)?;
        if let Some(rope) = &self.rope {
            rope.apply(cx, mb, true, &mut d.q)?;
            rope.apply(cx, mb, true, &mut d.k)?;
        }
        if let Some(((q_norm, k_norm), (q_saved, k_saved))) = self.qk_norm.as_ref().zip(saved.normed) {
            d.q = q_norm.backward(cx, mb, d.q, q_saved)?.0;
            d.k = k_norm.backward(cx, mb, d.k, k_saved)?.0;
        }
        let mut d_fused = cx.alloc([d.q.rows(), self.dims.fused_cols()])?;
        cx.ops().qkv_merge(&cx.stream, self.dims, &d.q, &d.k, &d.v, &mut d_fused)?;
        drop(d);
        let (dx, qkv_grad) = self.qkv.backward(cx, mb, d_fused, saved.x)?;
        Ok((dx, (qkv_grad, proj_grad)))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Self::WGrad) -> Result<()> {
        self.qkv.weight_grad(cx, mb, w.0)?;
        self.proj.weight_grad(cx, mb, w.1)
    }
}

impl SavesInput for SelfAttention {
    fn input_of(saved: &mut AttentionSaved) -> &mut Tensor {
        &mut saved.x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_share_a_group_split_its_queries() {
        let config = |heads, groups| AttentionConfig {
            hidden: 8,
            heads,
            groups,
            head_dim: 10,
            scale: 1.0,
            window: None,
            qkv_bias: false,
            proj_bias: false,
            qk_norm: None,
            rope: None,
            dropout: 0.0,
            std: 1.0,
            proj_std: 1.0,
            recompute_core: false,
        };
        // Two groups of six query heads over two ranks: 80 rows each.
        let (dims, own) = own_heads(&config(12, 2), 1, 2);
        assert_eq!((dims.heads, dims.groups), (6, 1));
        assert_eq!(own, OwnRows { parts: vec![(80, 80)], shared: 0, counts: true });
        // Over four: three query heads each, and the group's key and value twice.
        for (rank, parts) in [(0, [(0, 30), (60, 20)]), (1, [(30, 30), (60, 20)]), (3, [(110, 30), (140, 20)])] {
            let (dims, own) = own_heads(&config(12, 2), rank, 4);
            assert_eq!((dims.heads, dims.groups), (3, 1));
            assert_eq!(own, OwnRows { parts: parts.to_vec(), shared: 20, counts: rank % 2 == 0 });
        }
        // One group for all.
        let (dims, own) = own_heads(&config(4, 1), 3, 4);
        assert_eq!((dims.heads, dims.groups, own.parts), (1, 1, vec![(30, 10), (40, 20)]));
    }
}
