//! From samples to micro-batches.

use std::sync::Arc;

use ferrotron_data::{Dataset, Sample, Sampler, SplitDataset};
use ferrotron_runtime::MicroHost;

use crate::{Error, Result};

/// A split with its sampler, for one rank.
pub struct BatchSource {
    dataset: Arc<SplitDataset>,
    sampler: Sampler,
    name: &'static str,
    /// Place among the ranks that read other samples, and their number.
    readers: (usize, usize),
    /// Place among the ranks that share each sample, and their number.
    context: (usize, usize),
    /// Tokens weigh 1; the step divides by their number over all ranks (`--calculate-per-token-loss`).
    per_token: bool,
    indices: Vec<usize>,
    sample: Sample,
}

impl BatchSource {
    /// Reads `dataset` in the order of `sampler` as data-parallel rank `readers.0` of `readers.1`.
    pub fn new(
        name: &'static str,
        dataset: Arc<SplitDataset>,
        sampler: Sampler,
        readers: (usize, usize),
    ) -> BatchSource {
        let (indices, sample) = (vec![], Sample::default());
        BatchSource { dataset, sampler, name, readers, context: (0, 1), per_token: false, indices, sample }
    }

    /// The same, of which context-parallel rank `context.0` of `context.1` computes its part.
    pub fn shared_by(self, context: (usize, usize)) -> BatchSource {
        BatchSource { context, ..self }
    }

    /// The same, with tokens that weigh 1 each.
    pub fn per_token(self, per_token: bool) -> BatchSource {
        BatchSource { per_token, ..self }
    }

    /// Samples in the set.
    pub fn len(&self) -> usize {
        self.dataset.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// This rank's micro-batches of the global batch that begins after `consumed` samples.
    pub fn global_batch(&mut self, consumed: u64, micro_batches: u64) -> Result<Vec<MicroHost>> {
        let step = self.sampler.samples_per_step();
        (0..micro_batches).map(|i| self.micro_batch(consumed + i * step, micro_batches)).collect()
    }

    fn micro_batch(&mut self, consumed: u64, micro_batches: u64) -> Result<MicroHost> {
        if !self.sampler.micro_batch(consumed, self.readers.0, &mut self.indices)? || self.indices.is_empty() {
            return Err(Error::Setting(format!(
                "the {} set has {} samples, and all are consumed (next: {consumed}); add data, lower --train-iters, or \
                 use --dataloader-type cyclic",
                self.name,
                self.dataset.len()
            )));
        }
        let first = consumed + (self.readers.0 * self.indices.len()) as u64;
        let mut out = MicroHost { cu_seqlens: vec![0], ..MicroHost::default() };
        for (i, &index) in self.indices.iter().enumerate() {
            self.dataset.get(index, &mut self.sample)?;
            append(&mut out, &self.sample, first + i as u64);
        }
        let counted: f32 = out.mask.iter().sum();
        let scale = match self.per_token {
            true => 1.0,
            false => 1.0 / (f64::from(counted.max(1.0)) * micro_batches as f64 * self.readers.1 as f64),
        };
        out.weight = out.mask.iter().map(|m| (f64::from(*m) * scale) as f32).collect();
        // The mean over all micro-batches; with per-token losses the step divides by all tokens. (Megatron:
        // `attach_and_log_load_balancing_loss`.)
        out.aux_weight = match self.per_token {
            true => out.ids.len() as f32,
            false => (1.0 / (micro_batches as f64 * self.readers.1 as f64)) as f32,
        };
        Ok(out.context_part(self.context.0, self.context.1)?)
    }
}

/// Packs one more sample; `number` is its place in the order of the run.
fn append(out: &mut MicroHost, s: &Sample, number: u64) {
    let start = out.ids.len() as i32;
    let len = s.tokens.len();
    out.ids.extend_from_slice(&s.tokens);
    out.labels.extend_from_slice(&s.labels);
    out.positions.extend_from_slice(&s.position_ids);
    out.mask.extend_from_slice(&s.loss_mask);
    out.sample.extend(std::iter::repeat_n((number & 0x7fff_ffff) as i32, len));
    out.offset.extend(0..len as i32);
    out.cu_seqlens.extend(s.segment_starts.iter().skip(1).map(|p| start + p));
    out.cu_seqlens.push(start + len as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_pack_with_their_segments() {
        let sample = Sample {
            tokens: vec![1, 2, 3],
            labels: vec![2, 3, 4],
            loss_mask: vec![1.0, 0.0, 1.0],
            position_ids: vec![0, 1, 0],
            segment_starts: vec![0, 2],
            member: 0,
        };
        let mut out = MicroHost { cu_seqlens: vec![0], ..MicroHost::default() };
        append(&mut out, &sample, 7);
        append(&mut out, &sample, 8);
        assert_eq!(out.cu_seqlens, [0, 2, 3, 5, 6]);
        assert_eq!(out.sample, [7, 7, 7, 8, 8, 8]);
        assert_eq!(out.offset, [0, 1, 2, 0, 1, 2]);
        assert_eq!(out.positions, [0, 1, 0, 0, 1, 0]);
    }
}
