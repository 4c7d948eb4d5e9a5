//! How gradients leave for, and parameters arrive from, data-parallel ranks.
//!
//! A bucket's gradients are complete when each of its parameters has had its last addition of the step. With
//! `overlap_grads` the bucket leaves at that moment, under the rest of backward; else all buckets leave at the end.
//! How many additions a parameter has in a micro-batch (a tied embedding has two) is learned in the first step, which
//! never overlaps. Partial sums over the tensor-parallel group (norms under sequence parallel), over those of its ranks
//! that share a KV group, and over the two stages that share an embedding come first.
//!
//! With several instances of the distributed optimizer a bucket is reduce-scattered within an instance, then each
//! rank's share is all-reduced across instances; parameters are gathered within an instance. The second collective
//! waits for the first on a stream of its own, so that backward goes on.
//!
//! (Li et al., PyTorch Distributed, 2020; megatron/core/distributed/param_and_grad_buffer.py.)

use std::sync::{Mutex, MutexGuard};

use ferrotron_comm::ReduceOp;
use ferrotron_device::{DType, Error, Pending, Result, Stream, Tensor};

use crate::{Ctx, ParamId, ParamStore, Tied};

/// What is overlapped, and in which type gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncOptions {
    /// Buckets leave as soon as they are complete (`--overlap-grad-reduce`).
    pub overlap_grads: bool,
    /// The next forward waits for each bucket of parameters when it needs it (`--overlap-param-gather`).
    pub overlap_params: bool,
    /// Gradients travel as bf16 (`--grad-reduce-in-bf16`); sums are made in f32 and rounded once.
    pub grads_in_bf16: bool,
}

/// A bucket on its way: what to copy back when it comes as bf16.
struct InFlight {
    pending: Pending,
    back: Option<Tensor>,
}

/// Gradients of one step.
pub struct GradSync {
    pub(crate) options: SyncOptions,
    /// Additions of each parameter in a micro-batch, once known.
    per_micro: Option<Vec<usize>>,
    micro_batches: usize,
    /// Additions so far in this step.
    added: Vec<usize>,
    /// Parameters of each bucket that are not complete, by buffer.
    missing: Vec<Vec<usize>>,
    launched: Vec<Vec<bool>>,
    in_flight: Vec<InFlight>,
    /// Feeds the two collectives of a bucket, when there are several optimizer instances.
    relay: Option<Stream>,
}

impl GradSync {
    /// For the buckets of a store. `relay` is a stream besides the home stream, needed with several optimizer instances.
    pub fn new(params: &ParamStore, options: SyncOptions, relay: Option<Stream>) -> GradSync {
        let per_bucket = |x: usize| params.buffers().iter().map(|b| vec![x; b.buckets.len()]).collect();
        GradSync {
            options,
            per_micro: None,
            micro_batches: 0,
            added: vec![0; params.table().len()],
            missing: per_bucket(0),
            launched: params.buffers().iter().map(|b| vec![false; b.buckets.len()]).collect(),
            in_flight: vec![],
            relay,
        }
    }
}

impl Ctx {
    /// Begins a step of so many micro-batches on this rank.
    pub fn begin_grads(&mut self, micro_batches: usize) {
        self.windows.close();
        let s = &mut self.grad_sync;
        s.micro_batches = micro_batches;
        s.added.fill(0);
        s.launched.iter_mut().for_each(|b| b.fill(false));
        s.missing.iter_mut().for_each(|b| b.fill(0));
        for (id, _) in self.params.table().iter().filter(|(_, p)| p.trainable) {
            let (buffer, bucket) = self.params.bucket_of(id);
            self.grad_sync.missing[buffer][bucket] += 1;
        }
    }

