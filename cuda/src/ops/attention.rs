//! Attention: `kernels/attention.cu` and `kernels/attention_backward.cu`.

use ferrotron_base::philox::drop_threshold;
use ferrotron_device::ops::{AttentionArgs, AttentionOps};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;
use crate::launch::Launch;

/// `TILE` of `kernels/attention.cuh`.
const TILE: usize = 16;
/// A window that every sequence fits in, so that positions plus a window stay in an int.
const WIDE: usize = 1 << 30;

/// `Attention` of `kernels/attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attention {
    key: u64,
    heads: u32,
    groups: u32,
    dim: u32,
    causal: u32,
    window: u32,
    blocks: u32,
    first_head: u32,
    threshold: u32,
    keep: f32,
    scale: f32,
}

fn attention(a: &AttentionArgs<'_>) -> Attention {
    let d = &a.dims;
    let p = a.drop.map_or(0.0, |drop| drop.site.p);
    Attention {
        key: a.drop.map_or(0, |drop| drop.site.key),
        heads: d.heads as u32,
        groups: d.groups as u32,
        dim: d.head_dim as u32,
        causal: d.causal.into(),
        window: d.window.filter(|&w| w < WIDE).unwrap_or(0) as u32,
        blocks: d.max_len.div_ceil(TILE).max(1) as u32,
        first_head: d.first_head as u32,
        threshold: drop_threshold(p),
        keep: 1.0 / (1.0 - p),
        scale: d.scale,
    }
}

/// Bytes of tiles `[TILE, dim]` and squares `[TILE, TILE]`, each row one float longer.
fn shared(tiles: usize, squares: usize, dim: usize) -> usize {
    4 * TILE * (tiles * (dim + 1) + squares * (TILE + 1))
}

impl Launch<'_> {
    /// What all attention kernels begin with.
    fn attention_inputs(self, a: &AttentionArgs<'_>) -> Self {
        let (sample, q, k) = match &a.drop {
            Some(drop) => (Some(drop.sample), Some(drop.offset_q), Some(drop.offset_k)),
            None => (None, None, None),
        };
        let launch = self.tensor(a.q).tensor(a.k).tensor(a.v).tensor(a.cu_q).tensor(a.cu_k);
        launch.optional(sample).optional(q).optional(k)
    }
}

impl AttentionOps for CudaOps {
    fn attention(&self, s: &Stream, a: AttentionArgs<'_>, o: &mut Tensor, lse: &mut Tensor) -> Result<()> {
        let (tq, _, sequences) = a.check_forward(o, lse)?;
        if tq * a.dims.head_dim == 0 {
            return Ok(());
        }
        let k = attention(&a);
        let launch = self.kernel(s, "attention")?.attention_inputs(&a).tensor(o).tensor(lse).value(k);
        launch.blocks(sequences * k.blocks as usize, a.dims.heads, shared(3, 3, a.dims.head_dim))
    }

    fn attention_backward(
        &self,
        s: &Stream,
        a: AttentionArgs<'_>,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &mut Tensor,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
    ) -> Result<()> {
        let (tq, tk, sequences) = a.check_backward(o, lse, dout, delta, dq, dk, dv)?;
        let (k, dim) = (attention(&a), a.dims.head_dim);
        let blocks = sequences * k.blocks as usize;
        if tq * dim > 0 {
            let launch = self.kernel(s, "attention_delta")?.tensor(o).tensor(dout).tensor(delta);
            launch.value(k.heads).value(k.dim).over(32 * delta.numel())?;
            let launch = self.kernel(s, "attention_backward_q")?.attention_inputs(&a).tensor(lse).tensor(dout);
            launch.tensor(delta).tensor(dq).value(k).blocks(blocks, a.dims.heads, shared(5, 1, dim))?;
        }
        if tk * dim > 0 {
            let launch = self.kernel(s, "attention_backward_kv")?.attention_inputs(&a).tensor(lse).tensor(dout);
            let launch = launch.tensor(delta).tensor(dk).tensor(dv).value(k);
            launch.blocks(blocks, a.dims.groups, shared(6, 2, dim))?;
        }
        Ok(())
    }
}
