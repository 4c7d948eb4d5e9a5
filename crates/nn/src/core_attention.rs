//! Softmax attention over the micro-batch's packed sequences. Saved: q, k, v, o, lse. dq, dk, dv are new.
//!
//! Context parallel (`context_attention.rs`) when the micro-batch is a part of its samples.

use ferrotron_device::ops::{AttentionArgs, AttentionDims, AttentionDrop};
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro, Tensors};

/// Queries `[T,N,D]`, keys and values `[T,G,D]`.
#[derive(Clone)]
pub struct Qkv {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
}

impl Tensors for Qkv {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        f(&mut self.q);
        f(&mut self.k);
        f(&mut self.v);
    }
}

/// Attention between the projections.
pub struct CoreAttention {
    /// Query heads held here.
    pub heads: usize,
    /// KV groups held here.
    pub groups: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of q k^T.
    pub scale: f32,
    /// Keys that a query sees at most.
    pub window: Option<usize>,
    /// Dropout of the probabilities, and its site.
    pub drop: (f32, u64),
}

impl CoreAttention {
    /// Shape and kind of a call on sequences of at most `max_len` tokens.
    pub(crate) fn dims(&self, cx: &Ctx, max_len: usize) -> AttentionDims {
        AttentionDims {
            heads: self.heads,
            groups: self.groups,
            head_dim: self.head_dim,
            causal: true,
            window: self.window,
            scale: self.scale,
            max_len,
            first_head: cx.groups.tp.rank() * self.heads,
        }
    }

    fn args<'a>(&self, cx: &Ctx, mb: &'a Micro, x: &'a Qkv) -> AttentionArgs<'a> {
        let drop = cx.drop_site(self.drop.0, self.drop.1).map(|site| AttentionDrop {
            site,
            sample: &mb.sample,
            offset_q: &mb.offset,
            offset_k: &mb.offset,
        });
        let (dims, host_cu) = (self.dims(cx, mb.max_len), Some((&mb.host_cu[..], &mb.host_cu[..])));
        AttentionArgs { dims, q: &x.q, k: &x.k, v: &x.v, cu_q: &mb.cu_seqlens, cu_k: &mb.cu_seqlens, host_cu, drop }
    }
}

impl Layer for CoreAttention {
    type In = Qkv;
    type Out = Tensor;
    /// Inputs, o, lse.
    type Saved = (Qkv, Tensor, Tensor);
    type WGrad = ();

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Qkv) -> Result<(Tensor, Self::Saved)> {
        let mut o = cx.alloc([x.q.rows(), self.heads * self.head_dim])?;
        let mut lse = cx.alloc_f32([self.heads, x.q.rows()])?;
        match &mb.context {
            Some(context) => self.forward_part(cx, mb, context, &x, &o, &lse)?,
            None => cx.ops().attention(&cx.stream, self.args(cx, mb, &x), &mut o, &mut lse)?,
        }
        Ok((o.clone(), (x, o, lse)))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, saved: Self::Saved) -> Result<(Qkv, ())> {
        if let Some(context) = &mb.context {
            return Ok((self.backward_part(cx, mb, context, &dy, saved)?, ()));
        }
        let (x, o, lse) = saved;
        let mut delta = cx.alloc_f32(*lse.shape())?;
        let like = |t: &Tensor| cx.alloc(*t.shape());
        let mut d = Qkv { q: like(&x.q)?, k: like(&x.k)?, v: like(&x.v)? };
        let args = self.args(cx, mb, &x);
        cx.ops().attention_backward(&cx.stream, args, &o, &lse, &dy, &mut delta, &mut d.q, &mut d.k, &mut d.v)?;
        Ok((d, ()))
    }

    fn weight_grad(&self, _: &mut Ctx, _: &Micro, (): ()) -> Result<()> {
        Ok(())
    }
}
