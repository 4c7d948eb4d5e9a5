//! One training sample and the interface of everything that yields samples.

use crate::error::Result;

/// One sample of S tokens, in buffers that are reused from call to call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// `[S]` input ids.
    pub tokens: Vec<i32>,
    /// `[S]` ids to predict: the tokens shifted left by one.
    pub labels: Vec<i32>,
    /// `[S]` 1 where the prediction counts, 0 where it does not.
    pub loss_mask: Vec<f32>,
    /// `[S]` position of each token; restarts after an end-of-document token under `reset_position_ids`.
    pub position_ids: Vec<i32>,
    /// First position of every attention segment, ascending; the first is 0. One segment unless
    /// `reset_attention_mask`. Followed by S these are the `cu_seqlens` of packed attention.
    pub segment_starts: Vec<i32>,
    /// Which member of a blend the sample came from; 0 without a blend.
    pub member: usize,
}

impl Sample {
    /// Makes the sample count for nothing: how a last, incomplete batch is filled up.
    pub fn silence(&mut self) {
        self.loss_mask.fill(0.0);
    }
}

/// A finite, ordered set of samples. Shared by all threads that load data.
pub trait Dataset: Send + Sync {
    /// Number of samples; often more than were requested, because epochs are kept whole.
    fn len(&self) -> usize;

    /// True when there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites `out` with sample `i`.
    ///
    /// # Errors
    /// When `i` is not below [`Dataset::len`] or a token id is outside the vocabulary.
    fn get(&self, i: usize, out: &mut Sample) -> Result<()>;

    /// What identifies the dataset and its order: Megatron's JSON description, whose MD5 names the cache files.
    fn description(&self) -> String;
}
