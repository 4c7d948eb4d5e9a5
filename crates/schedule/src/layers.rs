//! Which layers each stage and chunk holds. Every layer of the model is held once: none may vanish in a division.
//!
//! Counts are in the order of the model: virtual stage `chunk * stages + stage`.
//! (megatron/core/transformer/transformer_block.py `get_num_layers_to_build`; transformer_layer.py
//! `get_transformer_layer_offset`.)

use std::ops::Range;

/// The layers of a model, to be divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSplit {
    /// Layers in all.
    pub layers: usize,
    /// Pipeline stages.
    pub stages: usize,
    /// How.
    pub way: Way,
}

/// Ways to divide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Equal stages.
    Even {
        /// Chunks of each.
        chunks: VirtualStages,
        /// The embedding counts as a layer (`--account-for-embedding-in-pipeline-split`): the first chunk gets one less.
        embedding: bool,
        /// So does the loss: the last chunk gets one less.
        loss: bool,
    },
    /// The first or last stage is stated, the others share the rest equally (`--decoder-first-pipeline-num-layers`).
    Ends {
        /// Chunks of each stage.
        chunks: usize,
        /// Layers of the first stage.
        first: Option<usize>,
        /// Layers of the last stage.
        last: Option<usize>,
    },
    /// Layers of each stage (`--num-layer-list`).
    Stages(Vec<usize>),
    /// Layers of each virtual stage (`--pipeline-model-parallel-layout`).
    Virtual(Vec<usize>),
    /// As equal as can be: earlier stages take the rest (DeepSpeed's `partition_uniform`).
    Balanced,
    /// The heaviest stage as light as can be, where layers have a weight and so has what stands before the first and after
    /// the last (DeepSpeed's `partition_balanced`). Of equal divisions, earlier stages take more.
    Weighed {
        /// Weight of the embedding.
        embedding: u64,
        /// Weight of a layer, at least 1.
        layer: u64,
        /// Weight of final norm and head.
        head: u64,
    },
}

/// How equal stages are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtualStages {
    /// So many chunks a stage.
    Count(usize),
    /// Chunks of so many layers.
    OfLayers(usize),
}

/// More virtual stages than any pipeline has.
const MOST: usize = 1 << 20;

/// A division that leaves layers over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// Stages are not equal.
    #[error("{total} layers{} do not divide into {stages} equal stages", counted(*.extra))]
    Stages {
        /// Layers, with those that embedding and loss count for.
        total: usize,
        /// Layers that embedding and loss count for.
        extra: usize,
        /// Stages.
        stages: usize,
    },
    /// The stages between stated ends are not equal.
    #[error("{layers} layers less the {taken} of the stated stages do not divide over {others} other stages")]
    Ends {
        /// Layers.
        layers: usize,
        /// Stated.
        taken: usize,
        /// Stages that share the rest.
        others: usize,
    },
    /// Chunks of a stage are not equal.
    #[error("{layers} layers of a stage do not divide into {what}")]
    Chunks {
        /// Layers of the stage.
        layers: usize,
        /// What they should be cut into.
        what: String,
    },
    /// A chunk would hold less than nothing.
    #[error("the {which} chunk has no layer to give for the {what}: use fewer chunks")]
    Short {
        /// First or last.
        which: &'static str,
        /// Embedding or loss.
        what: &'static str,
    },
    /// More virtual stages than can be.
    #[error("{stages} stages of {chunks} chunks are more than {MOST} virtual stages")]
    TooMany {
        /// Stages.
        stages: usize,
        /// Chunks of each.
        chunks: usize,
    },
    /// Counts that are not the model's.
    #[error("{parts} counts with {sum} layers in sum, for {layers} layers on {stages} stages")]
    Counts {
        /// Number of counts.
        parts: usize,
        /// Their sum.
        sum: usize,
        /// Layers.
        layers: usize,
        /// Stages.
        stages: usize,
    },
}

fn counted(extra: usize) -> String {
    if extra > 0 { format!(" ({extra} of them for embedding and loss)") } else { String::new() }
}

