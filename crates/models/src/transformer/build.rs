//! From a configuration to the layers of a stage.

use std::ops::Range;
use std::sync::Arc;

use ferrotron_device::{Error, Result, Tensor};
use ferrotron_nn::embedding::EmbeddingConfig;
use ferrotron_nn::{Builder, Embedding, Head, HeadTable, Mlp, Moe, Norm, Recompute, Rope, RopeSpec, Sees, Sharded};
use ferrotron_runtime::{AnyLayer, Ctx, Edge, Flow, Micro};
use ferrotron_schedule::ChunkPlan;

use super::block::{FeedForward, Stack, block, mlp_config, moe_config};
use super::config::{ModelConfig, Position, Recomputation};

/// The layers of one virtual stage.
pub struct Model {
    /// First to last; the head, when this is the last stage, among them.
    pub layers: Vec<Box<dyn AnyLayer>>,
    /// The head again, for logits.
    pub head: Option<Arc<Head>>,
}

/// Registers the parameters of a stage's chunks and makes their layers. A tied head shares the embedding's table when
/// both are on this stage, in whatever chunks; else it has a copy.
pub fn build(b: &mut Builder<'_>, c: &ModelConfig, chunks: &[ChunkPlan]) -> Result<Vec<Model>> {
    let rope = rope_of(b, c)?;
    let has_head = chunks.iter().any(|p| p.head);
    let mut word = None;
    let mut models = Vec::with_capacity(chunks.len());
    for (chunk, plan) in chunks.iter().enumerate() {
        let mut layers: Vec<Box<dyn AnyLayer>> = vec![];
        if plan.embedding {
            let embedding = Embedding::new(b, &embedding_config(c, !has_head));
            word = Some(embedding.word());
            layers.push(Box::new(embedding));
        }
        let units = units(c.recompute, plan.blocks.clone(), (chunk, chunks.len()));
        let last = units.len().saturating_sub(1);
        for (i, (blocks, recompute)) in units.into_iter().enumerate() {
            let unit = Unit { blocks, recompute, first: i == 0, last: i == last };
            layers.push(match moe_config(c) {
                None => stack::<Mlp>(b, c, &mlp_config(c), rope.as_ref(), unit),
                Some(f) => stack::<Moe>(b, c, &f, rope.as_ref(), unit),
            });
        }
        let head = plan.head.then(|| {
            let norm = Norm::new(b, "decoder.final_layernorm", c.hidden, c.norm_config(), Sees::Rows);
            layers.push(Box::new(norm));
            let table = match (c.tied, word) {
                (false, _) => HeadTable::Own { std: c.init_std },
                (true, Some(word)) => HeadTable::Shared(word),
                (true, None) => HeadTable::CopyOfEmbedding { std: c.embedding_init_std },
            };
            let head = Arc::new(Head::new(b, c.vocab, c.hidden, table));
            layers.push(Box::new(head.clone()));
            head
        });
        models.push(Model { layers, head });
    }
    Ok(models)
}

/// Blocks that are kept, recomputed or gathered as one.
struct Unit {
    blocks: Range<usize>,
    recompute: bool,
    /// Of its chunk.
    first: bool,
    last: bool,
}

fn stack<F: FeedForward>(
    b: &mut Builder<'_>,
    c: &ModelConfig,
    f: &F::Config,
    rope: Option<&Rope>,
    unit: Unit,
) -> Box<dyn AnyLayer> {
    let layer = |b: &mut Builder<'_>| {
        let inner = Stack::<F>(unit.blocks.map(|i| block(b, c, f, rope, i)).collect());
        Recompute { on: unit.recompute, inner }
    };
    if !b.shard_blocks {
        return Box::new(layer(b));
    }
    // What is recomputed as one is gathered as one. Units of a chunk have consecutive numbers.
    let number = b.table.begin_unit();
    let inner = layer(b);
    b.table.end_unit();
    let (before, after) = ((!unit.first).then(|| number - 1), (!unit.last).then_some(number + 1));
    Box::new(Sharded { unit: number, before, after, inner })
}

fn embedding_config(c: &ModelConfig, head_elsewhere: bool) -> EmbeddingConfig {
    EmbeddingConfig {
        vocab: c.vocab,
        hidden: c.hidden,
        positions: if c.position == Position::Learned { c.max_positions } else { 0 },
        norm: c.embedding_norm,
        dropout: c.hidden_dropout,
        std: c.embedding_init_std,
        shared_with_stage: c.tied && head_elsewhere,
    }
}

fn rope_of(b: &Builder<'_>, c: &ModelConfig) -> Result<Option<Rope>> {
    let Position::Rope { percent, base, interleaved, scaling } = c.position else { return Ok(None) };
    // Megatron: rotary_percent of the head, rounded down to an even number.
    let rot = (c.head_dim as f64 * percent) as usize / 2 * 2;
    let spec = RopeSpec { rot, interleaved, base, max_positions: c.max_positions, scaling };
    Rope::new(b.device, b.stream, &spec).map(Some)
}

/// Blocks that are kept or recomputed together, in order, of chunk (i, of so many) of a pipeline rank.
fn units(r: Recomputation, blocks: Range<usize>, (chunk, chunks): (usize, usize)) -> Vec<(Range<usize>, bool)> {
    let (start, end) = (blocks.start, blocks.end);
    match r {
        Recomputation::None | Recomputation::Selective { .. } => blocks.map(|i| (i..i + 1, false)).collect(),
        Recomputation::Uniform { layers } => {
            let n = layers.max(1);
            (start..end).step_by(n).map(|i| (i..(i + n).min(end), true)).collect()
        }
        Recomputation::Block { layers } => blocks.map(|i| (i..i + 1, i < start + layers)).collect(),
        Recomputation::BlockOfRank { layers } => {
            blocks.map(|i| (i..i + 1, (i - start) * chunks + chunk < layers)).collect()
        }
    }
}

impl Model {
    /// Logits `F32[T,V]` of a micro-batch, on a model that has all blocks.
    pub fn logits(&self, cx: &mut Ctx, mb: &Micro) -> Result<Tensor> {
        let head = self.head.as_ref().ok_or_else(|| Error::mismatch("logits", "stage", "the last one", "another"))?;
        let mut x = Flow::Empty;
        for layer in &self.layers[..self.layers.len() - 1] {
            (x, _) = layer.forward_any(cx, mb, x)?;
        }
        head.logits(cx, &Tensor::from_flow(x)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_recomputation() {
        let alone = (0, 1);
        assert_eq!(units(Recomputation::None, 2..4, alone), [(2..3, false), (3..4, false)]);
        let uniform = Recomputation::Uniform { layers: 2 };
        assert_eq!(units(uniform, 0..5, alone), [(0..2, true), (2..4, true), (4..5, true)]);
        assert_eq!(units(Recomputation::Block { layers: 1 }, 4..6, (1, 2)), [(4..5, true), (5..6, false)]);
        // three of a rank's four: both of its first chunk, one of its second
        let of_rank = Recomputation::BlockOfRank { layers: 3 };
        assert_eq!(units(of_rank, 0..2, (0, 2)), [(0..1, true), (1..2, true)]);
        assert_eq!(units(of_rank, 4..6, (1, 2)), [(4..5, true), (5..6, false)]);
    }
}
