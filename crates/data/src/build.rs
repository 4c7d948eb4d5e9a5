//! From a configuration to the train, valid and test sets.
//!
//! Source: `blended_megatron_dataset_builder.py` and `get_train_valid_test_num_samples` of Megatron's training loop.

use std::sync::Arc;

use serde_json::Value;

use crate::blend::{Blend, BlendedDataset, Shares, in_parallel, member_samples, normalize};
use crate::cache::Cache;
use crate::description::{gpt_description, python_json};
use crate::error::{Error, Result};
use crate::gpt::plan::Plan;
use crate::gpt::{GptConfig, GptDataset};
use crate::indexed::{IndexedDataset, Multimodal, Tokens};
use crate::mock::MockCorpus;
use crate::sample::{Dataset, Sample};
use crate::splits::{SplitName, SplitRange, Splits};

/// Everything that decides which samples a run sees.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// Where tokens come from.
    pub source: DataSource,
    /// Samples wanted for train, valid, test, see [`RequestedSamples`]; `None` is one epoch.
    pub requested: [Option<u64>; 3],
    /// How samples are cut and masked.
    pub gpt: GptConfig,
    /// Members of a weighted blend are built this share larger than their target. Megatron's default is 0.005.
    pub mid_level_dataset_surplus: f64,
    /// What identifies the tokenizer, in Megatron's words (a JSON object: class, path ...). Part of the descriptions
    /// that name cache files.
    pub tokenizer: Value,
    /// Where indices are kept between runs.
    pub cache: Cache,
}

/// Where tokens come from.
#[derive(Clone, Debug)]
pub enum DataSource {
    /// `--data-path` and `--split`: every dataset is divided.
    Shared {
        /// The words after `--data-path`.
        paths: Vec<String>,
        /// `--split`.
        split: String,
    },
    /// `--train-data-path`, `--valid-data-path`, `--test-data-path`: each split has its own datasets.
    PerSplit([Option<Vec<String>>; 3]),
    /// `--mock-data`.
    Mock {
        /// What to make up.
        corpus: MockConfig,
        /// `--split`.
        split: String,
    },
}

/// Made-up documents, see [`MockCorpus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MockConfig {
    /// Number of documents.
    pub documents: usize,
    /// Longest document, in tokens.
    pub max_length: u32,
    /// Seed of lengths and contents.
    pub seed: u32,
}

impl MockConfig {
    /// 10 000 documents of one sample on average: enough for every split, quick to index at any length.
    pub fn for_sequence_length(sequence_length: usize) -> MockConfig {
        let max_length = u32::try_from(sequence_length.saturating_mul(2)).unwrap_or(u32::MAX).max(1);
        MockConfig { documents: 10_000, max_length, seed: 0 }
    }
}

/// What a training loop knows about the number of samples it needs.
#[derive(Clone, Copy, Debug)]
pub struct RequestedSamples {
    /// `--train-samples`; overrides the iterations for the training set.
    pub train_samples: Option<u64>,
    /// Training iterations.
    pub train_iters: u64,
    /// `--global-batch-size`.
    pub global_batch_size: u64,
    /// `--eval-interval`.
    pub eval_interval: u64,
    /// `--eval-iters`.
    pub eval_iters: u64,
    /// `--skip-train`: only one evaluation happens.
    pub skip_train: bool,
    /// `--full-validation`: one epoch of the validation set each time.
    pub full_validation: bool,
}

impl RequestedSamples {
    /// Samples for train, valid and test.
    ///
    /// # Errors
    /// When the evaluation interval is 0, or a product exceeds 64 bits.
    pub fn per_split(&self) -> Result<[Option<u64>; 3]> {
        let samples = |iterations: Option<u64>| {
            iterations.and_then(|n| n.checked_mul(self.global_batch_size)).ok_or_else(|| Error::Setting {
                setting: "samples",
                problem: format!("{self:?} needs more than 2^64 samples"),
            })
        };
        let train = self.train_samples.map_or_else(|| samples(Some(self.train_iters)), Ok)?;
        let evaluations = match self.train_iters.checked_div(self.eval_interval) {
            _ if self.skip_train => 1,
            Some(passes) => passes.saturating_add(1),
            None => {
                let problem = "is 0; to never evaluate, use --eval-iters 0".to_owned();
                return Err(Error::Setting { setting: "--eval-interval", problem });
            }
        };
        let valid = match self.full_validation {
            true => None,
            false => Some(samples(evaluations.checked_mul(self.eval_iters))?),
        };
        Ok([Some(train), valid, Some(samples(Some(self.eval_iters))?)])
    }
}

