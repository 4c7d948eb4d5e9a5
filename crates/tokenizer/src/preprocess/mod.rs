//! JSONL corpora to Megatron's token files: the library behind `preprocess_data` (Megatron's `tools/preprocess_data.py`).
//!
//! A reader cuts the input into batches of lines, workers parse and tokenize them, and the calling thread writes them
//! in the order of the input, so the output does not depend on the number of workers. Memory is bounded by a gate
//! between reader and writer. Nothing appears under its final name before everything has been written.

mod batch;
mod encode;
mod gate;
mod input;
mod output;
mod pipeline;
mod reader;
mod record;
mod summary;

pub use output::{DocumentSink, OutputPlan, SinkError, SinkFactory};
pub use summary::{KeySummary, Summary};

use crate::{Error, TokenDType, Tokenizer, TokenizerSpec, build};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// The command line of `preprocess_data`.
#[derive(Debug, Clone)]
pub struct PreprocessArgs {
    /// `--input`: files, folders (their `.jsonl` and `.json` files) and patterns with `*`, `?` or `[…]`. Documents
    /// keep the order of this list; what a folder or a pattern stands for is in byte order of names.
    pub input: Vec<String>,
    /// `--json-keys`: each key makes a dataset of its own.
    pub json_keys: Vec<String>,
    /// The tokenizer flags.
    pub tokenizer: TokenizerSpec,
    /// `--output-prefix`: the files are `<prefix>_<key>_document.bin` and `.idx`.
    pub output_prefix: PathBuf,
    /// `--append-eod`: the end-of-document id after every document that has tokens.
    pub append_eod: bool,
    /// `--prepend-bos`: the beginning-of-sequence id before every document that has tokens.
    pub prepend_bos: bool,
    /// `--workers`: tokenizing threads.
    pub workers: usize,
    /// `--log-interval`: documents between progress lines.
    pub log_interval: u64,
    /// `--skip-bad`: bad lines to leave out, at most; they are copied to `<prefix>.bad.jsonl`.
    pub skip_bad: u64,
}

/// Preprocesses a corpus. `sinks` opens the writer of each dataset; progress lines and the summary go to `out`.
///
/// # Errors
/// All problems of the command line before any work; after that the first bad line of the input as
/// `file:line:column`, or a failed read or write. After an error nothing is left on disk, and earlier output of the
/// same name is as it was (unless the error came while the finished files were being renamed).
pub fn run(args: &PreprocessArgs, sinks: &mut SinkFactory<'_>, out: &mut dyn Write) -> Result<Summary, Error> {
    let started = Instant::now();
    let job = Job::check(args)?;
    let dtype = TokenDType::for_vocab(job.tokenizer.vocab_size());
    let mut outputs = output::Outputs::create(&args.output_prefix, &args.json_keys, dtype, sinks)?;
    job.announce(dtype, out)?;

    let mut summary = pipeline::run(&job, &mut outputs, out)?;
    outputs.publish(&mut summary)?;
    summary.seconds = started.elapsed().as_secs_f64();
    write!(out, "{summary}").and_then(|()| out.flush()).map_err(Error::io("print to", "standard output"))?;
    Ok(summary)
}

/// A command line that has been checked.
struct Job<'a> {
    args: &'a PreprocessArgs,
    files: Vec<input::InputFile>,
    tokenizer: std::sync::Arc<dyn Tokenizer>,
    /// Put before and after every document.
    bos: Option<u32>,
    eod: Option<u32>,
}

impl<'a> Job<'a> {
    fn check(args: &'a PreprocessArgs) -> Result<Job<'a>, Error> {
        let bad = |flag, detail: &str| Err(Error::Argument { flag, detail: detail.into() });
        if args.workers == 0 {
            return bad("--workers", "0 workers can do nothing; at least 1");
        }
        if args.log_interval == 0 {
            return bad("--log-interval", "0 is not an interval; at least 1");
        }
        if args.json_keys.is_empty() {
            return bad("--json-keys", "no key given; the usual one is text");
        }
        for (i, key) in args.json_keys.iter().enumerate() {
            if key.contains(['/', '\0']) {
                return bad("--json-keys", &format!("{key:?} would be part of a file name, so it cannot have a slash"));
            }
            if args.json_keys[..i].contains(key) {
                return bad("--json-keys", &format!("{key:?} is given twice"));
            }
        }
        let files = input::expand(&args.input)?;
        let tokenizer = build(&args.tokenizer)?;
        let special = |wanted: bool, id: Option<u32>, role, flag, remedy| match (wanted, id) {
            (false, _) => Ok(None),
            (true, Some(id)) => Ok(Some(id)),
            (true, None) => {
                Err(Error::MissingSpecial { tokenizer: tokenizer.name().into(), role, needed_by: flag, remedy })
            }
        };
        let eod = special(args.append_eod, tokenizer.eod(), "end-of-document", "--append-eod", "pass --eod-token")?;
        let bos = special(
            args.prepend_bos,
            tokenizer.bos(),
            "beginning-of-sequence",
            "--prepend-bos",
            "leave the flag out or use a tokenizer that has one",
        )?;
        if bos.is_some() && tokenizer.adds_bos() {
            return bad(
                "--prepend-bos",
                "the tokenizer already puts its beginning-of-sequence token before each text, so it would be there \
                 twice; leave the flag out, or add --tokenizer-hf-no-include-special-tokens",
            );
        }
        Ok(Job { args, files, tokenizer, bos, eod })
    }

    fn announce(&self, dtype: TokenDType, out: &mut dyn Write) -> Result<(), Error> {
        let bytes: u64 = self.files.iter().map(|f| f.bytes).sum();
        writeln!(
            out,
            "Input: {} file(s), {:.1} MB; tokenizer {} with {} tokens, stored as {dtype}; {} worker(s)",
            self.files.len(),
            bytes as f64 / 1e6,
            self.tokenizer.name(),
            self.tokenizer.vocab_size(),
            self.args.workers
        )
        .map_err(Error::io("print to", "standard output"))
    }
}
