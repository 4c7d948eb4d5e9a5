//! Tokenizer and datasets.

use std::path::Path;

use ferrotron_config::settings::{self, BlendItem, Config};
use ferrotron_data::{
    Cache, DataConfig, DataSource, GptConfig, MockConfig, RequestedSamples, TokenRules, resolve_pad_id,
};
use ferrotron_tokenizer::{Tokenizer, TokenizerSpec};

use crate::{Error, Result};

/// The tokenizer's flags.
pub fn tokenizer_spec(c: &Config) -> TokenizerSpec {
    let t = &c.data.tokenizer;
    TokenizerSpec {
        tokenizer_type: t.name.clone(),
        tokenizer_model: t.model.clone(),
        tokenizer_name_or_path: t.name_or_path.clone(),
        vocab_file: t.vocab_file.clone(),
        merge_file: t.merge_file.clone(),
        vocab_size: c.model.vocab.vocab_size,
        special_tokens: t.special_tokens.clone(),
        eod_token: t.eod_token.clone(),
        null_eod_id: t.null_eod_id,
        null_pad_id: Some(t.null_pad_id),
        hf_no_include_special_tokens: t.hf_no_include_special_tokens,
    }
}

/// Where samples come from, for a run of `train_iters` iterations.
pub fn data_config(c: &Config, tokenizer: &dyn Tokenizer, vocab: usize, train_iters: u64) -> Result<DataConfig> {
    let id = |id: Option<u32>| id.and_then(|id| i32::try_from(id).ok());
    let eod = id(tokenizer.eod());
    let other: Vec<i32> = [eod, id(tokenizer.eos()), id(tokenizer.bos())].into_iter().flatten().collect();
    let requested = RequestedSamples {
        train_samples: match c.train.length {
            settings::RunLength::Samples(n) => Some(n),
            settings::RunLength::Iterations(_) => None,
        },
        train_iters,
        global_batch_size: c.train.global_batch_size as u64,
        eval_interval: c.eval.interval.unwrap_or(train_iters.max(1)),
        eval_iters: c.eval.iters,
        skip_train: c.train.skip_train,
        full_validation: c.eval.full_validation,
    };
    Ok(DataConfig {
        source: source(c)?,
        requested: requested.per_split()?,
        gpt: GptConfig {
            sequence_length: c.data.seq_length,
            seed: u32::try_from(c.train.seed)
                .map_err(|_| Error::Setting(format!("--seed {} does not fit 32 bits", c.train.seed)))?,
            add_extra_token: true,
            drop_last_partial_validation_sequence: true,
            rules: TokenRules {
                padded_vocab_size: i32::try_from(vocab)
                    .map_err(|_| Error::Setting(format!("a vocabulary of {vocab} rows does not fit 31 bits")))?,
                eod,
                pad: resolve_pad_id(id(tokenizer.pad()), &other, false),
                reset_position_ids: c.data.reset_position_ids,
                reset_attention_mask: c.data.reset_attention_mask,
                eod_mask_loss: c.data.eod_mask_loss,
            },
        },
        mid_level_dataset_surplus: 0.005,
        tokenizer: serde_json::Value::Object(tokenizer.unique_identifiers()),
        cache: c.data.cache_path.clone().map_or(Cache::BesideData, Cache::Dir),
    })
}

fn source(c: &Config) -> Result<DataSource> {
    let split = c.data.split.text.clone();
    Ok(match &c.data.source {
        settings::DataSource::Mock => {
            DataSource::Mock { corpus: MockConfig::for_sequence_length(c.data.seq_length), split }
        }
        settings::DataSource::Blend(items) => DataSource::Shared { paths: words(items), split },
        settings::DataSource::BlendFile(path) => {
            let text = read("--data-args-path", path)?;
            DataSource::Shared { paths: text.split_whitespace().map(str::to_string).collect(), split }
        }
        settings::DataSource::PerSplit { train, valid, test } => {
            DataSource::PerSplit([train, valid, test].map(|items| (!items.is_empty()).then(|| words(items))))
        }
        settings::DataSource::PerSplitFile(path) => DataSource::PerSplit(per_split_file(path)?),
    })
}

/// A blend as the words of `--data-path`.
fn words(items: &[BlendItem]) -> Vec<String> {
    items
        .iter()
        .flat_map(|i| i.weight.map(|w| w.to_string()).into_iter().chain([i.prefix.to_string_lossy().into_owned()]))
        .collect()
}

fn read(flag: &str, path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|e| Error::Setting(format!("{flag}: cannot read {}: {e}; check the path", path.display())))
}

/// A JSON object with lists of words under `train`, `valid` and `test`.
fn per_split_file(path: &Path) -> Result<[Option<Vec<String>>; 3]> {
    let flag = "--per-split-data-args-path";
    let bad = |what: String| Error::Setting(format!("{flag}: {}: {what}", path.display()));
    let json: serde_json::Value = serde_json::from_str(&read(flag, path)?).map_err(|e| bad(e.to_string()))?;
    let list = |name: &str| -> Result<Option<Vec<String>>> {
        let Some(value) = json.get(name).filter(|v| !v.is_null()) else { return Ok(None) };
        let items = value.as_array().ok_or_else(|| bad(format!("{name} should be a list of words")))?;
        let words = items.iter().map(|v| match v {
            serde_json::Value::String(s) => Ok(s.clone()),
            serde_json::Value::Number(n) => Ok(n.to_string()),
            other => Err(bad(format!("{name} holds {other}, which is neither a weight nor a path"))),
        });
        words.collect::<Result<_>>().map(Some)
    };
    Ok([list("train")?, list("valid")?, list("test")?])
}
