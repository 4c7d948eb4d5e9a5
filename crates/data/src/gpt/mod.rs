//! GPT samples: documents are shuffled, joined into one stream, cut into samples of S tokens, and the samples are
//! shuffled again.
//!
//! Source: `gpt_dataset.py` (`GPTDataset`) and `helpers.cpp` (`build_sample_idx`). `plan` counts epochs and samples,
//! `index` and `rows` build the three index arrays, `masks` derives loss mask, positions and segments from the tokens.

pub(crate) mod index;
mod masks;
pub(crate) mod plan;
mod rows;

use std::sync::Arc;

use serde_json::Value;

use crate::cache::CacheFiles;
use crate::description::python_json;
use crate::error::{Error, Result};
use crate::indexed::Tokens;
use crate::npy::Array;
use crate::sample::{Dataset, Sample};
use index::GptIndex;
use plan::Plan;

/// Stands for "no pad id" where a number is needed; no document contains it.
const NO_PAD: i32 = -1;

/// How samples are cut and masked.
#[derive(Clone, Debug)]
pub struct GptConfig {
    /// Tokens per sample, S (`--seq-length`).
    pub sequence_length: usize,
    /// Seed of the document and sample shuffles (`--seed`).
    pub seed: u32,
    /// Samples carry one token more than S, so that the last position has a label too. Megatron's default is true.
    pub add_extra_token: bool,
    /// Whether the last, incomplete sample of the validation split is left out. Megatron's default is true.
    pub drop_last_partial_validation_sequence: bool,
    /// Special tokens and what they do.
    pub rules: TokenRules,
}

/// Special tokens, and what they reset or mask.
#[derive(Clone, Debug)]
pub struct TokenRules {
    /// Padded vocabulary size: every id must be below.
    pub padded_vocab_size: i32,
    /// End-of-document id.
    pub eod: Option<i32>,
    /// Pad id as decided by [`resolve_pad_id`]. Labels equal to it do not count.
    pub pad: Option<i32>,
    /// Positions restart after an end-of-document token (`--reset-position-ids`).
    pub reset_position_ids: bool,
    /// Attention does not cross an end-of-document token (`--reset-attention-mask`).
    pub reset_attention_mask: bool,
    /// Predictions made at an end-of-document token do not count (`--eod-mask-loss`).
    pub eod_mask_loss: bool,
}

/// The pad id to use: none when the tokenizer has none, or when it also means something else (end of document, end
/// of sequence ...), because masking it would then mask real tokens. `allow_ambiguous` keeps it even so.
pub fn resolve_pad_id(pad: Option<i32>, other_special_ids: &[i32], allow_ambiguous: bool) -> Option<i32> {
    pad.filter(|id| *id >= 0 && (allow_ambiguous || !other_special_ids.contains(id)))
}

/// Samples of one split of one token file.
pub struct GptDataset {
    tokens: Arc<dyn Tokens>,
    rules: TokenRules,
    plan: Plan,
    index: GptIndex,
    description: Value,
}

impl GptDataset {
    /// Builds the index, or takes it from the cache when that holds a sound one. Returns notices for the user.
    pub(crate) fn new(
        tokens: Arc<dyn Tokens>,
        rules: TokenRules,
        plan: Plan,
        description: Value,
        cache: Option<&CacheFiles>,
    ) -> Result<(GptDataset, Vec<String>)> {
        if rules.eod.is_none() && (rules.reset_position_ids || rules.reset_attention_mask || rules.eod_mask_loss) {
            return Err(Error::Setting {
                setting: "--reset-position-ids, --reset-attention-mask, --eod-mask-loss",
                problem: "need a tokenizer with an end-of-document token, and this one has none".to_owned(),
            });
        }
        let (index, notices) = match cache {
            Some(files) => files.load_or_build(
                &python_json(&description),
                |files| GptIndex::open(files, &plan, &*tokens),
                || GptIndex::build(&plan, &*tokens),
                GptIndex::save,
            )?,
            None => (GptIndex::build(&plan, &*tokens)?, Vec::new()),
        };
        Ok((GptDataset { tokens, rules, plan, index, description }, notices))
    }

    pub(crate) fn description_value(&self) -> &Value {
        &self.description
    }

    /// Prefix of the token file, or what the data are.
    pub fn name(&self) -> &str {
        self.tokens.name()
    }

    /// S.
    pub fn sequence_length(&self) -> usize {
        self.plan.sequence_length
    }

    /// Tokens that a sample needs beyond S, for its last label: 1 or 0.
    pub fn extra_tokens(&self) -> u64 {
        self.plan.extra
    }