impl LayerSplit {
    /// Layers of each virtual stage, in the order of the model: a multiple of `stages` counts that sum to `layers`.
    pub fn counts(&self) -> Result<Vec<usize>, SplitError> {
        let stages = self.stages.max(1);
        self.bound(1)?;
        let counts = match &self.way {
            Way::Even { chunks, embedding, loss } => self.even(*chunks, *embedding, *loss)?,
            Way::Ends { chunks, first, last } => self.ends((*chunks).max(1), *first, *last)?,
            Way::Stages(counts) if counts.len() == stages => counts.clone(),
            Way::Virtual(counts) if !counts.is_empty() && counts.len().is_multiple_of(stages) => counts.clone(),
            Way::Stages(counts) | Way::Virtual(counts) => return Err(self.differ(counts)),
            Way::Balanced => {
                (0..stages).map(|s| self.layers / stages + usize::from(s < self.layers % stages)).collect()
            }
            &Way::Weighed { embedding, layer, head } => self.weighed(embedding, layer.max(1), head),
        };
        let sum = counts.iter().try_fold(0usize, |a, n| a.checked_add(*n));
        if sum == Some(self.layers) { Ok(counts) } else { Err(self.differ(&counts)) }
    }

    fn weighed(&self, embedding: u64, layer: u64, head: u64) -> Vec<usize> {
        let (layer, wanted) = (u128::from(layer), self.layers as u128);
        let last = self.stages.max(1) - 1;
        let fixed = |stage: usize| {
            u128::from(if stage == 0 { embedding } else { 0 }) + u128::from(if stage == last { head } else { 0 })
        };
        // Layers that fit on a stage that weighs at most `limit`.
        let fit = |stage: usize, limit: u128| (limit.saturating_sub(fixed(stage)) / layer).min(wanted);
        let fits = |limit: u128| (0..=last).map(|s| fit(s, limit)).sum::<u128>() >= wanted;
        let (mut low, mut high) = (0, fixed(0).max(fixed(last)) + wanted * layer);
        while low < high {
            let middle = (low + high) / 2;
            if fits(middle) { high = middle } else { low = middle + 1 }
        }
        let mut counts: Vec<u128> = (0..=last).map(|s| fit(s, low)).collect();
        let mut over = counts.iter().sum::<u128>() - wanted;
        // The lightest division is reached by more stages than are needed: the last of them give a layer back.
        for stage in (0..=last).rev().filter(|s| fixed(*s) + fit(*s, low) * layer == low) {
            if over > 0 && counts[stage] > 0 {
                (counts[stage], over) = (counts[stage] - 1, over - 1);
            }
        }
        counts.into_iter().map(|n| n as usize).collect()
    }

    /// Refuses what would need too much memory to write down.
    fn bound(&self, chunks: usize) -> Result<(), SplitError> {
        let fits = self.stages.checked_mul(chunks).is_some_and(|n| n <= MOST);
        if fits { Ok(()) } else { Err(SplitError::TooMany { stages: self.stages, chunks }) }
    }

    fn differ(&self, counts: &[usize]) -> SplitError {
        let sum = counts.iter().fold(0usize, |a, n| a.saturating_add(*n));
        SplitError::Counts { parts: counts.len(), sum, layers: self.layers, stages: self.stages }
    }

    fn even(&self, chunks: VirtualStages, embedding: bool, loss: bool) -> Result<Vec<usize>, SplitError> {
        let stages = self.stages.max(1);
        let extra = usize::from(embedding) + usize::from(loss);
        let total = self.layers.saturating_add(extra);
        if !total.is_multiple_of(stages) {
            return Err(SplitError::Stages { total, extra, stages });
        }
        let per_stage = total / stages;
        let (per_chunk, chunks) = match chunks {
            VirtualStages::Count(n) => (per_stage / n.max(1), n.max(1)),
            VirtualStages::OfLayers(n) => (n, per_stage / n.max(1)),
        };
        if per_chunk.checked_mul(chunks) != Some(per_stage) || chunks == 0 {
            let what = match chunks {
                0 => format!("chunks of {per_chunk}"),
                _ => format!("{chunks} chunks of {per_chunk}"),
            };
            return Err(SplitError::Chunks { layers: per_stage, what });
        }
        self.bound(chunks)?;
        let mut counts = vec![per_chunk; stages * chunks];
        let ends = [(embedding, 0, "first", "embedding"), (loss, counts.len() - 1, "last", "loss")];
        for (_, at, which, what) in ends.into_iter().filter(|e| e.0) {
            counts[at] = counts[at].checked_sub(1).ok_or(SplitError::Short { which, what })?;
        }
        Ok(counts)
    }

