//! Where tokens go: one writer for each key under temporary names, renamed when all are complete.

use super::batch::Encoded;
use super::{KeySummary, Summary};
use crate::{Error, TokenDType};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// What a [`DocumentSink`] fails with.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Opens the writer of one dataset. It must write `<partial>.bin` and `<partial>.idx`.
pub type SinkFactory<'a> = dyn FnMut(&OutputPlan) -> Result<Box<dyn DocumentSink>, SinkError> + 'a;

/// Takes documents and makes a `.bin` and `.idx` of them.
pub trait DocumentSink {
    /// Appends a document: `tokens` are its sequences back to back, `lengths` their lengths, which sum to
    /// `tokens.len()`. A document without tokens has no sequence, but is counted (Megatron's `add_document`).
    fn add_document(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<(), SinkError>;

    /// Writes what is left and closes both files.
    fn finish(self: Box<Self>) -> Result<(), SinkError>;
}

/// One dataset to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPlan {
    /// The JSON key.
    pub key: String,
    /// Prefix of the final files: `<output prefix>_<key>_document`.
    pub prefix: PathBuf,
    /// Prefix to write to; both files are renamed to the final names at the end.
    pub partial: PathBuf,
    /// Storage type of a token.
    pub dtype: TokenDType,
}

/// `path` with `suffix` after its last component, whatever dots it has.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(suffix);
    name.into()
}

const SUFFIXES: [&str; 2] = [".bin", ".idx"];

/// All files of a run. Dropped before [`Outputs::publish`], it removes what it wrote.
pub(super) struct Outputs {
    sets: Vec<Set>,
    folder: PathBuf,
    bad: BadLines,
}

struct Set {
    plan: OutputPlan,
    sink: Option<Box<dyn DocumentSink>>,
    summary: KeySummary,
}

struct BadLines {
    path: PathBuf,
    partial: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Outputs {
    pub fn create(
        prefix: &Path,
        keys: &[String],
        dtype: TokenDType,
        sinks: &mut SinkFactory<'_>,
    ) -> Result<Outputs, Error> {
        let folder = prefix.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf();
        if !folder.is_dir() {
            return Err(Error::Argument {
                flag: "--output-prefix",
                detail: format!("folder {} does not exist; make it first (mkdir -p)", folder.display()),
            });
        }
        let bad = BadLines {
            path: with_suffix(prefix, ".bad.jsonl"),
            partial: with_suffix(prefix, ".bad.jsonl.partial"),
            file: None,
        };
        let mut outputs = Outputs { sets: Vec::new(), folder, bad };
        for key in keys {
            let prefix = with_suffix(prefix, &format!("_{key}_document"));
            let partial = with_suffix(&prefix, ".partial");
            let summary = KeySummary { key: key.clone(), prefix: prefix.clone(), ..Default::default() };
            let plan = OutputPlan { key: key.clone(), prefix, partial, dtype };
            outputs.sets.push(Set { plan, sink: None, summary });
        }
        for set in &mut outputs.sets {
            set.sink = Some(sinks(&set.plan).map_err(|source| Error::Sink { path: set.plan.partial.clone(), source })?);
        }
        Ok(outputs)
    }

    pub fn write(&mut self, encoded: &Encoded) -> Result<(), Error> {
        for (set, key) in self.sets.iter_mut().zip(&encoded.keys) {
            let Some(sink) = &mut set.sink else { continue };
            for (tokens, lengths) in key.documents() {
                sink.add_document(tokens, lengths)
                    .map_err(|source| Error::Sink { path: set.plan.partial.clone(), source })?;
                set.summary.count(tokens.len(), lengths.len());
            }
        }
        Ok(())
    }

    /// Copies a bad line to the file for them.
    pub fn set_aside(&mut self, line: &[u8]) -> Result<(), Error> {
        let BadLines { partial, file, .. } = &mut self.bad;
        let file = match file {
            Some(file) => file,
            None => file.insert(BufWriter::new(File::create(&*partial).map_err(Error::io("create", &*partial))?)),
        };
        file.write_all(line).and_then(|()| file.write_all(b"\n")).map_err(Error::io("write", &*partial))
    }

    /// Tokens so far, of all keys.
    pub fn tokens(&self) -> u64 {
        self.sets.iter().map(|s| s.summary.tokens).sum()
    }

    /// Completes all files, then gives them their final names. Data goes before its index, and an old index goes
    /// first of all: whenever this is interrupted, no index describes another run's data.
    pub fn publish(&mut self, summary: &mut Summary) -> Result<(), Error> {
        for set in &mut self.sets {
            let Some(sink) = set.sink.take() else { continue };
            sink.finish().map_err(|source| Error::Sink { path: set.plan.partial.clone(), source })?;
            for suffix in SUFFIXES {
                sync(&with_suffix(&set.plan.partial, suffix))?;
            }
        }
        if let Some(mut file) = self.bad.file.take() {
            file.flush().map_err(Error::io("write", &self.bad.partial))?;
            sync(&self.bad.partial)?;
            rename(&self.bad.partial, &self.bad.path)?;
            summary.bad_lines = Some(self.bad.path.clone());
        }
        for set in &self.sets {
            remove_if_there(&with_suffix(&set.plan.prefix, ".idx"))?;
            for suffix in SUFFIXES {
                rename(&with_suffix(&set.plan.partial, suffix), &with_suffix(&set.plan.prefix, suffix))?;
            }
        }
        sync(&self.folder)?;
        summary.keys = self.sets.iter().map(|s| s.summary.clone()).collect();
        Ok(())
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.bad.file = None;
        for set in &mut self.sets {
            set.sink = None;
            for suffix in SUFFIXES {
                // Nothing more can be done about a file that cannot be removed; its name says that it is partial.
                let _ = fs::remove_file(with_suffix(&set.plan.partial, suffix));
            }
        }
        let _ = fs::remove_file(&self.bad.partial);
    }
}

fn sync(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|f| f.sync_all()).map_err(Error::io("flush to disk", path))
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(Error::io("rename a finished file to", to))
}

fn remove_if_there(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("replace", path)(e)),
        _ => Ok(()),
    }
}
