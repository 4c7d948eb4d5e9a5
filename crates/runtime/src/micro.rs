//! One micro-batch's world.

use ferrotron_device::{DType, Device, Pool, Result, Stream, Tensor, error::expect, host};
use std::sync::Arc;

use crate::context::{Context, ContextHost, longest};

/// A micro-batch as the data loader makes it, on the host. T tokens in B packed sequences; of context-parallel ranks, each
/// has T / ranks of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroHost {
    /// Token ids `[T]`.
    pub ids: Vec<i32>,
    /// Label ids `[T]`.
    pub labels: Vec<i32>,
    /// Position ids `[T]`, for embeddings and rotations; restarted at document ends when asked.
    pub positions: Vec<i32>,
    /// Global sample number of each token, low 31 bits: with `offset`, the key of dropout.
    pub sample: Vec<i32>,
    /// Offset of each token in its sample.
    pub offset: Vec<i32>,
    /// 1 where a token's loss counts, else 0, `[T]`: for the loss that is reported.
    pub mask: Vec<f32>,
    /// Weight of each token's loss in the loss that is differentiated, `[T]`: mask / (mask sum of the micro-batch x
    /// micro-batches x data-parallel ranks).
    pub weight: Vec<f32>,
    /// Weight of the micro-batch's auxiliary losses (routers' balance) in the loss that is differentiated:
    /// 1 / (micro-batches x data-parallel ranks), or its number of tokens where each token's loss weighs 1.
    pub aux_weight: f32,
    /// First token of each sequence, and the number of tokens, of whole samples: attention stays inside a sequence.
    pub cu_seqlens: Vec<i32>,
    /// The rest of the samples, when this is a context-parallel rank's part ([`MicroHost::context_part`]).
    pub context: Option<ContextHost>,
}

impl MicroHost {
    /// Longest sequence.
    pub fn max_len(&self) -> usize {
        longest(&self.cu_seqlens)
    }

    /// Checks that all parts belong together, so that kernels may trust them.
    fn check(&self) -> Result<()> {
        let t = self.ids.len();
        for (what, n) in [
            ("labels", self.labels.len()),
            ("positions", self.positions.len()),
            ("sample ids", self.sample.len()),
            ("offsets", self.offset.len()),
            ("mask", self.mask.len()),
            ("weights", self.weight.len()),
        ] {
            expect("micro-batch", what, t, n)?;
        }
        expect("micro-batch", "first sequence", Some(&0), self.cu_seqlens.first())?;
        let all = self.context.as_ref().map_or(t, |c| c.token.len());
        expect("micro-batch", "end of the last sequence", Some(&(all as i32)), self.cu_seqlens.last())?;
        expect("micro-batch", "sequence order", true, self.cu_seqlens.is_sorted())
    }
}

/// A micro-batch on the device.
pub struct Micro {
    /// Index in the global batch of this rank.
    pub index: usize,
    /// Longest sequence.
    pub max_len: usize,
    /// `I32[T]`
    pub ids: Tensor,
    /// `I32[T]`
    pub labels: Tensor,
    /// `I32[T]`
    pub positions: Tensor,
    /// `I32[T]`
    pub sample: Tensor,
    /// `I32[T]`
    pub offset: Tensor,
    /// `F32[T]`
    pub mask: Tensor,
    /// `F32[T]`
    pub weight: Tensor,
    /// Weight of auxiliary losses.
    pub aux_weight: f32,
    /// `I32[B+1]`
    pub cu_seqlens: Tensor,
    /// The rest of the samples, on a context-parallel rank.
    pub context: Option<Context>,
    /// The same, on the host.
    pub host_cu: Vec<i32>,
}

impl Micro {
    /// Uploads a micro-batch in stream order.
    pub fn upload(device: &dyn Device, s: &Stream, pool: &Arc<Pool>, index: usize, h: &MicroHost) -> Result<Micro> {
        h.check()?;
        let ints = |v: &[i32]| {
            let mut t = pool.alloc(DType::I32, [v.len()])?;
            host::write_i32(device, s, v, &mut t)?;
            Ok(t)
        };
        let floats = |v: &[f32]| {
            let mut t = pool.alloc(DType::F32, [v.len()])?;
            host::write_f32(device, s, v, &mut t)?;
            Ok(t)
        };
        Ok(Micro {
            index,
            max_len: h.max_len(),
            ids: ints(&h.ids)?,
            labels: ints(&h.labels)?,
            positions: ints(&h.positions)?,
            sample: ints(&h.sample)?,
            offset: ints(&h.offset)?,
            mask: floats(&h.mask)?,
            weight: floats(&h.weight)?,
            aux_weight: h.aux_weight,
            cu_seqlens: ints(&h.cu_seqlens)?,
            context: h.context.as_ref().map(|c| Context::upload(device, s, pool, c)).transpose()?,
            host_cu: h.cu_seqlens.clone(),
        })
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.ids.numel()
    }
}
