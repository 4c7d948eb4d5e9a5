//! Corpora, split, sampler, tokenizer.

use super::NoticeKind;
use super::checker::Checker;
use crate::parser::number::py_float;
use crate::settings::{BlendItem, DataConfig, DataSource, DataloaderKind, Split, TokenizerConfig, TokenizerKind};
use crate::value::Value;

/// Megatron's split when `--data-path` has none.
const DEFAULT_SPLIT: &str = "969, 30, 1";

pub(super) fn check(c: &mut Checker) -> DataConfig {
    let seq_length = c.required_size("seq_length", "tokens of one sample");
    let cp = c.args.int("context_parallel_size").and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    if cp > 1 && seq_length > 0 && !seq_length.is_multiple_of(cp.saturating_mul(2)) {
        let v = c.invalid(
            &["--seq-length", "--context-parallel-size"],
            "the sequence does not divide into context-parallel chunks",
        );
        v.arithmetic = Some(format!("{seq_length} % (2 x {cp}) = {}", seq_length % cp.saturating_mul(2)));
        v.why = Some("each rank takes one chunk from the front and one from the back, for balance".into());
    }
    let source = source(c);
    let dataloader = match c.args.text("dataloader_type") {
        Some("cyclic") => DataloaderKind::Cyclic,
        Some("external") => {
            c.planned(&["--dataloader-type"], "--dataloader-type external is not there yet").legal =
                Some("single, cyclic".into());
            DataloaderKind::Single
        }
        Some(_) => DataloaderKind::Single,
        None => {
            c.derive("dataloader_type", Value::Str("single".into()), "upstream's default");
            DataloaderKind::Single
        }
    };
    DataConfig {
        split: split(c, &source),
        tokenizer: tokenizer(c, &source),
        source,
        seq_length,
        cache_path: c.path("data_cache_path"),
        dataloader,
        reset_position_ids: c.args.flag("reset_position_ids"),
        reset_attention_mask: c.args.flag("reset_attention_mask"),
        eod_mask_loss: c.args.flag("eod_mask_loss"),
    }
}

fn source(c: &mut Checker) -> DataSource {
    const PER_SPLIT: [&str; 3] = ["train_data_path", "valid_data_path", "test_data_path"];
    let mock = c.args.flag("mock_data");
    let blend = c.args.texts("data_path");
    let [train, valid, test] = PER_SPLIT.map(|dest| c.args.texts(dest));
    let (blend_file, split_file) = (c.path("data_args_path"), c.path("per_split_data_args_path"));
    let per_split = ![&train, &valid, &test].iter().all(|l| l.is_empty());
    if !blend.is_empty() && blend_file.is_some() {
        c.invalid(
            &["--data-path", "--data-args-path"],
            "--data-path and --data-args-path both name the corpora; give one",
        );
    }
    if per_split && split_file.is_some() {
        c.invalid(
            &["--train-data-path", "--per-split-data-args-path"],
            "per-split paths stand on the command line or in a file, not in both",
        );
    }
    let ways: Vec<&str> = [
        (mock, "--mock-data"),
        (!blend.is_empty() || blend_file.is_some(), "--data-path"),
        (per_split || split_file.is_some(), "--train-data-path/--valid-data-path/--test-data-path"),
    ]
    .into_iter()
    .filter_map(|(on, name)| on.then_some(name))
    .collect();
    if ways.len() > 1 {
        c.invalid(&ways, format!("one source of data only, got {}", ways.join(" and ")));
    }
    // Megatron-DeepSpeed names its blends by flags of their own, which are planned: not missing as well.
    const WEIGHTED: [&str; 6] = [
        "train_weighted_split_paths",
        "valid_weighted_split_paths",
        "test_weighted_split_paths",
        "train_weighted_split_paths_path",
        "valid_weighted_split_paths_path",
        "test_weighted_split_paths_path",
    ];
    if ways.is_empty() && !c.given_any(&WEIGHTED) {
        let written = c.args.given("data_path");
        let meaning = if written {
            "it has no values (or --mock-data)"
        } else {
            "corpora made by preprocess_data (or --mock-data)"
        };
        c.missing("data_path", "--data-path", meaning);
    }
    if mock {
        DataSource::Mock
    } else if !blend.is_empty() {
        DataSource::Blend(items(c, "--data-path", &blend))
    } else if per_split {
        DataSource::PerSplit {
            train: items(c, "--train-data-path", &train),
            valid: items(c, "--valid-data-path", &valid),
            test: items(c, "--test-data-path", &test),
        }
    } else if let Some(file) = blend_file {
        DataSource::BlendFile(file)
    } else if let Some(file) = split_file {
        DataSource::PerSplitFile(file)
    } else {
        DataSource::Mock
    }
}

