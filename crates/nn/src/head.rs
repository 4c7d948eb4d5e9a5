//! Output projection fused with the vocabulary cross-entropy, in chunks of rows: the logits `[T,V]` never exist.
//!
//! One rank holds the vocabulary: loss and gradients of a chunk are taken while its logits are at hand, in forward
//! (three matrix products in all; dx waits in `Saved`). Vocabulary split over ranks: forward takes the softmax's
//! maximum and sum of all chunks and needs two all-reduces, whatever the number of chunks; backward computes the
//! logits again. Losses go to the step's statistics under `Micro::mask`; gradients are weighted by
//! `Micro::weight`. dW accumulates.

use ferrotron_comm::ReduceOp;
use ferrotron_device::ops::Gemm;
use ferrotron_device::{DType, Error, Result, Tensor};
use ferrotron_runtime::{Ctx, Edge, Flow, Layer, Micro, ParamId, ParamSpec, Tied, stat};

use crate::Builder;
use crate::embedding::WORD_EMBEDDINGS;

/// Bytes of logits in a chunk, about: enough rows to keep a matrix product busy, little beside the activations.
const CHUNK_BYTES: usize = 24 << 20;
/// Fewest rows in a chunk.
const MIN_CHUNK_ROWS: usize = 64;

/// The last layer of a model.
pub struct Head {
    weight: ParamId,
    first: usize,
    vocab: usize,
}

/// Where the output projection's weights are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadTable {
    /// Its own, with this standard deviation at first.
    Own {
        /// Standard deviation.
        std: f32,
    },
    /// The word embedding, on this rank.
    Shared(ParamId),
    /// The word embedding of the first pipeline stage, of which this stage holds a copy.
    CopyOfEmbedding {
        /// The embedding's standard deviation: both draw the same values.
        std: f32,
    },
}

/// What a head gives: the loss of each token, `F32[T]`, for those who look; its backward takes nothing.
pub struct Loss {
    /// `F32[T]`
    pub per_token: Option<Tensor>,
}

impl Edge for Loss {
    fn from_flow(f: Flow) -> Result<Loss> {
        match f {
            Flow::Empty => Ok(Loss { per_token: None }),
            Flow::Ready(t) => Ok(Loss { per_token: Some(t) }),
            Flow::InFlight(_) => Err(Error::mismatch("head", "gradient of the loss", "nothing", "a tensor in flight")),
        }
    }
    fn into_flow(self) -> Flow {
        self.per_token.map_or(Flow::Empty, Flow::Ready)
    }
}

/// Statistics of the softmax, `F32[T]` each.
struct Stats {
    max: Tensor,
    /// sum and target side by side, `F32[2,T]`: one all-reduce takes both.
    both: Tensor,
    sum: Tensor,
    target: Tensor,
    lse: Tensor,
    loss: Tensor,
}

impl Stats {
    fn new(cx: &Ctx, t: usize) -> Result<Stats> {
        let both = cx.alloc_f32([2, t])?;
        let row = || cx.alloc_f32([t]);
        let (sum, target) = (both.view(0, [t]), both.view(t, [t]));
        Ok(Stats { max: row()?, both, sum, target, lse: row()?, loss: row()? })
    }

    fn rows(&self, start: usize, n: usize) -> Stats {
        let view = |t: &Tensor| t.view(start, [n]);
        Stats {
            max: view(&self.max),
            both: self.both.clone(),
            sum: view(&self.sum),
            target: view(&self.target),
            lse: view(&self.lse),
            loss: view(&self.loss),
        }
    }

    fn finish(&mut self, cx: &Ctx) -> Result<()> {
        cx.ops().ce_loss(&cx.stream, &self.max, &self.sum, &self.target, &mut self.lse, &mut self.loss)
    }
}

impl Head {
    /// Registers `output_layer.weight`, or shares the word embedding.
    pub fn new(b: &mut Builder<'_>, vocab: usize, hidden: usize, table: HeadTable) -> Head {
        let shard = b.split_rows("output_layer.weight", &[vocab], &[hidden]);
        let (first, local) = (shard.boxes[0].start[0], shard.boxes[0].len[0]);
        let weight = match table {
            HeadTable::Own { std } => b.table.add(ParamSpec::matrix(shard, std)),
            HeadTable::Shared(word) => word,
            HeadTable::CopyOfEmbedding { std } => {
                let shard = b.split_rows(WORD_EMBEDDINGS, &[vocab], &[hidden]);
                b.table.add(ParamSpec { tied: Tied::Copy, ..ParamSpec::matrix(shard, std) })
            }
        };
        Head { weight, first, vocab: local }
    }

    /// Logits of rows x `[R,H]`, `F32[R,V]`.
    pub fn logits(&self, cx: &Ctx, x: &Tensor) -> Result<Tensor> {
        let mut z = cx.alloc_f32([x.rows(), self.vocab])?;
        cx.ops().gemm(&cx.stream, Gemm::NT, x, &cx.weight(self.weight).data, None, &mut z)?;
        Ok(z)
    }

    fn chunks(&self, t: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let rows = (CHUNK_BYTES / (4 * self.vocab.max(1))).max(MIN_CHUNK_ROWS);
        (0..t).step_by(rows).map(move |start| (start, rows.min(t - start)))
    }