/// A dataset of one split.
pub enum SplitDataset {
    /// One token file.
    Gpt(GptDataset),
    /// Several, or one with a weight.
    Blend(BlendedDataset),
}

impl Dataset for SplitDataset {
    fn len(&self) -> usize {
        match self {
            SplitDataset::Gpt(d) => d.len(),
            SplitDataset::Blend(d) => d.len(),
        }
    }

    fn get(&self, i: usize, out: &mut Sample) -> Result<()> {
        match self {
            SplitDataset::Gpt(d) => d.get(i, out),
            SplitDataset::Blend(d) => d.get(i, out),
        }
    }

    fn description(&self) -> String {
        match self {
            SplitDataset::Gpt(d) => d.description(),
            SplitDataset::Blend(d) => d.description(),
        }
    }
}

/// The sets of a run; a split with a share of zero, or without files, has none.
#[derive(Default)]
pub struct Datasets {
    /// Training set.
    pub train: Option<Arc<SplitDataset>>,
    /// Validation set.
    pub valid: Option<Arc<SplitDataset>>,
    /// Test set.
    pub test: Option<Arc<SplitDataset>>,
    /// What a user should know, for example that a damaged cache was rebuilt.
    pub notices: Vec<String>,
}

/// Opens the token files and builds, or loads, the indices of all three splits.
///
/// # Errors
/// When a list, split or file is unusable, and when samples are requested from a split that has no tokens.
pub fn build_datasets(config: &DataConfig) -> Result<Datasets> {
    let mut built: [Option<(SplitDataset, Vec<String>)>; 3] = [None, None, None];
    match &config.source {
        DataSource::Mock { corpus, split } => {
            let rules = &config.gpt.rules;
            let splits = Splits::parse(split)?;
            let builder = Builder { config, splits: Some(&splits) };
            // Both are checked by the corpus; a tokenizer without end of document cannot mark where one ends.
            let vocab = u32::try_from(rules.padded_vocab_size).unwrap_or(0);
            let eod = rules.eod.and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX);
            let tokens: Arc<dyn Tokens> = Arc::new(MockCorpus::new(corpus, vocab, eod)?);
            for (i, split) in SplitName::ALL.into_iter().enumerate() {
                if let Some(range) = splits.ranges[i] {
                    let (dataset, notices) = builder.member(&tokens, None, split, range, config.requested[i])?;
                    built[i] = Some((SplitDataset::Gpt(dataset), notices));
                }
            }
        }
        DataSource::Shared { paths, split } => {
            let blend = Blend::parse("--data-path", paths)?;
            let splits = Splits::parse(split)?;
            let builder = Builder { config, splits: Some(&splits) };
            let files = open_all(&blend)?;
            for (i, split) in SplitName::ALL.into_iter().enumerate() {
                if let Some(range) = splits.ranges[i] {
                    built[i] = Some(builder.split(&blend, &files, split, range, config.requested[i])?);
                }
            }
        }
        DataSource::PerSplit(lists) => {
            let builder = Builder { config, splits: None };
            for (i, split) in SplitName::ALL.into_iter().enumerate() {
                if let Some(paths) = &lists[i] {
                    let mut blend = Blend::parse(&format!("--{}-data-path", split.as_str()), paths)?;
                    if blend.prefixes.len() == 1 {
                        // Megatron ignores the weight of a single dataset here, but not in a shared blend.
                        blend.weights = None;
                    }
                    let files = open_all(&blend)?;
                    built[i] = Some(builder.split(&blend, &files, split, SplitRange::WHOLE, config.requested[i])?);
                }
            }
        }
    }
    let mut notices = Vec::new();
    let [train, valid, test] = built.map(|split| {
        split.map(|(dataset, told)| {
            notices.extend(told);
            Arc::new(dataset)
        })
    });
    Ok(Datasets { train, valid, test, notices })
}

fn open_all(blend: &Blend) -> Result<Vec<Arc<dyn Tokens>>> {
    in_parallel(blend.prefixes.len(), |k| {
        Ok(Arc::new(IndexedDataset::open(&blend.prefixes[k], Multimodal::No)?) as Arc<dyn Tokens>)
    })
}

