//! What a rank hands over to be saved: named ranges of its local copies.

use std::fmt;
use std::ops::Range;

use ferrotron_base::{DType, ShardSpec};

/// Which state of a parameter an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The parameter as the model computes with it.
    Param,
    /// Its fp32 master copy, when the parameter itself is bf16 or fp16.
    Master,
    /// Adam's first moment.
    ExpAvg,
    /// Adam's second moment.
    ExpAvgSq,
    /// SGD's momentum.
    Momentum,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [Kind::Param, Kind::Master, Kind::ExpAvg, Kind::ExpAvgSq, Kind::Momentum];

    /// The string that stands for it in files. Stable.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Param => "param",
            Kind::Master => "master",
            Kind::ExpAvg => "exp_avg",
            Kind::ExpAvgSq => "exp_avg_sq",
            Kind::Momentum => "momentum",
        }
    }

    /// Inverse of [`Kind::name`].
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Callback of [`Source::Fill`]: writes the data's bytes `offset .. offset + buf.len()` into `buf`.
pub type FillFn<'a> = dyn FnMut(usize, &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + 'a;

/// Where the data of an entry comes from. Nothing is copied as a whole: the writer streams through at most 1 MiB.
pub enum Source<'a> {
    /// Elements as they lie in memory (little-endian).
    Bytes(&'a [u8]),
    /// f32 elements; the entry's dtype must be F32.
    F32(&'a [f32]),
    /// Asked for piece by piece, in ascending order, for data that lies on a device. Pieces are whole elements.
    Fill(Box<FillFn<'a>>),
}

/// One tensor state, or the range of it that this rank owns.
pub struct Entry<'a> {
    /// Which state.
    pub kind: Kind,
    /// Global shape and the boxes of the local copy.
    pub spec: ShardSpec,
    /// Elements of the local copy that this entry holds; a distributed optimizer owns only a part.
    pub range: Range<usize>,
    /// Element type of `data`.
    pub dtype: DType,
    /// The elements of `range`, in local order.
    pub data: Source<'a>,
}

impl<'a> Entry<'a> {
    /// The whole local copy, in f32.
    pub fn f32(kind: Kind, spec: ShardSpec, data: &'a [f32]) -> Entry<'a> {
        let range = 0..spec.local_numel();
        Entry { kind, spec, range, dtype: DType::F32, data: Source::F32(data) }
    }

    /// Name of the entry inside its shard: `kind/name`, and `@offset` for an entry that does not start at 0.
    pub fn key(&self) -> String {
        key(self.kind, &self.spec.name, self.range.start)
    }
}

pub(crate) fn key(kind: Kind, name: &str, offset: usize) -> String {
    if offset == 0 { format!("{kind}/{name}") } else { format!("{kind}/{name}@{offset}") }
}
