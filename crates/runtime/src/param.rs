//! What a parameter is: constructors of layers register it here, before any memory exists.

use std::ops::Range;

use ferrotron_base::philox::{fill_normal, hash_name, mix};
use ferrotron_base::{DType, ShardSpec};

/// A registered parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// Initial values: functions of (seed, name, global element index) and so of no layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// All 1.
    Ones,
    /// All 0.
    Zeros,
}

/// Which weight decay applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecayClass {
    /// Weight decay as configured: matrices.
    Decay,
    /// None: biases and other vectors.
    NoDecay,
}

/// Whether another pipeline stage holds the same parameter (a word embedding that the head shares).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Tied {
    /// No.
    #[default]
    No,
    /// Yes, and this is the one that counts in norms and checkpoints.
    Original,
    /// Yes, and this is the other one: same name, hence same initial values.
    Copy,
}

/// The end of a parameter's local copy that some tensor-parallel ranks hold all of them: rows of a key and value head that
/// several ranks' queries read ([`crate::Groups::kv`]). Each has a part of its gradient's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedEnd {
    /// Elements, at the end of the local copy.
    pub elements: usize,
    /// This rank is the one that counts them in norms and writes them to checkpoints.
    pub counts: bool,
}

/// A parameter as this rank holds it.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// Name, global shape and the boxes held here.
    pub shard: ShardSpec,
    /// Storage, when it is not the model's.
    pub dtype: Option<DType>,
    /// Initial values.
    pub init: Init,
    /// Weight decay.
    pub decay: DecayClass,
    /// Every tensor-parallel rank holds the same copy: it counts once in the norm.
    pub tp_replicated: bool,
    /// The end of the local copy that a few tensor-parallel ranks share.
    pub shared_end: Option<SharedEnd>,
    /// Each tensor-parallel rank has a part of the gradient's sum (sequence parallel norms): summed over TP.
    pub grad_partial_over_tp: bool,
    /// An expert's: replicas are the expert data-parallel ranks.
    pub expert: bool,
    /// False: no gradient, no optimizer state.
    pub trainable: bool,
    /// Shared with another pipeline stage: gradients are summed over both, in a bucket of its own.
    pub tied: Tied,
    /// Of the data-parallel ranks each keeps a share, with the rest of this unit (ZeRO-3); set by [`ParamTable::add`].
    pub unit: Option<usize>,
}

impl ParamSpec {
    /// A trainable matrix that weight decay applies to.
    pub fn matrix(shard: ShardSpec, std: f32) -> ParamSpec {
        ParamSpec {
            shard,
            dtype: None,
            init: Init::Normal { std },
            decay: DecayClass::Decay,
            tp_replicated: false,
            shared_end: None,
            grad_partial_over_tp: false,
            expert: false,
            trainable: true,
            tied: Tied::No,
            unit: None,
        }
    }

    /// A trainable vector without weight decay.
    pub fn vector(shard: ShardSpec, init: Init) -> ParamSpec {
        ParamSpec { init, decay: DecayClass::NoDecay, ..ParamSpec::matrix(shard, 0.0) }
    }

    /// Elements held here.
    pub fn numel(&self) -> usize {
        self.shard.local_numel()
    }

    /// Elements of the local copy that rank `tp_rank` of the tensor-parallel group answers for in norms and checkpoints,
    /// so that over all ranks of the model each element counts once.
    pub fn counted(&self, tp_rank: usize) -> Range<usize> {
        let copy = self.tied == Tied::Copy || self.tp_replicated && tp_rank > 0;
        let elsewhere = self.shared_end.filter(|s| !s.counts).map_or(0, |s| s.elements);
        0..if copy { 0 } else { self.numel() - elsewhere }
    }

    /// Initial values of the local copy under `seed`.
    pub fn initial_values(&self, seed: u64) -> Vec<f32> {
        let n = self.numel();
        match self.init {
            Init::Ones => vec![1.0; n],
            Init::Zeros => vec![0.0; n],
            Init::Normal { std } => {
                let key = mix(seed, hash_name(&self.shard.name));
                let mut out = vec![0.0; n];
                self.shard.for_each_run(|global, local, run| {
                    let out = &mut out[local..local + run];
                    fill_normal(key, global as u64, out);
                    out.iter_mut().for_each(|v| *v *= std);
                });
                out
            }
        }
    }
}

/// All parameters of a stage, in the order of registration.
#[derive(Clone, Debug, Default)]
pub struct ParamTable {
    specs: Vec<ParamSpec>,
    units: usize,
    unit: Option<usize>,
}

impl ParamTable {
    /// Registers a parameter.
    ///
    /// # Panics
    /// When the name is taken: two parameters of one name would overwrite each other in a checkpoint.
    pub fn add(&mut self, spec: ParamSpec) -> ParamId {
        let name = &spec.shard.name;
        assert!(self.find(name).is_none(), "parameter {name} is registered twice");
        self.specs.push(ParamSpec { unit: self.unit, ..spec });
        ParamId(self.specs.len() - 1)
    }

    /// Begins a unit, counted from 0: what is registered until [`ParamTable::end_unit`] is gathered together while its
    /// layer runs, and lies in shares between times.
    pub fn begin_unit(&mut self) -> usize {
        let unit = self.units;
        self.units += 1;
        self.unit = Some(unit);
        unit
    }

    /// Ends the unit.
    pub fn end_unit(&mut self) {
        self.unit = None;
    }

    /// The parameter of this name.
    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.specs.iter().position(|s| s.shard.name == name).map(ParamId)
    }

    /// What was registered.
    pub fn spec(&self, id: ParamId) -> &ParamSpec {
        &self.specs[id.0]
    }

    /// All parameters, in the order of registration.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (ParamId, &ParamSpec)> {
        self.specs.iter().enumerate().map(|(i, s)| (ParamId(i), s))
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// True when none is registered.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Elements held here, of all parameters.
    pub fn numel(&self) -> usize {
        self.specs.iter().map(ParamSpec::numel).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrotron_base::ShardBox;

    #[test]
    fn a_shard_draws_what_the_whole_draws() {
        let whole = ParamSpec::matrix(ShardSpec::whole("w", &[6, 10]), 0.02).initial_values(7);
        let boxes =
            vec![ShardBox { start: vec![4, 5], len: vec![2, 5] }, ShardBox { start: vec![0, 5], len: vec![1, 5] }];
        let part = ShardSpec { name: "w".into(), global: vec![6, 10], boxes };
        let part = ParamSpec::matrix(part, 0.02).initial_values(7);
        let expect: Vec<f32> = [4, 5, 0].iter().flat_map(|r| whole[r * 10 + 5..r * 10 + 10].to_vec()).collect();
        assert_eq!(part, expect);
    }
}