    fn ends(&self, chunks: usize, first: Option<usize>, last: Option<usize>) -> Result<Vec<usize>, SplitError> {
        let stages = self.stages.max(1);
        self.bound(chunks)?;
        let stated = usize::from(first.is_some()) + usize::from(last.is_some());
        let taken = first.unwrap_or(0).saturating_add(last.unwrap_or(0));
        let others = stages.saturating_sub(stated);
        let wrong = SplitError::Ends { layers: self.layers, taken, others };
        let rest = self.layers.checked_sub(taken).ok_or(wrong.clone())?;
        if stated > stages || rest.checked_rem(others).unwrap_or(rest) != 0 {
            return Err(wrong);
        }
        let of_stage = |s: usize| match (first, last) {
            (Some(n), _) if s == 0 => n,
            (_, Some(n)) if s + 1 == stages => n,
            _ => rest / others.max(1),
        };
        let per_stage: Vec<usize> = (0..stages).map(of_stage).collect();
        if let Some(&layers) = per_stage.iter().find(|n| !n.is_multiple_of(chunks)) {
            return Err(SplitError::Chunks { layers, what: format!("{chunks} chunks") });
        }
        Ok((0..chunks).flat_map(|_| per_stage.iter().map(|n| n / chunks)).collect())
    }
}

/// What a chunk of a stage holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    /// Blocks, counted over the whole model.
    pub blocks: Range<usize>,
    /// The embedding comes before them.
    pub embedding: bool,
    /// Final norm and head come after them.
    pub head: bool,
}

