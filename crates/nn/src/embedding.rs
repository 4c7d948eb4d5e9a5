//! Word embedding, vocabulary rows split over the tensor-parallel group, plus learned positions and dropout.

use ferrotron_base::ShardSpec;
use ferrotron_base::philox::hash_name;
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro, ParamId, ParamSpec, Tied, WeightGrads};

use crate::build::Sees;
use crate::{Builder, Drop};

/// Shape of the embedding.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingConfig {
    /// Padded vocabulary of all ranks.
    pub vocab: usize,
    /// H.
    pub hidden: usize,
    /// Rows of the learned position table; 0 for none.
    pub positions: usize,
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
    position: Option<ParamId>,
    first: usize,
    hidden: usize,
    drop: Drop,
}

impl Embedding {
    /// Registers `embedding.word_embeddings.weight` and `embedding.position_embeddings.weight`.
    pub fn new(b: &mut Builder<'_>, c: &EmbeddingConfig) -> Embedding {
        let shard = b.split_rows(WORD_EMBEDDINGS, &[c.vocab], &[c.hidden]);
        let first = shard.boxes[0].start[0];
        let tied = if c.shared_with_stage { Tied::Original } else { Tied::No };
        let word = b.table.add(ParamSpec { tied, ..ParamSpec::matrix(shard, c.std) });
        let position = (c.positions > 0).then(|| {
            let shard = ShardSpec::whole("embedding.position_embeddings.weight", &[c.positions, c.hidden]);
            b.replicated(ParamSpec::matrix(shard, c.std), Sees::Rows)
        });
        let drop = Drop { p: c.dropout, site: hash_name("embedding.dropout") };
        Embedding { word, position, first, hidden: c.hidden, drop }
    }

    /// The word table, for a tied head.
    pub fn word(&self) -> ParamId {
        self.word
    }
}

impl Layer for Embedding {
    type In = ();
    type Out = Tensor;
    type Saved = ();
    /// dy before dropout.
    type WGrad = Option<Tensor>;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, (): ()) -> Result<(Tensor, ())> {
        let mut y = cx.alloc([mb.tokens(), self.hidden])?;
        let w = cx.weight(self.word);
        cx.ops().embedding(&cx.stream, &mb.ids, self.first, &w.data, false, &mut y)?;
        let mut y = cx.reduce_rows(y)?.wait();
        if let Some(p) = self.position {
            let positions = cx.own_rows(&mb.positions);
            cx.ops().embedding(&cx.stream, &positions, 0, &cx.weight(p).data, true, &mut y)?;
        }
        self.drop.apply(cx, mb, &mut y, None)?;
        Ok((y, ()))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, (): ()) -> Result<((), Option<Tensor>)> {
        let dy = match cx.drop_site(self.drop.p, self.drop.site) {
            None => dy,
            Some(site) => {
                let mut d = cx.alloc(*dy.shape())?;
                let (sample, offset) = (cx.own_rows(&mb.sample), cx.own_rows(&mb.offset));
                cx.ops().dropout(&cx.stream, site, 0, &sample, &offset, &dy, None, &mut d)?;
                d
            }
        };
        let mut later = Some(dy);
        if cx.when == WeightGrads::Now {
            self.weight_grad(cx, mb, later.take())?;
        }
        Ok(((), later))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Option<Tensor>) -> Result<()> {
        let Some(dy) = w else { return Ok(()) };
        if let Some(p) = self.position {
            let positions = cx.own_rows(&mb.positions);
            cx.add_grad(p, |cx, g| cx.ops().embedding_backward(&cx.stream, &positions, 0, &dy, g))?;
        }
        if !cx.trainable(self.word) {
            return Ok(());
        }
        let dy = cx.gather_rows(dy)?;
        cx.add_grad(self.word, |cx, g| cx.ops().embedding_backward(&cx.stream, &mb.ids, self.first, &dy, g))
    }
}
