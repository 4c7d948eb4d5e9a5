//! `preprocess_data`: JSONL to `.bin/.idx`, with the flags of Megatron's tools/preprocess_data.py.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use ferrotron_config::RawArgs;
use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Nargs, Source};
use ferrotron_tokenizer::preprocess::{self, Options, PreprocessArgs, Shard};
use ferrotron_tokenizer::{TikTokenOptions, TokenizerSpec};

use crate::table::{count, parse_or_exit, required};

const PROGRAM: &str = "preprocess_data";

/// The flags.
#[rustfmt::skip]
static FLAGS: Group = Group { name: "preprocess_data", source: Source::Megatron, flags: &[
    Flag::new("--input", "input", Kind::Str, "JSONL files, folders of them, or patterns with *").takes(Nargs::Some),
    Flag::new("--json-keys", "json_keys", Kind::Str, "Keys whose texts are tokenized, each to its own output").takes(Nargs::Some).or(Fallback::List(&[Fallback::Str("text")])),
    Flag::new("--tokenizer-type", "tokenizer_type", Kind::Str, "Tokenizer, by Megatron's name"),
    Flag::new("--tokenizer-model", "tokenizer_model", Kind::Str, "tokenizer.json, or the folder that has it"),
    Flag::new("--tokenizer-name-or-path", "tokenizer_name_or_path", Kind::Str, "The same, for PretrainedFromHF"),
    Flag::new("--tokenizer-special-tokens", "tokenizer_special_tokens", Kind::Str, "Tokens to add").takes(Nargs::Any).or(Fallback::List(&[])),
    Flag::new("--tokenizer-hf-no-include-special-tokens", "tokenizer_hf_no_include_special_tokens", Kind::StoreTrue, "Leave out what the tokenizer puts around a text"),
    Flag::new("--vocab-file", "vocab_file", Kind::Str, "vocab.json of GPT2BPETokenizer"),
    Flag::new("--merge-file", "merge_file", Kind::Str, "merges.txt of GPT2BPETokenizer"),
    Flag::new("--vocab-size", "vocab_size", Kind::Int, "Vocabulary of NullTokenizer"),
    Flag::new("--null-tokenizer-eod-id", "null_tokenizer_eod_id", Kind::Int, "End-of-document id of NullTokenizer"),
    Flag::new("--null-tokenizer-pad-id", "null_tokenizer_pad_id", Kind::Int, "Pad id of NullTokenizer; -1 for none"),
    Flag::new("--eod-token", "eod_token", Kind::Str, "Token that ends documents, instead of the tokenizer's own"),
    Flag::new("--append-eod", "append_eod", Kind::StoreTrue, "End every document with the end-of-document id"),
    Flag::new("--prepend-bos", "prepend_bos", Kind::StoreTrue, "Begin every document with the beginning-of-sequence id"),
    Flag::new("--output-prefix", "output_prefix", Kind::Str, "Path of the output without _<key>_document.bin"),
    Flag::new("--dataset-impl", "dataset_impl", Kind::Str, "Only mmap: the one format there is").of(&["mmap"]).or(Fallback::Str("mmap")),
    Flag::new("--workers", "workers", Kind::Int, "Threads that tokenize").or(Fallback::Int(1)),
    Flag::new("--log-interval", "log_interval", Kind::Int, "Documents between progress lines").or(Fallback::Int(1000)),
    Flag::new("--tiktoken-pattern", "tiktoken_pattern", Kind::Str, "Word pattern of TikTokenizer: v1, v2, gpt2, cl100k, o200k"),
    Flag::new("--tiktoken-num-special-tokens", "tiktoken_num_special_tokens", Kind::Int, "Ids before the first token of TikTokenizer").or(Fallback::Int(1000)),
    Flag::new("--split-sentences", "split_sentences", Kind::StoreTrue, "Every sentence is a sequence of its document"),
    Flag::new("--keep-newlines", "keep_newlines", Kind::StoreTrue, "Newlines stay at the end of their sentence"),
    Flag::new("--partitions", "partitions", Kind::Int, "Accepted; the work is divided over --workers").or(Fallback::Int(1)),
    Flag::new("--shard", "shard", Kind::Str, "Do share i of n (i from 0), as i/n: merge_datasets joins the shares"),
    Flag::new("--skip-bad", "skip_bad", Kind::Int, "Bad lines to put aside before giving up").or(Fallback::Int(0)),
] };

/// Parses and runs; gives the exit code. A run that was killed goes on where it was.
pub fn run(argv: &[String]) -> u8 {
    let parsed = parse_or_exit(PROGRAM, &FLAGS, argv).and_then(|a| Ok((to_args(&a)?, options(&a)?)));
    let (args, options) = match parsed {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    match preprocess::run_to_files(&args, &options, &mut io::stdout().lock()) {
        Ok(_) => 0,
        Err(e) => crate::fail(PROGRAM, e),
    }
}

fn options(a: &RawArgs) -> Result<Options, u8> {
    let shard = a.text("shard").map(|text| {
        text.parse::<Shard>().map_err(|e| {
            eprintln!("{PROGRAM}: --shard {text}: {e}");
            2
        })
    });
    Ok(Options {
        tiktoken: TikTokenOptions {
            pattern: a.text("tiktoken_pattern").map(str::to_string),
            num_special_tokens: count(PROGRAM, a, "tiktoken_num_special_tokens")? as usize,
        },
        split_sentences: a.flag("split_sentences"),
        keep_newlines: a.flag("keep_newlines"),
        partitions: count(PROGRAM, a, "partitions")?.max(1) as usize,
        shard: shard.transpose()?,
        terminal: io::stdout().is_terminal(),
        ..Options::default()
    })
}

fn to_args(a: &RawArgs) -> Result<PreprocessArgs, u8> {
    required(PROGRAM, a, "tokenizer_type")?;
    let prefix = required(PROGRAM, a, "output_prefix")?;
    let input = a.texts("input");
    if input.is_empty() {
        eprintln!("{PROGRAM}: --input is required; see {PROGRAM} --help");
        return Err(2);
    }
    Ok(PreprocessArgs {
        input,
        json_keys: a.texts("json_keys"),
        tokenizer: tokenizer_spec(a),
        output_prefix: PathBuf::from(prefix),
        append_eod: a.flag("append_eod"),
        prepend_bos: a.flag("prepend_bos"),
        workers: count(PROGRAM, a, "workers")?.max(1) as usize,
        log_interval: count(PROGRAM, a, "log_interval")?,
        skip_bad: count(PROGRAM, a, "skip_bad")?,
    })
}

/// The tokenizer flags, which all tools that read text share.
pub fn tokenizer_spec(a: &RawArgs) -> TokenizerSpec {
    let text = |dest| a.text(dest).map(str::to_string);
    TokenizerSpec {
        tokenizer_type: text("tokenizer_type").unwrap_or_default(),
        tokenizer_model: text("tokenizer_model"),
        tokenizer_name_or_path: text("tokenizer_name_or_path"),
        vocab_file: text("vocab_file").map(PathBuf::from),
        merge_file: text("merge_file").map(PathBuf::from),
        vocab_size: a.int("vocab_size").and_then(|n| usize::try_from(n).ok()),
        special_tokens: a.texts("tokenizer_special_tokens"),
        eod_token: text("eod_token"),
        null_eod_id: a.int("null_tokenizer_eod_id"),
        null_pad_id: a.int("null_tokenizer_pad_id"),
        hf_no_include_special_tokens: a.flag("tokenizer_hf_no_include_special_tokens"),
    }
}
