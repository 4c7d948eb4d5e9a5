//! How many epochs and samples a split needs: all the arithmetic that comes before the shuffles.

use std::ops::Range;

use super::GptConfig;
use crate::error::{Error, Result};
use crate::indexed::Tokens;
use crate::splits::{SplitName, SplitRange};

/// The last epoch is shuffled apart when it supplies fewer samples than this share of a full epoch.
const FINAL_EPOCH_THRESHOLD: f64 = 0.80;

/// The numbers that determine an index.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Documents of the split.
    pub documents: Range<usize>,
    /// S.
    pub sequence_length: usize,
    /// 1 when samples carry a token for the last label, else 0.
    pub extra: u64,
    /// Tokens in the split's documents.
    pub tokens_per_epoch: u64,
    /// Times the documents are gone through; at least 1.
    pub epochs: u64,
    /// Entries of the document index: the documents of all epochs.
    pub entries: u64,
    /// Samples in the dataset.
    pub samples: u64,
    /// First sample of a last epoch that is shuffled apart.
    pub separate_at: Option<u64>,
    /// Seed of the shuffles.
    pub seed: u32,
}

impl Plan {
    /// Plans `requested` samples (one epoch for `None`) of the documents of `range`.
    ///
    /// # Errors
    /// When samples are requested from a split without tokens, or one epoch is shorter than one sample.
    pub fn new(
        tokens: &dyn Tokens,
        split: SplitName,
        range: SplitRange,
        requested: Option<u64>,
        config: &GptConfig,
    ) -> Result<Plan> {
        let sequences = tokens.sequences();
        if i32::try_from(sequences).is_err() {
            let problem = format!("has {sequences} sequences, but document numbers are 32-bit; split it into a blend");
            return Err(Error::format(&crate::indexed::index_path(tokens.name().as_ref()), "sequence count", problem));
        }
        let s = config.sequence_length as u64;
        if s == 0 {
            let problem = "is 0, but a sample needs at least one token".to_owned();
            return Err(Error::Setting { setting: "--seq-length", problem });
        }
        let documents = range.documents(sequences);
        let per_epoch: u64 = documents.clone().map(|i| tokens.length(i) as u64).sum();
        let extra = u64::from(config.add_extra_token);
        if per_epoch == 0 && requested != Some(0) {
            return Err(Error::EmptySplit {
                file: tokens.name().to_owned(),
                split: split.as_str(),
                range: format!("{}..{}", range.begin, range.end),
                sequences,
                begin: documents.start,
                end: documents.end,
                tokens: per_epoch,
                requested: requested.map_or("one epoch of".to_owned(), |n| n.to_string()),
            });
        }
        let too_many = || Error::Setting {
            setting: "samples",
            problem: format!("{requested:?} samples of {s} tokens are more than 64-bit arithmetic can count"),
        };
        let needed = requested.unwrap_or(0).checked_mul(s).and_then(|n| n.checked_add(extra)).ok_or_else(too_many)?;
        let epochs = if per_epoch == 0 { 1 } else { needed.div_ceil(per_epoch).max(1) };
        let total = epochs.checked_mul(per_epoch).ok_or_else(too_many)?;
        let entries = epochs.checked_mul(documents.len() as u64).ok_or_else(too_many)?;
        let samples = if split == SplitName::Valid && !config.drop_last_partial_validation_sequence {
            // Megatron divides in single precision here.
            (total.saturating_sub(extra) as f32 / s as f32).ceil() as u64
        } else {
            total.saturating_sub(extra) / s
        };
        if samples == 0 && requested != Some(0) {
            return Err(Error::TooShort {
                file: tokens.name().to_owned(),
                split: split.as_str(),
                tokens: per_epoch,
                begin: documents.start,
                end: documents.end,
                needed: s + extra,
                sequence_length: config.sequence_length,
                extra,
            });
        }
        let separate_at = requested.filter(|_| epochs > 1).and_then(|n| {
            let before_final = (total - per_epoch).saturating_sub(extra) / s;
            let from_final = n.saturating_sub(before_final);
            let full = per_epoch.saturating_sub(extra) / s;
            let threshold = (FINAL_EPOCH_THRESHOLD * full as f64) as u64;
            (from_final < threshold).then_some(before_final)
        });
        Ok(Plan {
            documents,
            sequence_length: config.sequence_length,
            extra,
            tokens_per_epoch: per_epoch,
            epochs,
            entries,
            samples,
            separate_at,
            seed: config.seed,
        })
    }
}
