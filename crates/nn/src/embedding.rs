//! Word embedding, vocabulary rows split over the tensor-parallel group, a norm of it if wanted, plus learned positions
//! and dropout.

use ferrotron_base::ShardSpec;
use ferrotron_base::philox::hash_name;
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro, ParamId, ParamSpec, Tied, WeightGrads};

use crate::build::Sees;
use crate::{Builder, Drop, Norm, NormConfig, NormKind};

/// Shape of the embedding.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingConfig {
    /// Padded vocabulary of all ranks.
    pub vocab: usize,
    /// H.
    pub hidden: usize,
    /// Rows of the learned position table; 0 for none.
    pub positions: usize,
    /// LayerNorm of the words, before positions are added (`--embed-layernorm`; Le Scao et al., BLOOM, 2022).
    pub norm: bool,
    /// Dropout of the sum.
    pub dropout: f32,
    /// Standard deviation of the initial values.
    pub std: f32,
    /// The head of another pipeline stage holds a copy of the word table.
    pub shared_with_stage: bool,
}

/// Name of the word table.
pub(crate) const WORD_EMBEDDINGS: &str = "embedding.word_embeddings.weight";

/// The first layer of a model.
pub struct Embedding {
    word: ParamId,
    norm: Option<Norm>,
    position: Option<ParamId>,
    first: usize,
    hidden: usize,
    drop: Drop,
}

impl Embedding {
    /// Registers `embedding.word_embeddings.weight`, and `embedding.word_embeddings.norm` and
    /// `embedding.position_embeddings.weight` where there are such.
    pub fn new(b: &mut Builder<'_>, c: &EmbeddingConfig) -> Embedding {
        let shard = b.split_rows(WORD_EMBEDDINGS, &[c.vocab], &[c.hidden]);
        let first = shard.boxes[0].start[0];
        let tied = if c.shared_with_stage { Tied::Original } else { Tied::No };
        let word = b.table.add(ParamSpec { tied, ..ParamSpec::matrix(shard, c.std) });
        // BigScience's is LayerNorm with this epsilon, whatever the blocks have (megatron/mpu/layers.py).
        let norm = NormConfig { kind: NormKind::Layer, eps: 1e-5, plus_one: false, decay: false };
        let norm = c.norm.then(|| Norm::new(b, "embedding.word_embeddings.norm", c.hidden, norm, Sees::Rows));
        let position = (c.positions > 0).then(|| {
            let shard = ShardSpec::whole("embedding.position_embeddings.weight", &[c.positions, c.hidden]);
            b.replicated(ParamSpec::matrix(shard, c.std), Sees::Rows)
        });
        let drop = Drop { p: c.dropout, site: hash_name("embedding.dropout") };
        Embedding { word, norm, position, first, hidden: c.hidden, drop }
    }

    /// The word table, for a tied head.
    pub fn word(&self) -> ParamId {
        self.word
    }
}

impl Layer for Embedding {
    type In = ();
    type Out = Tensor;
    /// Of the norm.
    type Saved = Option<(Tensor, Tensor)>;
    /// Gradients of the sum, and of the words where a norm is between.
    type WGrad = Option<(Tensor, Option<Tensor>)>;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, (): ()) -> Result<(Tensor, Self::Saved)> {
        let mut y = cx.alloc([mb.tokens(), self.hidden])?;
        let w = cx.weight(self.word);
        cx.ops().embedding(&cx.stream, &mb.ids, self.first, &w.data, false, &mut y)?;
        let mut y = cx.reduce_rows(y)?.wait();
        let mut normed = None;
        if let Some(norm) = &self.norm {
            let (of_norm, saved) = norm.forward(cx, mb, y)?;
            (y, normed) = (of_norm, Some(saved));
        }
        if let Some(p) = self.position {
            let positions = cx.own_rows(&mb.positions);
            cx.ops().embedding(&cx.stream, &positions, 0, &cx.weight(p).data, true, &mut y)?;
        }
        self.drop.apply(cx, mb, &mut y, None)?;
        Ok((y, normed))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, normed: Self::Saved) -> Result<((), Self::WGrad)> {
        let dy = match cx.drop_site(self.drop.p, self.drop.site) {
            None => dy,
            Some(site) => {
                let mut d = cx.alloc(*dy.shape())?;
                let (sample, offset) = (cx.own_rows(&mb.sample), cx.own_rows(&mb.offset));
                cx.ops().dropout(&cx.stream, site, 0, &sample, &offset, &dy, None, &mut d)?;
                d
            }
        };
        let of_words = match self.norm.as_ref().zip(normed) {
            Some((norm, saved)) => Some(norm.backward(cx, mb, dy.clone(), saved)?.0),
            None => None,
        };
        let mut later = Some((dy, of_words));
        if cx.when == WeightGrads::Now {
            self.weight_grad(cx, mb, later.take())?;
        }
        Ok(((), later))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Self::WGrad) -> Result<()> {
        let Some((dy, of_words)) = w else { return Ok(()) };
        if let Some(p) = self.position {
            let positions = cx.own_rows(&mb.positions);
            cx.add_grad(p, |cx, g| cx.ops().embedding_backward(&cx.stream, &positions, 0, &dy, g))?;
        }
        if !cx.trainable(self.word) {
            return Ok(());
        }
        let dy = cx.gather_rows(of_words.unwrap_or(dy))?;
        cx.add_grad(self.word, |cx, g| cx.ops().embedding_backward(&cx.stream, &mb.ids, self.first, &dy, g))
    }
}