/// The chunks of a stage, from the counts of all virtual stages.
pub fn chunks_of_stage(counts: &[usize], stages: usize, stage: usize) -> Vec<ChunkPlan> {
    let mut start = 0;
    let mut all = Vec::with_capacity(counts.len());
    for (i, n) in counts.iter().enumerate() {
        all.push(ChunkPlan { blocks: start..start + n, embedding: i == 0, head: i + 1 == counts.len() });
        start += n;
    }
    all.into_iter().skip(stage).step_by(stages.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(layers: usize, stages: usize, way: Way) -> Result<Vec<usize>, String> {
        LayerSplit { layers, stages, way }.counts().map_err(|e| e.to_string())
    }

    fn even(chunks: VirtualStages, embedding: bool, loss: bool) -> Way {
        Way::Even { chunks, embedding, loss }
    }

    #[test]
    fn equal_stages_and_chunks() {
        use VirtualStages::*;
        assert_eq!(counts(8, 4, even(Count(1), false, false)).unwrap(), [2, 2, 2, 2]);
        assert_eq!(counts(8, 2, even(Count(2), false, false)).unwrap(), [2, 2, 2, 2]);
        // 40 layers, 2 stages, 2 layers a virtual stage: 10 chunks.
        assert_eq!(counts(40, 2, even(OfLayers(2), false, false)).unwrap(), vec![2; 20]);
        assert_eq!(counts(6, 2, even(Count(2), true, true)).unwrap(), [1, 2, 2, 1]);
        assert_eq!(counts(7, 2, even(OfLayers(2), false, true)).unwrap(), [2, 2, 2, 1]);
        let wrong = counts(6, 4, even(Count(1), false, true)).unwrap_err();
        assert_eq!(wrong, "7 layers (1 of them for embedding and loss) do not divide into 4 equal stages");
        assert!(counts(12, 4, even(OfLayers(2), false, false)).unwrap_err().contains("3 layers of a stage"));
        assert!(counts(4, 2, even(OfLayers(3), false, false)).unwrap_err().contains("chunks of 3"));
        assert!(counts(0, 1, even(Count(1), true, false)).is_ok_and(|c| c == [0]));
        assert!(counts(0, 2, even(Count(2), true, true)).unwrap_err().contains("do not divide into 2 chunks"));
    }

    #[test]
    fn stated_ends() {
        let ends = |chunks, first, last| Way::Ends { chunks, first, last };
        assert_eq!(counts(8, 4, ends(1, Some(2), None)).unwrap(), [2, 2, 2, 2]);
        assert_eq!(counts(5, 4, ends(1, None, Some(2))).unwrap(), [1, 1, 1, 2]);
        assert_eq!(counts(16, 3, ends(2, Some(4), Some(4))).unwrap(), [2, 4, 2, 2, 4, 2]);
        assert_eq!(counts(5, 2, ends(1, Some(2), Some(3))).unwrap(), [2, 3]);
        assert!(counts(8, 4, ends(1, Some(1), None)).unwrap_err().contains("8 layers less the 1"));
        assert!(counts(8, 2, ends(1, Some(1), Some(1))).is_err(), "6 layers are left over");
        assert!(counts(2, 2, ends(1, Some(3), None)).is_err());
        assert!(counts(9, 3, ends(2, Some(3), Some(4))).unwrap_err().contains("3 layers of a stage"));
    }

    #[test]
    fn listed_and_balanced() {
        assert_eq!(counts(4, 4, Way::Stages(vec![1, 1, 2, 0])).unwrap(), [1, 1, 2, 0]);
        assert!(counts(4, 2, Way::Stages(vec![1, 2])).unwrap_err().contains("2 counts with 3 layers in sum, for 4"));
        assert!(counts(4, 2, Way::Stages(vec![1, 1, 1, 1])).is_err(), "four counts for two stages");
        assert_eq!(counts(4, 2, Way::Virtual(vec![1, 1, 1, 1])).unwrap(), [1, 1, 1, 1]);
        assert!(counts(4, 2, Way::Virtual(vec![])).is_err());
        assert!(counts(4, 2, Way::Virtual(vec![usize::MAX, 5])).is_err(), "no overflow");
        assert_eq!(counts(5, 4, Way::Balanced).unwrap(), [2, 1, 1, 1]);
        assert!(counts(1 << 40, 1 << 30, Way::Balanced).unwrap_err().contains("more than 1048576"));
        assert!(counts(1 << 40, 2, even(VirtualStages::OfLayers(1), false, false)).unwrap_err().contains("more than"));
    }

    #[test]
    fn weighed_stages() {
        let weighed = |layers, stages, embedding, layer, head| {
            counts(layers, stages, Way::Weighed { embedding, layer, head }).unwrap()
        };
        assert_eq!(weighed(5, 4, 0, 1, 0), [2, 1, 1, 1], "as Balanced");
        // BLOOM's 70 layers on 12 stages, embedding and head as a layer each (`type:transformer|embedding`).
        let bloom = weighed(70, 12, 1, 1, 1);
        assert_eq!((bloom[0], bloom[11]), (5, 5));
        assert!(bloom[1..11].iter().all(|n| *n == 6));
        assert_eq!(weighed(8, 2, 5, 2, 6), [4, 4], "13 and 14");
        assert_eq!(weighed(4, 3, 100, 1, 0), [0, 2, 2], "a heavy embedding stands alone");
        assert_eq!(weighed(3, 1, 7, 1, 9), [3]);
        // No division is lighter: all of them, for small pipelines.
        for (layers, e, w, h) in [(5, 3, 2, 1), (6, 0, 3, 7), (7, 2, 1, 2), (4, 9, 1, 9)] {
            let weight = |c: &[usize]| (e + c[0] as u64 * w).max(c[1] as u64 * w).max(c[2] as u64 * w + h);
            let all = (0..=layers).flat_map(|a| (0..=layers - a).map(move |b| [a, b, layers - a - b]));
            let lightest = all.map(|c| weight(&c)).min().unwrap();
            assert_eq!(weight(&weighed(layers, 3, e, w, h)), lightest, "{layers} {e} {w} {h}");
        }
    }

    #[test]
    fn every_block_has_one_place() {
        let counts = [1, 2, 2, 1];
        let of = |stage| chunks_of_stage(&counts, 2, stage);
        assert_eq!(
            of(0),
            [
                ChunkPlan { blocks: 0..1, embedding: true, head: false },
                ChunkPlan { blocks: 3..5, embedding: false, head: false },
            ]
        );
        assert_eq!(
            of(1),
            [
                ChunkPlan { blocks: 1..3, embedding: false, head: false },
                ChunkPlan { blocks: 5..6, embedding: false, head: true },
            ]
        );
    }
}
