//! Attention of one context-parallel rank's queries over keys and values of whole samples.
//!
//! Forward gathers K and V of all ranks, puts them in the order of tokens, and makes one call for the rank's front chunks
//! and one for its back chunks (`runtime/context.rs` says which those are). Backward gathers again instead of keeping
//! c times the keys, and reduce-scatters the sum of both calls' dK and dV. Saved: the rank's own q, k, v, o and, of each
//! half, lse. (Dubey et al. 2024, §3.3.2; transformer_engine's `AttnFuncWithCPAndKVAllGather`.)

use ferrotron_device::ops::{AttentionArgs, AttentionDrop};
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::context::Half;
use ferrotron_runtime::{Context, Ctx, Micro};

use crate::{CoreAttention, Qkv};

/// Keys and values of whole samples `[T,G,D]`, T of all ranks.
struct Whole {
    k: Tensor,
    v: Tensor,
}

impl CoreAttention {
    /// o `[T,N,D]` and lse `[2,N,T/2]` (=) of this rank's T tokens.
    pub(crate) fn forward_part(
        &self,
        cx: &Ctx,
        mb: &Micro,
        context: &Context,
        x: &Qkv,
        o: &Tensor,
        lse: &Tensor,
    ) -> Result<()> {
        let whole = gather(cx, context, x)?;
        for (h, half) in context.halves.iter().enumerate() {
            let part = Part::of(h, mb, x);
            let args = self.part_args(cx, context, half, &part, &whole);
            cx.ops().attention(&cx.stream, args, &mut part.rows(o), &mut part.stats(lse))?;
        }
        Ok(())
    }

    /// dq, dk, dv of this rank's tokens.
    pub(crate) fn backward_part(
        &self,
        cx: &Ctx,
        mb: &Micro,
        context: &Context,
        dy: &Tensor,
        (x, o, lse): (Qkv, Tensor, Tensor),
    ) -> Result<Qkv> {
        let whole = gather(cx, context, &x)?;
        let dq = cx.alloc(*x.q.shape())?;
        let mut delta = cx.alloc_f32([lse.numel() / 2])?;
        let like_whole = || Ok(Whole { k: cx.alloc(*whole.k.shape())?, v: cx.alloc(*whole.v.shape())? });
        // In the order of ranks, so that each rank's part is one piece.
        let mut by_rank = like_whole()?;
        for (h, half) in context.halves.iter().enumerate() {
            let part = Part::of(h, mb, &x);
            let args = self.part_args(cx, context, half, &part, &whole);
            let mut d = like_whole()?;
            let (o, dy, mut dq, lse) = (part.rows(&o), part.rows(dy), part.rows(&dq), part.stats(&lse));
            cx.ops().attention_backward(&cx.stream, args, &o, &lse, &dy, &mut delta, &mut dq, &mut d.k, &mut d.v)?;
            for (d, sum) in [(&d.k, &mut by_rank.k), (&d.v, &mut by_rank.v)] {
                cx.ops().embedding(&cx.stream, &context.token, 0, d, h > 0, sum)?;
            }
        }
        drop(whole);
        let own = |sum: Tensor, like: &Tensor| cx.groups.cp.reduce_scatter(&cx.stream, sum, cx.alloc(*like.shape())?);
        let (k, v) = (own(by_rank.k, &x.k)?, own(by_rank.v, &x.v)?);
        Ok(Qkv { q: dq, k: k.wait(), v: v.wait() })
    }

    fn part_args<'a>(
        &self,
        cx: &Ctx,
        context: &'a Context,
        half: &'a Half,
        part: &'a Part,
        whole: &'a Whole,
    ) -> AttentionArgs<'a> {
        let drop = cx.drop_site(self.drop.0, self.drop.1).map(|site| AttentionDrop {
            site,
            sample: &part.sample,
            offset_q: &part.offset,
            offset_k: &context.offset,
        });
        AttentionArgs {
            dims: self.dims(cx, half.max_len),
            q: &part.q,
            k: &whole.k,
            v: &whole.v,
            cu_q: &half.cu_q,
            cu_k: &half.cu_k,
            host_cu: Some((&half.host.cu_q, &half.host.cu_k)),
            drop,
        }
    }
}

/// Keys and values of all ranks, in the order of tokens.
fn gather(cx: &Ctx, context: &Context, x: &Qkv) -> Result<Whole> {
    let cp = &cx.groups.cp;
    let whole = |t: &Tensor| cx.alloc([t.rows() * cp.size(), t.cols()]);
    let k = cp.all_gather(&cx.stream, x.k.clone(), whole(&x.k)?)?;
    let v = cp.all_gather(&cx.stream, x.v.clone(), whole(&x.v)?)?;
    let in_order = |by_rank: Tensor| {
        let mut out = cx.alloc(*by_rank.shape())?;
        cx.ops().embedding(&cx.stream, &context.place, 0, &by_rank, false, &mut out)?;
        Ok(out)
    };
    Ok(Whole { k: in_order(k.wait())?, v: in_order(v.wait())? })
}

/// One half of a rank's queries, with their names.
struct Part {
    /// Which: 0 or 1.
    half: usize,
    q: Tensor,
    sample: Tensor,
    offset: Tensor,
}

impl Part {
    fn of(half: usize, mb: &Micro, x: &Qkv) -> Part {
        let n = x.q.rows() / 2;
        let names = |t: &Tensor| t.view(half * n, [n]);
        Part { half, q: x.q.rows_view(half * n, n), sample: names(&mb.sample), offset: names(&mb.offset) }
    }

    /// This half's rows of a tensor like q.
    fn rows(&self, t: &Tensor) -> Tensor {
        let n = self.q.rows();
        t.rows_view(self.half * n, n)
    }

    /// This half of a statistic `[2,N,T/2]`.
    fn stats(&self, t: &Tensor) -> Tensor {
        let n = t.numel() / 2;
        t.view(self.half * n, [n])
    }
}