    /// Takes note of an addition to a gradient.
    pub(crate) fn grad_added(&mut self, id: ParamId) -> Result<()> {
        if self.params.table().spec(id).unit.is_some() {
            // It leaves with its unit's window.
            return Ok(());
        }
        let (buffer, bucket) = self.params.bucket_of(id);
        let s = &mut self.grad_sync;
        if s.launched[buffer][bucket] {
            let name = self.params.table().spec(id).shard.name.clone();
            let what = "has another gradient after its bucket left: micro-batches differ in their number of additions";
            return Err(Error::Parameter { name, what: what.into() });
        }
        s.added[id.0] += 1;
        let Some(per_micro) = s.per_micro.as_ref().filter(|_| s.options.overlap_grads) else { return Ok(()) };
        let (due, n) = (per_micro[id.0] * s.micro_batches, s.added[id.0]);
        if n != due {
            return Ok(());
        }
        self.grad_sync.missing[buffer][bucket] -= 1;
        // A shared embedding waits for the end: its other half may be another stage's, and late.
        let whole = self.grad_sync.missing[buffer][bucket] == 0;
        if whole && self.params.table().spec(id).tied == Tied::No { self.launch(buffer, bucket) } else { Ok(()) }
    }

    /// Sends what has not left yet, and makes the home stream wait for all of it: after this, gradients are the sums
    /// over all ranks that share the parameters (with a sharded optimizer, in this rank's share of each bucket).
    pub fn finish_grads(&mut self) -> Result<()> {
        let s = &mut self.grad_sync;
        if s.per_micro.is_none() && s.micro_batches > 0 {
            s.per_micro = Some(s.added.iter().map(|n| n / s.micro_batches).collect());
        }
        self.finish_unit_grads()?;
        for buffer in 0..self.params.buffers().len() {
            if self.params.buffers()[buffer].unit.is_some() {
                continue;
            }
            for bucket in 0..self.params.buffers()[buffer].buckets.len() {
                if !self.grad_sync.launched[buffer][bucket] {
                    self.launch(buffer, bucket)?;
                }
            }
        }
        for f in std::mem::take(&mut self.grad_sync.in_flight) {
            let sum = f.pending.wait();
            if let Some(mut grad) = f.back {
                self.ops().copy(&self.stream, &sum, &mut grad)?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, buffer: usize, bucket: usize) -> Result<()> {
        self.grad_sync.launched[buffer][bucket] = true;
        let Some(all) = self.params.buffers()[buffer].grad.clone() else { return Ok(()) };
        let range = self.params.buffers()[buffer].buckets[bucket].clone();
        self.sum_partial(buffer, bucket)?;
        let experts = self.params.buffers()[buffer].experts;
        if self.groups.replicas(experts).size() == 1 {
            return Ok(());
        }
        let whole = all.view(range.start, [range.len()]);
        // All of the bucket when the optimizer is not sharded.
        let share = self.params.share(buffer, &range);
        let own = |bucket: &Tensor| bucket.view(share.start - range.start, [share.len()]);
        let (travels, back) = if self.grad_sync.options.grads_in_bf16 {
            let mut narrow = self.pool.alloc(DType::BF16, [range.len()])?;
            self.ops().copy(&self.stream, &whole, &mut narrow)?;
            (narrow, Some(own(&whole)))
        } else {
            (whole, None)
        };
        let pending = if self.params.options().shard_optimizer {
            let out = own(&travels);
            self.scatter(experts, travels, out)?
        } else {
            self.groups.replicas(experts).all_reduce(&self.stream, travels, ReduceOp::Sum)?
        };
        self.grad_sync.in_flight.push(InFlight { pending, back });
        Ok(())
    }

    /// Sums a bucket, of experts or others, over all their replicas; this rank keeps `own`, its share.
    pub(crate) fn scatter(&self, experts: bool, bucket: Tensor, own: Tensor) -> Result<Pending> {
        let (home, instance) = (&self.stream, self.groups.instance_of(experts));
        let Some(relay) = &self.grad_sync.relay else { return instance.reduce_scatter(home, bucket, own) };
        relay.wait(&home.record());
        // The share is a part of the bucket: it keeps its memory until the home stream has waited.
        let share = instance.reduce_scatter(relay, bucket, own)?.wait();
        Ok(self.groups.across.all_reduce(relay, share, ReduceOp::Sum)?.awaited_by(home))
    }

    /// Sums over tensor-parallel ranks, those that share a KV group, and over the stages that share an embedding.
    fn sum_partial(&self, buffer: usize, bucket: usize) -> Result<()> {
        for (id, spec) in self.params.table().iter().filter(|(_, p)| p.trainable) {
            if self.params.bucket_of(id) != (buffer, bucket) {
                continue;
            }
            if spec.grad_partial_over_tp && self.groups.tp.size() > 1 {
                self.groups.tp.all_reduce(&self.stream, self.params.grad(id)?, ReduceOp::Sum)?.wait();
            }
            if let Some(shared) = spec.shared_end.filter(|_| self.groups.kv.size() > 1) {
                let part = self.params.grad(id)?.view(spec.numel() - shared.elements, [shared.elements]);
                self.groups.kv.all_reduce(&self.stream, part, ReduceOp::Sum)?.wait();
            }
            if spec.tied != Tied::No && self.groups.embedding.size() > 1 {
                self.groups.embedding.all_reduce(&self.stream, self.params.grad(id)?, ReduceOp::Sum)?.wait();
            }
        }
        Ok(())
    }

    /// Gives every rank all updated parameters, when the optimizer is sharded: at once, or bucket by bucket as the next
    /// forward needs them.
    pub fn gather_params(&mut self) -> Result<()> {
        if !self.params.options().shard_optimizer {
            return Ok(());
        }
        let mut arriving = vec![];
        for (i, b) in self.params.buffers().iter().enumerate().filter(|(_, b)| b.unit.is_none()) {
            let dp = self.groups.instance_params_of(b.experts);
            if dp.size() == 1 {
                continue;
            }
            // Forward needs the last buckets first: parameters lie in reverse order.
            for (j, bucket) in b.buckets.iter().enumerate().rev() {
                let share = self.params.share(i, bucket);
                let mine = b.param.view(share.start, [share.len()]);
                let whole = b.param.view(bucket.start, [bucket.len()]);
                arriving.push(((i, j), dp.all_gather(&self.stream, mine, whole)?));
            }
        }
        if self.grad_sync.options.overlap_params {
            *self.param_sync.lock() = arriving;
        } else {
            arriving.into_iter().for_each(|(_, p)| drop(p.wait()));
        }
        Ok(())
    }

    /// Makes the home stream wait for all parameters: before an evaluation or a save.
    pub fn finish_params(&self) {
        self.param_sync.lock().drain(..).for_each(|(_, p)| drop(p.wait()));
    }

    /// The step's statistics, summed over all ranks.
    pub fn sum_stats(&self) -> Result<Tensor> {
        let world = &self.groups.world;
        if world.size() == 1 {
            return Ok(self.stats.clone());
        }
        Ok(world.all_reduce(&self.stream, self.stats.clone(), ReduceOp::Sum)?.wait())
    }

    /// The host's view of them: one collective, one host sync.
    pub fn read_stats(&self) -> Result<Vec<f32>> {
        ferrotron_device::host::read_f32(&*self.device, &self.stream, &self.sum_stats()?)
    }
}

/// Buckets of parameters that are arriving: (buffer, bucket).
type Arriving = Vec<((usize, usize), Pending)>;

/// Parameters that other ranks updated and that are on their way here.
#[derive(Default)]
pub struct ParamSync(Mutex<Arriving>);

impl ParamSync {
    fn lock(&self) -> MutexGuard<'_, Arriving> {
        // The list is whole at every point where this module can panic.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes the home stream wait for the bucket of a parameter.
    pub(crate) fn arrive(&self, params: &ParamStore, id: ParamId) {
        let mut arriving = self.lock();
        if arriving.is_empty() {
            return;
        }
        let bucket = params.bucket_of(id);
        if let Some(i) = arriving.iter().position(|(b, _)| *b == bucket) {
            drop(arriving.remove(i).1.wait());
        }
    }
}
