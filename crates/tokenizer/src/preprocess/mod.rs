//! JSONL corpora to Megatron's token files: the library behind `preprocess_data` (Megatron's `tools/preprocess_data.py`).
//!
//! A reader cuts the input into batches of lines, workers parse and tokenize them, and the calling thread writes them
//! in the order of the input, so the output does not depend on the number of workers. Memory is bounded by a gate
//! between reader and writer. Nothing appears under its final name before everything has been written.

mod batch;
mod encode;
mod files;
mod gate;
mod input;
mod journal;
mod output;
mod pipeline;
mod progress;
mod reader;
mod record;
mod sentences;
mod source;
mod summary;
pub(crate) mod texts;

pub use output::{DocumentSink, OutputPlan, SinkError, SinkFactory, SinkMark};
pub use summary::{KeySummary, Summary};

use crate::{Error, TikTokenOptions, TokenDType, Tokenizer, TokenizerSpec, build_with};
use input::InputFile;
use journal::{Journal, Place, State};
use output::{Names, Outputs};
use serde_json::{Value, json};
use source::Packing;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

/// A share of a corpus, for the jobs of an array: `--shard i/n`, `i` from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which share.
    pub index: u64,
    /// How many there are.
    pub count: u64,
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Shard, Error> {
        let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((index, count)) if index < count => Ok(Shard { index, count }),
            _ => Err(Error::Argument {
                flag: "--shard",
                detail: format!("{text:?} is not i/n with i from 0 to n - 1, for example 0/8 to 7/8"),
            }),
        }
    }
}

/// The less common flags of `preprocess_data`.
#[derive(Debug, Clone)]
pub struct Options {
    /// `--tiktoken-pattern`, `--tiktoken-num-special-tokens`.
    pub tiktoken: TikTokenOptions,
    /// `--split-sentences`: every sentence is a sequence, and the files are `<prefix>_<key>_sentence`.
    pub split_sentences: bool,
    /// `--keep-newlines`: newlines after a sentence stay at its end.
    pub keep_newlines: bool,
    /// `--partitions`. Megatron cuts the input into so many parts with processes of their own, and reorders documents
    /// by that; here it changes nothing.
    pub partitions: usize,
    /// `--shard`: the files get the share into their name, `<prefix>-00002-of-00008_<key>_document`. Merged in order
    /// they equal the files of the whole.
    pub shard: Option<Shard>,
    /// Whether `out` is a terminal: a bar instead of lines.
    pub terminal: bool,
    /// How often the run is made safe against a kill. What was done since is done again.
    pub checkpoint_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tiktoken: TikTokenOptions::default(),
            split_sentences: false,
            keep_newlines: false,
            partitions: 1,
            shard: None,
            terminal: false,
            checkpoint_every: Duration::from_secs(5),
        }
    }
}

/// Preprocesses a corpus into `.bin` and `.idx` files. Progress and the summary go to `out`.
///
/// A run that is killed leaves `<prefix>.journal` and files whose names say that they are partial; the same command
/// then goes on where it was, and its files equal those of a run that was not interrupted. After another command the
/// journal is thrown away.
///
/// # Errors
/// All problems of the command line before any work; after that the first bad line of the input as
/// `file:line:column`, or a failed read or write. After an error nothing is left on disk, and earlier output of the
/// same name is as it was (unless the error came while the finished files were being renamed).
pub fn run_to_files(args: &PreprocessArgs, options: &Options, out: &mut dyn Write) -> Result<Summary, Error> {
    start(args, options, &mut files::open, true, out)
}

/// As [`run_to_files`], for a caller with writers of its own: `sinks` opens that of each dataset. Such a run cannot be
/// gone on with after a kill.
///
/// # Errors
/// As [`run_to_files`].
pub fn run(args: &PreprocessArgs, sinks: &mut SinkFactory<'_>, out: &mut dyn Write) -> Result<Summary, Error> {
    start(args, &Options::default(), sinks, false, out)
}