/// `prefix...` or `weight prefix...` (Megatron: `get_blend_from_list`).
fn items(c: &mut Checker, flag: &str, words: &[String]) -> Vec<BlendItem> {
    let plain = || words.iter().map(|w| BlendItem { prefix: w.into(), weight: None }).collect();
    let weights: Vec<Option<f64>> = words.iter().step_by(2).map(|w| py_float(w)).collect();
    let numbers = words.iter().filter(|w| py_float(w).is_some()).count();
    if numbers == 0 || words.len() == 1 {
        return plain();
    }
    if !words.len().is_multiple_of(2) || weights.iter().any(Option::is_none) {
        let at =
            words.iter().enumerate().position(|(i, w)| py_float(w).is_some() != (i % 2 == 0)).unwrap_or(words.len());
        let seen = words.get(at).map_or("the end", String::as_str);
        let expected = if at % 2 == 0 { "a weight" } else { "a path" };
        c.invalid(&[flag], format!("{flag}: expected {expected} at position {}, got {seen}", at + 1)).legal =
            Some("weight path weight path ..., or paths only".into());
        return plain();
    }
    let mut out = Vec::new();
    for (i, (weight, prefix)) in weights.into_iter().zip(words.iter().skip(1).step_by(2)).enumerate() {
        let weight = weight.unwrap_or(0.0);
        if !weight.is_finite() || weight < 0.0 {
            c.invalid(
                &[flag],
                format!("{flag}: weight {weight} at position {} is not a finite number from 0", 2 * i + 1),
            );
        } else if weight == 0.0 {
            c.warn(format!("{flag}: {prefix} has weight 0 and is never sampled"));
        }
        out.push(BlendItem { prefix: prefix.into(), weight: Some(weight) });
    }
    if out.iter().all(|i| i.weight == Some(0.0)) {
        c.invalid(&[flag], format!("{flag}: all weights are 0"));
    }
    out
}

fn split(c: &mut Checker, source: &DataSource) -> Split {
    let per_split = matches!(source, DataSource::PerSplit { .. } | DataSource::PerSplitFile(_));
    if per_split && c.args.given("split") {
        c.warn("--split has no effect with per-split data paths");
    }
    if c.args.value("split").is_none() && !per_split {
        c.derive("split", Value::Str(DEFAULT_SPLIT.into()), "upstream's default");
        if !matches!(source, DataSource::Mock) {
            c.notice(NoticeKind::Adjusted, format!("--split not given: \"{DEFAULT_SPLIT}\", Megatron's default"));
        }
    }
    let text = c.args.text("split").unwrap_or_default().to_string();
    // Megatron reads every match of [.0-9]+ and ignores what is between.
    let numbers: Vec<f64> = text
        .split(|ch: char| !ch.is_ascii_digit() && ch != '.')
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().unwrap_or(f64::NAN))
        .collect();
    let mut weights = [0.0; 3];
    for (slot, number) in weights.iter_mut().zip(&numbers) {
        *slot = *number;
    }
    let sum: f64 = numbers.iter().sum();
    if !per_split && (numbers.len() > 3 || !sum.is_finite() || sum <= 0.0) {
        c.invalid(&["--split"], format!("--split '{text}' is not up to three shares with a sum above 0")).legal =
            Some("train,valid,test shares, for example 98,2,0".into());
    }
    Split { text, weights }
}

