//! `ferrotron merge_datasets`, `ferrotron tokenizer train`, `ferrotron repair`: work on token files and vocabularies.

use std::path::PathBuf;

use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Nargs, Source};
use ferrotron_data::indexed::{Multimodal, merge, repair};
use ferrotron_tokenizer::{BpeTraining, Words, bpe_train};

use crate::table::{count, parse_or_exit, required};

#[rustfmt::skip]
static MERGE: Group = Group { name: "merge_datasets", source: Source::Megatron, flags: &[
    Flag::new("--input", "input", Kind::Str, "Prefixes of .bin/.idx pairs, in order, or folders of them").takes(Nargs::Some),
    Flag::new("--output-prefix", "output_prefix", Kind::Str, "Prefix of the pair to write"),
    Flag::new("--multimodal", "multimodal", Kind::StoreTrue, "The datasets have modes"),
] };

#[rustfmt::skip]
static TRAIN: Group = Group { name: "tokenizer train", source: Source::Ferrotron, flags: &[
    Flag::new("--input", "input", Kind::Str, "JSONL files, folders of them, or patterns with *").takes(Nargs::Some),
    Flag::new("--json-keys", "json_keys", Kind::Str, "Keys whose texts are learned from").takes(Nargs::Some).or(Fallback::List(&[Fallback::Str("text")])),
    Flag::new("--vocab-size", "vocab_size", Kind::Int, "Entries of the vocabulary").or(Fallback::Int(32000)),
    Flag::new("--min-frequency", "min_frequency", Kind::Int, "Rarest pair to join").or(Fallback::Int(2)),
    Flag::new("--special-tokens", "special_tokens", Kind::Str, "Tokens with the lowest ids; the first ends documents").takes(Nargs::Some)
        .or(Fallback::List(&[Fallback::Str("<|endoftext|>")])),
    Flag::new("--output", "output", Kind::Str, "Folder for tokenizer.json"),
] };

#[rustfmt::skip]
static REPAIR: Group = Group { name: "repair", source: Source::Ferrotron, flags: &[
    Flag::new("--input", "input", Kind::Str, "Prefix of a pair whose last document has no end"),
    Flag::new("--output-prefix", "output_prefix", Kind::Str, "Prefix of the corrected pair"),
] };

/// `merge_datasets`; gives the exit code.
pub fn merge_datasets(argv: &[String]) -> u8 {
    const PROGRAM: &str = "merge_datasets";
    let run = || -> Result<u8, u8> {
        let a = parse_or_exit(PROGRAM, &MERGE, argv)?;
        let output = required(PROGRAM, &a, "output_prefix")?;
        let inputs = prefixes(&a.texts("input")).map_err(|e| crate::fail(PROGRAM, e))?;
        let modes = if a.flag("multimodal") { Multimodal::Yes } else { Multimodal::No };
        let m = merge(output, &inputs, modes).map_err(|e| crate::fail(PROGRAM, e))?;
        println!("{output}: {} datasets, {} documents, {} tokens", m.datasets, m.documents, m.tokens);
        Ok(0)
    };
    run().unwrap_or_else(|code| code)
}

/// Prefixes as given; a folder stands for the pairs in it, by name.
fn prefixes(input: &[String]) -> Result<Vec<PathBuf>, String> {
    let mut out = vec![];
    for path in input.iter().map(PathBuf::from) {
        if !path.is_dir() {
            out.push(path);
            continue;
        }
        let fail = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
        let mut found = vec![];
        for entry in std::fs::read_dir(&path).map_err(fail)? {
            let file = entry.map_err(fail)?.path();
            if file.extension().is_some_and(|e| e == "idx") {
                found.push(file.with_extension(""));
            }
        }
        found.sort();
        out.extend(found);
    }
    Ok(out)
}

/// `tokenizer train`; gives the exit code.
pub fn tokenizer(argv: &[String]) -> u8 {
    const PROGRAM: &str = "ferrotron tokenizer train";
    let Some(("train", rest)) = argv.split_first().map(|(c, rest)| (c.as_str(), rest)) else {
        eprintln!("usage: {PROGRAM} --input FILE.jsonl --vocab-size N --output FOLDER");
        return 2;
    };
    let run = || -> Result<u8, u8> {
        let a = parse_or_exit(PROGRAM, &TRAIN, rest)?;
        let settings = BpeTraining {
            input: a.texts("input"),
            json_keys: a.texts("json_keys"),
            vocab_size: count(PROGRAM, &a, "vocab_size")? as usize,
            min_frequency: count(PROGRAM, &a, "min_frequency")?,
            special_tokens: a.texts("special_tokens"),
            words: Words::default(),
            output: PathBuf::from(required(PROGRAM, &a, "output")?),
        };
        let t = bpe_train(&settings).map_err(|e| crate::fail(PROGRAM, e))?;
        println!("{}: {} tokens, from {} texts", settings.output.display(), t.vocab_size, t.texts);
        Ok(0)
    };
    run().unwrap_or_else(|code| code)
}

/// `repair`; gives the exit code.
pub fn repair_dataset(argv: &[String]) -> u8 {
    const PROGRAM: &str = "ferrotron repair";
    let run = || -> Result<u8, u8> {
        let a = parse_or_exit(PROGRAM, &REPAIR, argv)?;
        let (input, output) = (required(PROGRAM, &a, "input")?, required(PROGRAM, &a, "output_prefix")?);
        let n = repair(input, output).map_err(|e| crate::fail(PROGRAM, e))?;
        println!("{output}: {n} sequences became a document");
        Ok(0)
    };
    run().unwrap_or_else(|code| code)
}