    /// The documents of this split.
    pub fn documents(&self) -> std::ops::Range<usize> {
        self.plan.documents.clone()
    }

    /// How often the documents are gone through to make the samples.
    pub fn epochs(&self) -> u64 {
        self.plan.epochs
    }

    /// Tokens in the split's documents.
    pub fn tokens_per_epoch(&self) -> u64 {
        self.plan.tokens_per_epoch
    }

    /// Number of the first sample of the last epoch when that epoch is shuffled apart from the others.
    pub fn separate_final_epoch(&self) -> Option<u64> {
        self.plan.separate_at
    }

    /// The shuffled documents of all epochs.
    pub fn document_index(&self) -> &Array<i32> {
        &self.index.documents
    }

    /// Where sample `i`, in the order before the last shuffle, begins: position in the document index and token
    /// offset. There is one row more than samples.
    pub fn sample_row(&self, i: usize) -> Option<(i64, i64)> {
        self.index.rows.row(i)
    }

    /// Which sample row the `i`-th sample is.
    pub fn shuffled(&self, i: usize) -> Option<usize> {
        self.index.shuffle.get(i)
    }

    /// Appends tokens `begin..end` of entry `d` of the document index (to its end for `None`), checked against the
    /// vocabulary.
    fn append_part(&self, d: i64, begin: i64, end: Option<i64>, out: &mut Vec<i32>) -> Result<()> {
        let entry = usize::try_from(d).ok().and_then(|d| self.index.documents.get(d));
        let document = entry.and_then(|document| usize::try_from(document).ok()).ok_or_else(|| Error::OutOfRange {
            file: self.tokens.name().to_owned(),
            what: "document index entry",
            index: d.try_into().unwrap_or(usize::MAX),
            len: self.index.documents.len(),
        })?;
        let length = self.tokens.length(document);
        // A row beyond the end of the stream points one before an empty last document: nothing is read there.
        let begin = usize::try_from(begin).unwrap_or(0);
        let end = end.map_or(length, |end| usize::try_from(end).unwrap_or(0));
        let first = out.len();
        self.tokens.read(document, begin, end.saturating_sub(begin), out)?;
        let vocab = self.rules.padded_vocab_size;
        match out[first..].iter().position(|id| !(0..vocab).contains(id)) {
            None => Ok(()),
            Some(at) => Err(Error::Vocabulary {
                file: self.tokens.name().to_owned(),
                document,
                position: begin + at,
                id: out[first + at],
                vocab,
            }),
        }
    }

    /// The `S + extra` tokens of a sample, padded at the end when the stream ends before.
    fn append_sample(&self, i: usize, out: &mut Vec<i32>) -> Result<()> {
        let rows = self.index.shuffle.get(i).and_then(|j| self.index.rows.row(j).zip(self.index.rows.row(j + 1)));
        let Some(((first, begin), (last, end))) = rows else {
            let file = self.tokens.name().to_owned();
            return Err(Error::OutOfRange { file, what: "sample", index: i, len: self.len() });
        };
        let end = end + self.plan.extra as i64;
        if first == last {
            self.append_part(first, begin, Some(end), out)?;
        } else {
            self.append_part(first, begin, None, out)?;
            for whole in first + 1..last {
                self.append_part(whole, 0, None, out)?;
            }
            self.append_part(last, 0, Some(end), out)?;
        }
        out.resize(self.plan.sequence_length + self.plan.extra as usize, self.rules.pad.unwrap_or(NO_PAD));
        Ok(())
    }
}

impl Dataset for GptDataset {
    fn len(&self) -> usize {
        self.index.shuffle.len()
    }

    fn get(&self, i: usize, out: &mut Sample) -> Result<()> {
        let s = self.plan.sequence_length;
        let pad = self.rules.pad.unwrap_or(NO_PAD);
        out.member = 0;
        out.tokens.clear();
        self.append_sample(i, &mut out.tokens)?;
        out.labels.clear();
        out.labels.extend_from_slice(&out.tokens[1..]);
        out.labels.resize(s, pad);
        out.tokens.truncate(s);
        masks::fill(&self.rules, out);
        for (weight, label) in out.loss_mask.iter_mut().zip(&mut out.labels) {
            if *label == pad {
                (*weight, *label) = (0.0, 0);
            }
        }
        // The embedding needs a valid id under the padding, too.
        out.tokens.iter_mut().filter(|id| **id == pad).for_each(|id| *id = 0);
        Ok(())
    }

    fn description(&self) -> String {
        python_json(&self.description)
    }
}
