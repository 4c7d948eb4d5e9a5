//! Which samples a data-parallel rank reads in each micro-batch.
//!
//! Source: `data_samplers.py` (`MegatronPretrainingSampler`, `MegatronPretrainingRandomSampler`). Everything follows
//! from the number of samples consumed by all ranks together, so a run can be resumed, or a batch looked up, anywhere.

use ferrotron_base::mt19937::Mt19937;

use crate::error::{Error, Result};

/// The order in which a dataset is read (`--dataloader-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `single`: from front to back, once; the dataset's own shuffle decides. Without `drop_last` the tail is handed
    /// out too, and late ranks may get short or empty micro-batches; with micro-batches of one sample this is the
    /// order of `--full-validation`.
    Single {
        /// Leave out a last, incomplete batch.
        drop_last: bool,
    },
    /// `cyclic`: epoch after epoch in random order. The seed of an epoch's order is the epoch's number alone.
    Cyclic {
        /// Each rank reads its own share of the dataset in every epoch (not `--no-data-sharding`).
        data_sharding: bool,
    },
}

/// Hands out sample numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    order: Order,
    total: u64,
    micro_batch_size: usize,
    ranks: usize,
    /// The cyclic order of the epoch used last.
    epoch: Option<(u64, Vec<u64>)>,
}

impl Sampler {
    /// A sampler over `total` samples for `ranks` data-parallel ranks.
    ///
    /// # Errors
    /// When a size is zero, or a cyclic order would have no full batch.
    pub fn new(order: Order, total: usize, micro_batch_size: usize, ranks: usize) -> Result<Sampler> {
        if total == 0 || micro_batch_size == 0 || ranks == 0 {
            return Err(Error::Sampler(format!(
                "{total} samples, micro-batches of {micro_batch_size} and {ranks} data-parallel ranks: none may be 0"
            )));
        }
        let sampler = Sampler { order, total: total as u64, micro_batch_size, ranks, epoch: None };
        let step = sampler.samples_per_step();
        if matches!(order, Order::Cyclic { .. }) && sampler.total < step {
            return Err(Error::Sampler(format!(
                "the dataset has {total} samples, fewer than the {step} of one step ({micro_batch_size} for each of \
                 {ranks} data-parallel ranks)"
            )));
        }
        Ok(sampler)
    }

    /// Samples that all ranks together read in one micro-batch.
    pub fn samples_per_step(&self) -> u64 {
        (self.micro_batch_size as u64).saturating_mul(self.ranks as u64)
    }

    /// Overwrites `out` with the samples of `rank`'s next micro-batch after all ranks have consumed `consumed`. False
    /// when the data are exhausted, which a cyclic order never is. The next micro-batch is at `consumed` +
    /// [`Sampler::samples_per_step`].
    ///
    /// # Errors
    /// When there is no such rank, or a cyclic order is entered between two steps of an epoch (the micro-batch size
    /// or number of ranks was changed).
    pub fn micro_batch(&mut self, consumed: u64, rank: usize, out: &mut Vec<usize>) -> Result<bool> {
        out.clear();
        if rank >= self.ranks {
            return Err(Error::Sampler(format!("rank {rank} of {} data-parallel ranks", self.ranks)));
        }
        match self.order {
            Order::Single { drop_last } => Ok(self.single(consumed, rank, drop_last, out)),
            Order::Cyclic { data_sharding } => self.cyclic(consumed, rank, data_sharding, out).map(|()| true),
        }
    }

    fn single(&self, consumed: u64, rank: usize, drop_last: bool, out: &mut Vec<usize>) -> bool {
        let step_end = consumed.saturating_add(self.samples_per_step());
        if consumed >= self.total || (drop_last && step_end > self.total) {
            return false;
        }
        let begin = consumed + (rank * self.micro_batch_size) as u64;
        let end = (begin + self.micro_batch_size as u64).min(self.total);
        // All below `total`, which came in as a usize.
        out.extend((begin..end).map(|i| i as usize));
        true
    }

    fn cyclic(&mut self, consumed: u64, rank: usize, data_sharding: bool, out: &mut Vec<usize>) -> Result<()> {
        let (step, size, ranks) = (self.samples_per_step(), self.micro_batch_size as u64, self.ranks as u64);
        let per_epoch = self.total - self.total % step;
        let (epoch, within) = (consumed / per_epoch, consumed % per_epoch);
        if within % step != 0 {
            return Err(Error::Sampler(format!(
                "{consumed} consumed samples are {within} into epoch {epoch}, which is not a multiple of {step} \
                 ({size} for each of {ranks} data-parallel ranks)"
            )));
        }
        let bucket = if data_sharding { self.total / step * size } else { self.total / size * size };
        let order = match &mut self.epoch {
            Some((cached, order)) if *cached == epoch => order,
            slot => {
                // torch seeds its generator with the low 32 bits.
                let order = Mt19937::new(epoch as u32).torch_randperm(bucket as usize);
                &mut slot.insert((epoch, order)).1
            }
        };
        let (offset, first, stride) =
            if data_sharding { (rank as u64 * bucket, within / ranks, 1) } else { (0, within + rank as u64, ranks) };
        // Inside the bucket: `within` + one step is at most an epoch, which is at most the bucket (of all ranks).
        out.extend((0..size).map(|i| (offset + order[(first + i * stride) as usize]) as usize));
        Ok(())
    }

    /// The micro-batches of `rank` from `consumed` on, until the data are exhausted; endless for a cyclic order.
    ///
    /// # Errors
    /// When a `single` order has nothing left, as Megatron asserts.
    pub fn micro_batches(
        &mut self,
        consumed: u64,
        rank: usize,
    ) -> Result<impl Iterator<Item = Result<Vec<usize>>> + '_> {
        if matches!(self.order, Order::Single { .. }) && consumed >= self.total {
            return Err(Error::Sampler(format!(
                "no samples left: {consumed} were consumed and the dataset has {}",
                self.total
            )));
        }
        let mut consumed = consumed;
        Ok(std::iter::from_fn(move || {
            let mut out = Vec::new();
            let more = self.micro_batch(consumed, rank, &mut out);
            consumed += self.samples_per_step();
            more.map(|more| more.then_some(out)).transpose()
        }))
    }

    /// Overwrites `out` with all samples of global batch `k` of a run with a constant `global_batch_size`: micro-batch
    /// after micro-batch, in each rank after rank. False when the data are exhausted before its end.
    ///
    /// # Errors
    /// When the global batch is not a whole number of steps.
    pub fn global_batch(&mut self, k: u64, global_batch_size: usize, out: &mut Vec<usize>) -> Result<bool> {
        out.clear();
        let (step, size) = (self.samples_per_step(), global_batch_size as u64);
        let begin = k.checked_mul(size).filter(|b| b.checked_add(size).is_some());
        let Some(begin) = begin.filter(|_| size > 0 && size % step == 0) else {
            return Err(Error::Sampler(format!(
                "global batch {k} of size {size} must be a positive multiple of micro-batch size {} times {} ranks",
                self.micro_batch_size, self.ranks
            )));
        };
        let mut part = Vec::new();
        for consumed in (begin..begin + size).step_by(step as usize) {
            for rank in 0..self.ranks {
                if !self.micro_batch(consumed, rank, &mut part)? {
                    return Ok(false);
                }
                out.extend_from_slice(&part);
            }
        }
        Ok(true)
    }
}
