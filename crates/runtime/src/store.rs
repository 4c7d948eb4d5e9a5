//! Parameters and main gradients in flat buffers.
//!
//! Parameters of one dtype share a flat buffer, in reverse order of registration (backward finishes the last layers
//! first), each aligned to 64 elements, cut into buckets whose ends are padded to lcm(N, 128) for N data-parallel
//! ranks. Experts, which have replicas on other ranks, have buffers of their own. Main gradients, F32, use the same
//! offsets. ZeRO-1 and -2 are ranges of these buffers. A unit (ZeRO-3) has buffers of its own, of one bucket each, of
//! which this rank keeps its share only; see [`crate::windows`].

use std::ops::Range;

use ferrotron_base::{DType, lcm, round_up};
use ferrotron_device::pool::persistent;
use ferrotron_device::{Device, Error, Result, Stream, Tensor, host};

use crate::{DecayClass, ParamId, ParamSpec, ParamTable, Tied};

/// Parameters start at multiples of this many elements.
const PARAM_ALIGN: usize = 64;
/// Bucket ends are multiples of this, so that every rank's share is aligned.
const BUCKET_ALIGN: usize = 128;

/// How the store is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Storage of parameters that name none of their own.
    pub dtype: DType,
    /// Data-parallel ranks; with several instances of the distributed optimizer, those of one.
    pub dp_size: usize,
    /// This rank among them.
    pub dp_rank: usize,
    /// Expert data-parallel ranks: replicas of an expert.
    pub expert_dp_size: usize,
    /// This rank among them.
    pub expert_dp_rank: usize,
    /// Each rank owns (updates, keeps optimizer state for) only its share of every bucket.
    pub shard_optimizer: bool,
    /// A bucket closes when it holds this many elements.
    pub bucket_elements: usize,
    /// Seed of the initial values.
    pub seed: u64,
}

impl StoreOptions {
    /// Replicas of an expert or of another parameter: how many, and this rank's place.
    fn replicas(&self, experts: bool) -> (usize, usize) {
        if experts { (self.expert_dp_size, self.expert_dp_rank) } else { (self.dp_size, self.dp_rank) }
    }

    /// This rank's part of a bucket, of experts or others, that is divided between the replicas.
    fn share(&self, experts: bool, bucket: &Range<usize>) -> Range<usize> {
        let (ranks, rank) = self.replicas(experts);
        let n = bucket.len() / ranks;
        let start = bucket.start + rank * n;
        start..start + n
    }
}

/// A flat buffer.
pub struct Buffer {
    /// Storage of its parameters.
    pub dtype: DType,
    /// Its parameters are experts'.
    pub experts: bool,
    /// The unit whose parameters it has; then this rank keeps its share of them.
    pub unit: Option<usize>,
    /// Parameters kept here, `dtype[n]`: all, or the share.
    pub param: Tensor,
    /// Main gradients, `F32[n]`; absent when nothing here is trainable.
    pub grad: Option<Tensor>,
    /// Element ranges that are reduced together, in the order in which backward completes them.
    pub buckets: Vec<Range<usize>>,
    /// Element of the buffer that is kept here first.
    first: usize,
}

impl Buffer {
    /// Elements of the whole buffer.
    pub fn elements(&self) -> usize {
        self.buckets.last().map_or(0, |b| b.end)
    }

    /// Parameters of a range of the whole buffer, which must be kept here.
    pub fn params_of(&self, range: &Range<usize>) -> Tensor {
        self.param.view(range.start - self.first, [range.len()])
    }

    /// Main gradients of a range of the whole buffer, which must be kept here; none when nothing is trainable.
    pub fn grads_of(&self, range: &Range<usize>) -> Option<Tensor> {
        self.grad.as_ref().map(|g| g.view(range.start - self.first, [range.len()]))
    }
}

/// A range of one parameter that this rank updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRange {
    /// The parameter.
    pub id: ParamId,
    /// Which buffer.
    pub buffer: usize,
    /// Elements of the buffer.
    pub range: Range<usize>,
    /// Where in the parameter's local copy the range starts.
    pub offset: usize,
}

/// A rank's parameters and gradients.
pub struct ParamStore {
    table: ParamTable,
    options: StoreOptions,
    buffers: Vec<Buffer>,
    /// By parameter: buffer and first element.
    places: Vec<(usize, usize)>,
}

