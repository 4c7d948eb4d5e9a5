//! What constructors of layers are given.

use std::sync::Arc;

use ferrotron_base::{ShardBox, ShardSpec};
use ferrotron_device::{Device, Stream};
use ferrotron_runtime::{Groups, Init, ParamId, ParamSpec, ParamTable};

/// Which part of the activations a replicated parameter sees on one tensor-parallel rank, and so which part of its
/// gradient's sum is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// All: the gradient is whole.
    All,
    /// The rows of this rank, when sequence parallel: the gradient is partial then.
    Rows,
    /// The heads of this rank: the gradient is partial in any group of more than one (norms of q and k, routers).
    Heads,
}

/// Where layers register their parameters, and which share of each is theirs.
pub struct Builder<'a> {
    /// The stage's parameters.
    pub table: &'a mut ParamTable,
    /// For constant tables (rotations).
    pub device: &'a Arc<dyn Device>,
    /// Stream on which those are written.
    pub stream: &'a Stream,
    /// Rank in the tensor-parallel group.
    pub tp_rank: usize,
    /// Size of the tensor-parallel group.
    pub tp_size: usize,
    /// Activations between blocks are split by rows over that group.
    pub sequence_parallel: bool,
    /// Rank in the expert-parallel group.
    pub ep_rank: usize,
    /// Size of the expert-parallel group.
    pub ep_size: usize,
    /// Experts' matrices are split over the tensor-parallel group, as others are.
    pub split_experts: bool,
    /// Blocks' parameters lie in shares on the data-parallel ranks (ZeRO-3). Off until set.
    pub shard_blocks: bool,
}

impl<'a> Builder<'a> {
    /// A builder for a rank of these groups.
    pub fn new(
        table: &'a mut ParamTable,
        device: &'a Arc<dyn Device>,
        stream: &'a Stream,
        groups: &Groups,
        sequence_parallel: bool,
    ) -> Builder<'a> {
        let (tp_rank, tp_size) = (groups.tp.rank(), groups.tp.size());
        Builder {
            table,
            device,
            stream,
            tp_rank,
            tp_size,
            sequence_parallel: sequence_parallel && tp_size > 1,
            ep_rank: groups.ep.rank(),
            ep_size: groups.ep.size(),
            split_experts: groups.etp.size() > 1,
            shard_blocks: false,
        }
    }

    /// A builder whose matrices are split as experts' are.
    pub(crate) fn of_experts(&mut self) -> Builder<'_> {
        let whole = !self.split_experts;
        Builder {
            table: &mut *self.table,
            tp_rank: if whole { 0 } else { self.tp_rank },
            tp_size: if whole { 1 } else { self.tp_size },
            ..*self
        }
    }

    /// First row and number of rows of this rank's share of each of `parts`, which lie one after the other and are split
    /// evenly over the group.
    ///
    /// # Panics
    /// When a part does not divide: validation of the configuration comes first.
    pub fn even_rows(&self, name: &str, parts: &[usize]) -> Vec<(usize, usize)> {
        let mut start = 0;
        let mut own = vec![];
        for &part in parts {
            assert!(part.is_multiple_of(self.tp_size), "{name}: {part} rows do not divide over {} ranks", self.tp_size);
            let n = part / self.tp_size;
            own.push((start + self.tp_rank * n, n));
            start += part;
        }
        own
    }

    /// Some rows of a tensor: first row and number of rows of each part.
    pub fn rows(name: &str, global: &[usize], parts: &[(usize, usize)]) -> ShardSpec {
        let boxes = parts.iter().map(|&(start, n)| ShardBox::rows(global, start, n)).collect();
        ShardSpec { name: name.into(), global: global.to_vec(), boxes }
    }

    /// This rank's rows of a tensor made of `parts` stacked along dim 0, each split evenly over the group.
    ///
    /// # Panics
    /// As [`Builder::even_rows`].
    pub fn split_rows(&self, name: &str, parts: &[usize], other_dims: &[usize]) -> ShardSpec {
        let mut global = vec![parts.iter().sum::<usize>()];
        global.extend_from_slice(other_dims);
        Builder::rows(name, &global, &self.even_rows(name, parts))
    }

    /// This rank's columns of a `[rows, cols]` matrix.
    ///
    /// # Panics
    /// As [`Builder::even_rows`].
    pub fn split_cols(&self, name: &str, rows: usize, cols: usize) -> ShardSpec {
        assert!(cols.is_multiple_of(self.tp_size), "{name}: {cols} columns do not divide over {} ranks", self.tp_size);
        let n = cols / self.tp_size;
        let part = ShardBox { start: vec![0, self.tp_rank * n], len: vec![rows, n] };
        ShardSpec { name: name.into(), global: vec![rows, cols], boxes: vec![part] }
    }

    /// Registers a vector of which every rank of the group holds a copy.
    pub fn replicated_vector(&mut self, name: String, n: usize, init: Init, sees: Sees) -> ParamId {
        let spec = ParamSpec::vector(ShardSpec::whole(name, &[n]), init);
        self.replicated(spec, sees)
    }

    /// Registers a parameter of which every rank of the group holds a copy.
    pub fn replicated(&mut self, spec: ParamSpec, sees: Sees) -> ParamId {
        let partial = match sees {
            Sees::All => false,
            Sees::Rows => self.sequence_parallel,
            Sees::Heads => self.tp_size > 1,
        };
        self.table.add(ParamSpec { tp_replicated: self.tp_size > 1, grad_partial_over_tp: partial, ..spec })
    }
}