fn tokenizer(c: &mut Checker, source: &DataSource) -> TokenizerConfig {
    let given = c.args.text("tokenizer_type").map(str::to_string);
    let has_gpt2_files = c.path("vocab_file").is_some() && c.path("merge_file").is_some();
    let mock_with_vocab = matches!(source, DataSource::Mock) && !c.args.value("vocab_size").is_none();
    let name = match given {
        Some(name) => name,
        None if has_gpt2_files => {
            c.derive("tokenizer_type", Value::Str("GPT2BPETokenizer".into()), "--vocab-file and --merge-file");
            "GPT2BPETokenizer".to_string()
        }
        None if mock_with_vocab => {
            c.derive("tokenizer_type", Value::Str("NullTokenizer".into()), "--mock-data with --vocab-size");
            "NullTokenizer".to_string()
        }
        None => {
            let meaning = "and its files: HuggingFaceTokenizer --tokenizer-model FOLDER, GPT2BPETokenizer --vocab-file --merge-file, NullTokenizer --vocab-size N";
            c.missing("tokenizer_type", "--tokenizer-type", meaning);
            String::new()
        }
    };
    let kind = TokenizerKind::of(&name);
    let model = c.args.text("tokenizer_model").filter(|s| !s.is_empty()).map(str::to_string);
    let name_or_path = c.args.text("tokenizer_name_or_path").filter(|s| !s.is_empty()).map(str::to_string);
    if !kind.is_supported() {
        c.planned(&["--tokenizer-type"], format!("--tokenizer-type {name} is not there yet")).legal =
            Some(
            "HuggingFaceTokenizer with the same model's tokenizer.json; GPT2BPETokenizer; SentencePieceTokenizer; TikTokenizer; \
             NullTokenizer; ByteLevelTokenizer"
                .into(),
        );
    }
    match kind {
        _ if name.is_empty() => {}
        TokenizerKind::Null if c.args.value("vocab_size").is_none() => {
            c.missing("vocab_size", "--vocab-size", "required by NullTokenizer");
        }
        TokenizerKind::Gpt2Bpe => {
            for (dest, flag) in [("vocab_file", "--vocab-file"), ("merge_file", "--merge-file")] {
                if c.path(dest).is_none() {
                    c.missing(dest, flag, "required by GPT2BPETokenizer");
                }
            }
        }
        TokenizerKind::HuggingFace if model.is_none() && name_or_path.is_none() => {
            c.missing(
                "tokenizer_model",
                "--tokenizer-model",
                &format!("tokenizer.json, or the folder that has it, required by {name}"),
            );
        }
        TokenizerKind::SentencePiece | TokenizerKind::Tiktoken if model.is_none() => {
            let what = if kind == TokenizerKind::Tiktoken { "tiktoken vocabulary" } else { ".model file" };
            c.missing("tokenizer_model", "--tokenizer-model", &format!("{what}, required by {name}"));
        }
        _ => {}
    }
    TokenizerConfig {
        name,
        kind,
        model,
        name_or_path,
        vocab_file: c.path("vocab_file"),
        merge_file: c.path("merge_file"),
        special_tokens: c.args.texts("special_tokens"),
        eod_token: c.args.text("eod_token").map(str::to_string),
        vocab_extra_ids: c.count_from("vocab_extra_ids", 0).unwrap_or(0),
        null_eod_id: c.args.int("null_tokenizer_eod_id"),
        null_pad_id: c.args.int("null_tokenizer_pad_id").unwrap_or(-1),
        tiktoken_pattern: c.args.text("tiktoken_pattern").map(str::to_string),
        tiktoken_num_special_tokens: c.count_from("tiktoken_num_special_tokens", 0).unwrap_or(1000),
        hf_no_include_special_tokens: c.args.flag("tokenizer_hf_no_include_special_tokens"),
    }
}