fn start(
    args: &PreprocessArgs,
    options: &Options,
    sinks: &mut SinkFactory<'_>,
    resumable: bool,
    out: &mut dyn Write,
) -> Result<Summary, Error> {
    let started = Instant::now();
    let print = || Error::io("print to", "standard output");
    let mut job = Job::check(args, options)?;
    let dtype = TokenDType::for_vocab(job.tokenizer.vocab_size());
    let names = job.names();
    names.check()?;
    job.announce(dtype, out)?;
    let keys = &args.json_keys;
    let mut outputs = if resumable {
        let open = || Journal::open(&names.journal(), &job.about());
        let (journal, state, other) = open()?;
        if other {
            writeln!(out, "An interrupted run with other flags or files is thrown away").map_err(print())?;
        }
        match Outputs::create(&names, keys, dtype, sinks, (Some(journal), state.as_ref())) {
            Ok(outputs) => {
                job.from = state;
                outputs
            }
            // Files of the interrupted run are gone: everything is done again. The failed attempt removed the rest.
            Err(e) if state.is_some() => {
                writeln!(out, "The interrupted run cannot be gone on with ({e}); beginning anew").map_err(print())?;
                Outputs::create(&names, keys, dtype, sinks, (Some(open()?.0), None))?
            }
            Err(e) => return Err(e),
        }
    } else {
        Outputs::create(&names, keys, dtype, sinks, (None, None))?
    };
    if let Some(state) = &job.from {
        writeln!(out, "Going on after {} documents of an interrupted run", state.documents).map_err(print())?;
        let skipped: u64 = job.files.iter().take(state.next.file).map(InputFile::disk_bytes).sum();
        let inside = state.next.offset.saturating_sub(job.files.get(state.next.file).map_or(0, |f| f.part.start));
        let plain = job.files.get(state.next.file).is_some_and(|f| f.packing == Packing::Plain);
        job.read.store(skipped + if plain { inside } else { 0 }, Ordering::Relaxed);
    }

    let mut summary = pipeline::run(&job, &mut outputs, out)?;
    outputs.publish(&mut summary)?;
    summary.seconds = started.elapsed().as_secs_f64();
    write!(out, "{summary}").and_then(|()| out.flush()).map_err(print())?;
    Ok(summary)
}

/// A command line that has been checked.
struct Job<'a> {
    args: &'a PreprocessArgs,
    options: &'a Options,
    files: Vec<InputFile>,
    tokenizer: Arc<dyn Tokenizer>,
    /// Put before and after every document.
    bos: Option<u32>,
    eod: Option<u32>,
    /// State of an interrupted run that this one goes on with.
    from: Option<State>,
    /// Bytes read from disk so far.
    read: Arc<AtomicU64>,
}

impl<'a> Job<'a> {
    /// Where reading begins.
    fn start(&self) -> Place {
        self.from.as_ref().map(|s| s.next).unwrap_or_default()
    }

    fn names(&self) -> Names {
        let share = self.options.shard.map(|s| format!("-{:05}-of-{:05}", s.index, s.count));
        Names {
            prefix: output::with_suffix(&self.args.output_prefix, share.as_deref().unwrap_or_default()),
            level: if self.options.split_sentences { "sentence" } else { "document" },
        }
    }

    /// All that decides the bytes of the output: only a run of which this is equal can be gone on with.
    fn about(&self) -> Value {
        let modified = |path: &Path| -> Option<u128> {
            let modified = std::fs::metadata(path).and_then(|m| m.modified()).ok()?;
            modified.duration_since(std::time::UNIX_EPOCH).ok().map(|d| d.as_nanos())
        };
        let tokenizer = &self.args.tokenizer;
        let named =
            [&tokenizer.tokenizer_model, &tokenizer.tokenizer_name_or_path].map(|p| p.as_ref().map(PathBuf::from));
        let [model, other] = named;
        let paths = [model, other, tokenizer.vocab_file.clone(), tokenizer.merge_file.clone()];
        let dates = paths.map(|p| p.and_then(|p| modified(&p)).map(|t| t.to_string()));
        let inputs: Vec<Value> = (self.files.iter())
            .map(|f| json!([f.path.display().to_string(), f.bytes, modified(&f.path).map(|t| t.to_string())]))
            .collect();
        json!({
            "program": env!("CARGO_PKG_VERSION"),
            "inputs": inputs,
            "keys": self.args.json_keys,
            "tokenizer": format!("{tokenizer:?} {:?}", self.options.tiktoken),
            "tokenizer_dates": dates,
            "vocab_size": self.tokenizer.vocab_size(),
            "ends": [self.bos, self.eod],
            "sentences": [self.options.split_sentences, self.options.keep_newlines],
            "shard": self.options.shard.map(|s| [s.index, s.count]),
            "skip_bad": self.args.skip_bad,
        })
    }

    fn check(args: &'a PreprocessArgs, options: &'a Options) -> Result<Job<'a>, Error> {
        let bad = |flag, detail: &str| Err(Error::Argument { flag, detail: detail.into() });
        if args.workers == 0 {
            return bad("--workers", "0 workers can do nothing; at least 1");
        }
        if args.log_interval == 0 {
            return bad("--log-interval", "0 is not an interval; at least 1");
        }
        if options.partitions == 0 {
            return bad("--partitions", "0 partitions can do nothing; at least 1");
        }
        if options.keep_newlines && !options.split_sentences {
            return bad("--keep-newlines", "is about the newlines between sentences; add --split-sentences");
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
        let mut files = input::expand(&args.input)?;
        if let Some(Shard { index, count }) = options.shard {
            files = input::shard(files, index, count);
        }
        let tokenizer = build_with(&args.tokenizer, &options.tiktoken)?;
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
        Ok(Job { args, options, files, tokenizer, bos, eod, from: None, read: Arc::default() })
    }

    fn announce(&self, dtype: TokenDType, out: &mut dyn Write) -> Result<(), Error> {
        let bytes: u64 = self.files.iter().map(InputFile::disk_bytes).sum();
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