    fn chunk_stats(&self, cx: &Ctx, z: &Tensor, labels: &Tensor, st: &mut Stats) -> Result<()> {
        cx.ops().ce_stats(&cx.stream, z, labels, self.first, &mut st.max, &mut st.sum, &mut st.target)
    }

    /// dx rows (=) and dW (+=) of a chunk, from its logits.
    fn chunk_grads(
        &self,
        cx: &mut Ctx,
        mb: &Micro,
        start: usize,
        x: &Tensor,
        z: Tensor,
        lse: &Tensor,
        dx: &mut Tensor,
    ) -> Result<()> {
        let n = x.rows();
        let (labels, weight) = (mb.labels.view(start, [n]), mb.weight.view(start, [n]));
        let mut dz = if cx.dtype == DType::F32 { z.clone() } else { cx.alloc(*z.shape())? };
        cx.ops().ce_backward(&cx.stream, &z, &labels, self.first, lse, &weight, &cx.loss_scale, &mut dz)?;
        drop(z);
        cx.ops().gemm(&cx.stream, Gemm::NN, &dz, &cx.weight(self.weight).data, None, dx)?;
        cx.accumulate_weight_grad(self.weight, &dz, x)
    }

    fn forward_whole(&self, cx: &mut Ctx, mb: &Micro, x: &Tensor, st: &mut Stats) -> Result<Option<Tensor>> {
        let dx = if cx.training { Some(cx.alloc(*x.shape())?) } else { None };
        for (start, n) in self.chunks(x.rows()) {
            let (rows, mut part) = (x.rows_view(start, n), st.rows(start, n));
            let z = self.logits(cx, &rows)?;
            self.chunk_stats(cx, &z, &mb.labels.view(start, [n]), &mut part)?;
            part.finish(cx)?;
            if let Some(dx) = &dx {
                self.chunk_grads(cx, mb, start, &rows, z, &part.lse, &mut dx.rows_view(start, n))?;
            }
        }
        Ok(dx)
    }

    fn forward_split(&self, cx: &mut Ctx, mb: &Micro, x: &Tensor, st: &mut Stats) -> Result<()> {
        for (start, n) in self.chunks(x.rows()) {
            let z = self.logits(cx, &x.rows_view(start, n))?;
            self.chunk_stats(cx, &z, &mb.labels.view(start, [n]), &mut st.rows(start, n))?;
        }
        let mut max = cx.alloc_f32(*st.max.shape())?;
        cx.ops().copy(&cx.stream, &st.max, &mut max)?;
        let max = cx.groups.tp.all_reduce(&cx.stream, max, ReduceOp::Max)?.wait();
        cx.ops().ce_rescale(&cx.stream, &st.max, &max, &mut st.sum)?;
        st.max = max;
        cx.groups.tp.all_reduce(&cx.stream, st.both.clone(), ReduceOp::Sum)?.wait();
        st.finish(cx)
    }
}

impl Layer for Head {
    type In = Tensor;
    type Out = Loss;
    /// One rank: dx. Split: x and lse.
    type Saved = (Option<Tensor>, Option<(Tensor, Tensor)>);
    type WGrad = ();

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Tensor) -> Result<(Loss, Self::Saved)> {
        let full = cx.gather_rows(x.clone())?;
        let mut st = Stats::new(cx, full.rows())?;
        let saved = if cx.groups.tp.size() == 1 {
            (self.forward_whole(cx, mb, &full, &mut st)?, None)
        } else {
            self.forward_split(cx, mb, &full, &mut st)?;
            (None, Some((x, st.lse.clone())))
        };
        if cx.groups.tp.rank() == 0 {
            // Statistics are summed over all ranks: the ranks that share this head count once.
            cx.ops().weighted_sum(&cx.stream, &st.loss, &mb.mask, &mut cx.stat(stat::LOSS))?;
            // The mask is 0 or 1, so its square sums to the number of tokens that count.
            cx.ops().weighted_sum(&cx.stream, &mb.mask, &mb.mask, &mut cx.stat(stat::TOKENS))?;
        }
        Ok((Loss { per_token: Some(st.loss) }, saved))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, _: Loss, saved: Self::Saved) -> Result<(Tensor, ())> {
        let (x, lse) = match saved {
            (Some(dx), _) => return Ok((dx, ())),
            (None, Some(kept)) => kept,
            (None, None) => return Err(Error::mismatch("head", "mode in forward", "training", "evaluation")),
        };
        let full = cx.gather_rows(x)?;
        let dx = cx.alloc(*full.shape())?;
        for (start, n) in self.chunks(full.rows()) {
            let rows = full.rows_view(start, n);
            let z = self.logits(cx, &rows)?;
            self.chunk_grads(cx, mb, start, &rows, z, &lse.view(start, [n]), &mut dx.rows_view(start, n))?;
        }
        Ok((cx.reduce_rows(dx)?.wait(), ()))
    }

    fn weight_grad(&self, _: &mut Ctx, _: &Micro, (): ()) -> Result<()> {
        Ok(())
    }
}