impl ParamStore {
    /// Lays out, allocates and initialises.
    pub fn new(table: ParamTable, options: StoreOptions, device: &dyn Device, s: &Stream) -> Result<ParamStore> {
        let kind_of = |p: &ParamSpec| (p.dtype.unwrap_or(options.dtype), p.trainable, p.expert, p.unit);
        let mut kinds: Vec<(DType, bool, bool, Option<usize>)> = vec![];
        for kind in table.iter().map(|(_, spec)| kind_of(spec)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let mut places = vec![(0, 0); table.len()];
        let mut buffers = vec![];
        for kind in kinds {
            let (dtype, trainable, experts, unit) = kind;
            let members = table.iter().rev().filter(|(_, p)| kind_of(p) == kind);
            let members: Vec<Member> =
                members.map(|(id, p)| Member { id, numel: p.numel(), alone: p.tied != Tied::No }).collect();
            let bucket_elements = if unit.is_some() { usize::MAX } else { options.bucket_elements };
            let (offsets, buckets) = lay_out(&members, bucket_elements, options.replicas(experts).0);
            for (m, offset) in members.iter().zip(offsets) {
                places[m.id.0] = (buffers.len(), offset);
            }
            let whole = 0..buckets.last().map_or(0, |b| b.end);
            let kept = if unit.is_some() { options.share(experts, &whole) } else { whole };
            let param = persistent(device, s, "parameters", dtype, kept.len())?;
            let grad =
                if trainable { Some(persistent(device, s, "main gradients", DType::F32, kept.len())?) } else { None };
            buffers.push(Buffer { dtype, experts, unit, param, grad, buckets, first: kept.start });
        }
        let store = ParamStore { table, options, buffers, places };
        store.initialise(device, s)?;
        Ok(store)
    }

    fn initialise(&self, device: &dyn Device, s: &Stream) -> Result<()> {
        if !device.info().computes {
            return Ok(());
        }
        let ids: Vec<ParamId> = self.table.iter().map(|(id, _)| id).collect();
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        // Values are drawn by threads, a few parameters at a time so that the host never holds a second model.
        for some in ids.chunks(workers) {
            let values: Vec<Vec<f32>> = std::thread::scope(|scope| {
                let jobs: Vec<_> = some
                    .iter()
                    .map(|&id| scope.spawn(move || self.table.spec(id).initial_values(self.options.seed)))
                    .collect();
                jobs.into_iter().map(|j| j.join().expect("drawing numbers does not panic")).collect()
            });
            for (&id, values) in some.iter().zip(&values) {
                let (first, mut kept) = self.kept(id);
                host::write_f32(device, s, &values[first..first + kept.numel()], &mut kept)?;
            }
        }
        Ok(())
    }

    /// What was registered.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// How it is laid out.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The flat buffers.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Buffer and first element of a parameter.
    pub fn place(&self, id: ParamId) -> (usize, usize) {
        self.places[id.0]
    }

    /// A parameter's values, in its storage dtype.
    ///
    /// # Panics
    /// For a parameter of a unit, which is whole only in a window: [`crate::Ctx::weight`].
    pub fn weight(&self, id: ParamId) -> Tensor {
        let (buffer, offset) = self.whole_place(id);
        self.buffers[buffer].param.view(offset, self.table.spec(id).shard.local_shape())
    }

    /// A parameter's main gradient, F32.
    ///
    /// # Panics
    /// As [`ParamStore::weight`]; see [`crate::Ctx::grad`].
    pub fn grad(&self, id: ParamId) -> Result<Tensor> {
        let (buffer, offset) = self.whole_place(id);
        let spec = self.table.spec(id);
        match &self.buffers[buffer].grad {
            Some(g) => Ok(g.view(offset, spec.shard.local_shape())),
            None => {
                Err(Error::Parameter { name: spec.shard.name.clone(), what: "is frozen: it has no gradient".into() })
            }
        }
    }

    fn whole_place(&self, id: ParamId) -> (usize, usize) {
        let spec = self.table.spec(id);
        assert!(spec.unit.is_none(), "parameter {} lies in shares: no rank has it whole", spec.shard.name);
        self.places[id.0]
    }

    /// What this rank keeps of a parameter between steps: the first element of the local copy, and the values, flat. All
    /// of it but of a unit's parameter.
    pub fn kept(&self, id: ParamId) -> (usize, Tensor) {
        let (buffer, start) = self.places[id.0];
        let b = &self.buffers[buffer];
        let (first, last) = (start.max(b.first), (start + self.table.spec(id).numel()).min(b.first + b.param.numel()));
        if first < last { (first - start, b.params_of(&(first..last))) } else { (0, b.param.view(0, [0])) }
    }

    /// Buffers of a unit, one for each kind of storage in it.
    pub fn buffers_of_unit(&self, unit: usize) -> Vec<usize> {
        let of = |(i, b): (usize, &Buffer)| (b.unit == Some(unit)).then_some(i);
        self.buffers.iter().enumerate().filter_map(of).collect()
    }

    /// Sets all main gradients to zero.
    pub fn zero_grads(&self, device: &dyn Device, s: &Stream) -> Result<()> {
        for g in self.buffers.iter().filter_map(|b| b.grad.as_ref()) {
            device.fill_bytes(s, g.ptr(), g.bytes(), 0)?;
        }
        Ok(())
    }

    /// What this rank updates: all trainable parameters, or its share of every bucket.
    pub fn owned_ranges(&self) -> Vec<OwnedRange> {
        let mut out = vec![];
        for (id, spec) in self.table.iter().filter(|(_, p)| p.trainable) {
            let (buffer, start) = self.places[id.0];
            let end = start + spec.numel();
            for b in &self.buffers[buffer].buckets {
                let share = self.share(buffer, b);
                let range = start.max(share.start)..end.min(share.end);
                if !range.is_empty() {
                    let offset = range.start - start;
                    out.push(OwnedRange { id, buffer, range, offset });
                }
            }
        }
        out
    }

    /// The part of a bucket of a buffer that this rank owns.
    pub fn share(&self, buffer: usize, bucket: &Range<usize>) -> Range<usize> {
        let experts = self.buffers[buffer].experts;
        if self.options.shard_optimizer { self.options.share(experts, bucket) } else { bucket.clone() }
    }

    /// The bucket of a parameter: its buffer and its place among the buffer's buckets. A parameter lies in one bucket.
    pub fn bucket_of(&self, id: ParamId) -> (usize, usize) {
        let (buffer, start) = self.places[id.0];
        let buckets = &self.buffers[buffer].buckets;
        (buffer, buckets.partition_point(|b| b.end <= start).min(buckets.len().saturating_sub(1)))
    }

    /// The decay class of a parameter.
    pub fn decay(&self, id: ParamId) -> DecayClass {
        self.table.spec(id).decay
    }
}

/// A parameter to be placed.
struct Member {
    id: ParamId,
    numel: usize,
    /// Shares a bucket with no other.
    alone: bool,
}

/// Offsets of the members (in the given order) and the buckets, of `bucket_elements` and for so many ranks.
fn lay_out(members: &[Member], bucket_elements: usize, ranks: usize) -> (Vec<usize>, Vec<Range<usize>>) {
    let end_align = lcm(ranks, BUCKET_ALIGN);
    let (mut at, mut bucket_start) = (0, 0);
    let (mut offsets, mut buckets) = (vec![], vec![]);
    for (i, m) in members.iter().enumerate() {
        at = round_up(at, PARAM_ALIGN);
        offsets.push(at);
        at += m.numel;
        let next_alone = members.get(i + 1).is_none_or(|n| n.alone);
        if at - bucket_start >= bucket_elements || m.alone || next_alone {
            at = round_up(at, end_align);
            buckets.push(bucket_start..at);
            bucket_start = at;
        }
    }
    (offsets, buckets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, ParamSpec};
    use ferrotron_base::ShardSpec;
    use ferrotron_device::StreamRole;
    use ferrotron_device::dry::Dry;

    fn table() -> ParamTable {
        let mut t = ParamTable::default();
        t.add(ParamSpec::matrix(ShardSpec::whole("a", &[30, 7]), 0.1));
        t.add(ParamSpec::vector(ShardSpec::whole("b", &[7]), Init::Zeros));
        t.add(ParamSpec::matrix(ShardSpec::whole("c", &[11, 13]), 0.1));
        t
    }

    fn store(dp_size: usize, dp_rank: usize, bucket_elements: usize) -> ParamStore {
        store_of(table(), (dp_size, dp_rank), (1, 0), bucket_elements)
    }

    fn store_of(t: ParamTable, dp: (usize, usize), edp: (usize, usize), bucket_elements: usize) -> ParamStore {
        let dev = Dry::new("dry:0", 1 << 30);
        let s = dev.stream(StreamRole::Compute).unwrap();
        let o = StoreOptions {
            dtype: DType::BF16,
            dp_size: dp.0,
            dp_rank: dp.1,
            expert_dp_size: edp.0,
            expert_dp_rank: edp.1,
            shard_optimizer: true,
            bucket_elements,
            seed: 1,
        };
        ParamStore::new(t, o, &dev, &s).unwrap()
    }

    #[test]
    fn experts_have_buffers_and_shares_of_their_own() {
        let mut t = table();
        let expert = ParamSpec { expert: true, ..ParamSpec::matrix(ShardSpec::whole("e", &[20, 50]), 0.1) };
        let id = t.add(expert);
        // four replicas of the others, two of the expert
        let s = store_of(t, (4, 3), (2, 1), 1 << 20);
        let kinds: Vec<bool> = s.buffers().iter().map(|b| b.experts).collect();
        assert_eq!(kinds, [false, true]);
        let own: Vec<_> = s.owned_ranges().into_iter().filter(|r| r.id == id).collect();
        assert_eq!((own.len(), own[0].range.clone(), own[0].offset), (1, 512..1000, 512), "the second half of 1024");
        let bucket = s.buffers()[0].buckets[0].clone();
        assert_eq!(s.share(0, &bucket).len(), bucket.len() / 4);
    }

    #[test]
    fn reverse_order_aligned_and_bucketed() {
        let s = store(3, 0, 100);
        let at: Vec<usize> = (0..3).map(|i| s.place(ParamId(i)).1).collect();
        assert_eq!(at, [448, 384, 0], "c first (143 elements fill a bucket of lcm(3,128) = 384), then b, then a");
        assert_eq!(s.buffers()[0].buckets, [0..384, 384..768]);
        assert_eq!(s.weight(ParamId(0)).shape()[..], [30, 7]);
        assert_eq!(s.grad(ParamId(2)).unwrap().dtype(), DType::F32);
    }

    #[test]
    fn shares_cover_every_parameter_once() {
        for n in [1, 2, 3, 5] {
            for bucket in [1, 100, 1 << 20] {
                let mut seen: Vec<Vec<bool>> = table().iter().map(|(_, p)| vec![false; p.numel()]).collect();
                for r in 0..n {
                    for own in store(n, r, bucket).owned_ranges() {
                        for i in 0..own.range.len() {
                            let cell = &mut seen[own.id.0][own.offset + i];
                            assert!(!*cell, "owned twice");
                            *cell = true;
                        }
                    }
                }
                assert!(seen.iter().flatten().all(|&x| x));
            }
        }
    }

    #[test]
    fn units_lie_in_shares() {
        let mut t = ParamTable::default();
        t.add(ParamSpec::matrix(ShardSpec::whole("whole", &[10, 10]), 0.1));
        assert_eq!(t.begin_unit(), 0);
        let a = t.add(ParamSpec::matrix(ShardSpec::whole("a", &[20, 10]), 0.1));
        let b = t.add(ParamSpec::vector(ShardSpec::whole("b", &[100]), Init::Zeros));
        t.end_unit();
        assert_eq!((t.spec(a).unit, t.begin_unit()), (Some(0), 1));
        let dev = Dry::new("dry:0", 1 << 30);
        let s = dev.stream(StreamRole::Compute).unwrap();
        // b at 0, a at 128, padded to 384: shares of 192 whatever the size of buckets.
        let kept: Vec<_> = (0..2)
            .map(|dp_rank| {
                let o = StoreOptions {
                    dtype: DType::F32,
                    dp_size: 2,
                    dp_rank,
                    expert_dp_size: 1,
                    expert_dp_rank: 0,
                    shard_optimizer: true,
                    bucket_elements: 1,
                    seed: 1,
                };
                let store = ParamStore::new(t.clone(), o, &dev, &s).unwrap();
                assert_eq!(store.buffers_of_unit(0), [1]);
                let unit = &store.buffers()[1];
                assert_eq!((unit.elements(), unit.param.numel(), unit.buckets.len()), (384, 192, 1));
                let owned: Vec<_> = store.owned_ranges().into_iter().filter(|r| r.buffer == 1).collect();
                for own in &owned {
                    let (first, values) = store.kept(own.id);
                    assert_eq!((first, values.numel()), (own.offset, own.range.len()));
                    assert!(values.same_memory(&unit.params_of(&own.range)));
                    assert_eq!(unit.grads_of(&own.range).unwrap().numel(), own.range.len());
                }
                [a, b].map(|id| (store.kept(id).0, store.kept(id).1.numel()))
            })
            .collect();
        assert_eq!(kept, [[(0, 64), (0, 100)], [(64, 136), (0, 0)]]);
    }

    #[test]
    fn frozen_parameters_have_no_gradient() {
        let mut t = table();
        let frozen = ParamSpec { trainable: false, ..ParamSpec::matrix(ShardSpec::whole("f", &[4, 4]), 0.1) };
        let id = t.add(frozen);
        let dev = Dry::new("dry:0", 1 << 30);
        let s = dev.stream(StreamRole::Compute).unwrap();
        let o = StoreOptions {
            dtype: DType::F32,
            dp_size: 1,
            dp_rank: 0,
            expert_dp_size: 1,
            expert_dp_rank: 0,
            shard_optimizer: false,
            bucket_elements: 1 << 20,
            seed: 1,
        };
        let store = ParamStore::new(t, o, &dev, &s).unwrap();
        assert!(store.grad(id).unwrap_err().to_string().contains("frozen"));
        assert!(store.owned_ranges().iter().all(|r| r.id != id));
    }
}