struct Builder<'a> {
    config: &'a DataConfig,
    /// `None` when each split has its own files.
    splits: Option<&'a Splits>,
}

impl Builder<'_> {
    /// The dataset of one split.
    fn split(
        &self,
        blend: &Blend,
        files: &[Arc<dyn Tokens>],
        split: SplitName,
        range: SplitRange,
        requested: Option<u64>,
    ) -> Result<(SplitDataset, Vec<String>)> {
        let member = |k: usize, n| self.member(&files[k], Some(&blend.prefixes[k]), split, range, n);
        let (members, target) = match &blend.weights {
            None if files.len() == 1 => {
                let (dataset, notices) = member(0, requested)?;
                return Ok((SplitDataset::Gpt(dataset), notices));
            }
            // Megatron builds the members all the same, and fails when one is too small, though nothing is asked.
            None if requested == Some(0) => {
                let weights = vec![1.0; files.len()];
                (in_parallel(files.len(), |k| member(k, Some(0)))?, Some((weights, 0)))
            }
            None => (in_parallel(files.len(), |k| member(k, None))?, None),
            Some(weights) => {
                let n = requested.ok_or_else(|| Error::Blend {
                    flag: format!("the {} blend", split.as_str()),
                    problem: "has weights, so the number of samples must be given (--full-validation takes all and \
                              needs a list without weights)"
                        .to_owned(),
                })?;
                let weights = normalize(weights);
                let samples = |k: usize| member_samples(n, weights[k], self.config.mid_level_dataset_surplus);
                let members = in_parallel(files.len(), |k| member(k, Some(samples(k).1)))?;
                let size = (0..files.len()).map(|k| samples(k).0).sum();
                (members, Some((weights, size)))
            }
        };
        let (members, notices): (Vec<GptDataset>, Vec<Vec<String>>) = members.into_iter().unzip();
        let shares = match (target, requested) {
            (Some((weights, size)), _) => Shares::Weighted { weights, size },
            (None, None) => Shares::Exhaustive,
            (None, Some(n)) => {
                let lengths: Vec<u64> = members.iter().map(|m| m.len() as u64).collect();
                let weights = lengths.iter().map(|&l| l as f64).collect();
                Shares::Weighted { weights, size: n.min(lengths.iter().sum()) }
            }
        };
        let cache = |description: &str| self.config.cache.of_blend(description, split);
        let (dataset, told) = BlendedDataset::new(members, shares, split, cache)?;
        Ok((SplitDataset::Blend(dataset), notices.into_iter().flatten().chain(told).collect()))
    }

    /// One split of one token file.
    fn member(
        &self,
        tokens: &Arc<dyn Tokens>,
        prefix: Option<&str>,
        split: SplitName,
        range: SplitRange,
        requested: Option<u64>,
    ) -> Result<(GptDataset, Vec<String>)> {
        let gpt = &self.config.gpt;
        let plan = Plan::new(&**tokens, split, range, requested, gpt)?;
        let tokenizer = &self.config.tokenizer;
        let description =
            gpt_description(prefix, requested, split, gpt.seed, gpt.sequence_length, self.splits, tokenizer);
        let files = prefix.and_then(|prefix| self.config.cache.of_gpt(prefix, &python_json(&description), split));
        GptDataset::new(Arc::clone(tokens), gpt.rules.clone(), plan, description, files.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_samples_follow_megatrons_formulas() {
        let run = RequestedSamples {
            train_samples: None,
            train_iters: 100,
            global_batch_size: 8,
            eval_interval: 30,
            eval_iters: 5,
            skip_train: false,
            full_validation: false,
        };
        // 100 / 30 = 3 evaluations on the way and one more at the end.
        assert_eq!(run.per_split().unwrap(), [Some(800), Some(160), Some(40)]);
        let given = RequestedSamples { train_samples: Some(7), skip_train: true, ..run };
        assert_eq!(given.per_split().unwrap(), [Some(7), Some(40), Some(40)]);
        let full = RequestedSamples { full_validation: true, ..run };
        assert_eq!(full.per_split().unwrap()[1], None);
        assert!(RequestedSamples { eval_interval: 0, ..run }.per_split().is_err());
        assert!(RequestedSamples { train_iters: u64::MAX, ..run }.per_split().is_err());
    }
}
