//! Where tokens go: one writer for each key under temporary names, renamed when all are complete.

use super::batch::Encoded;
use super::journal::{Journal, KeyState, State};
use super::{KeySummary, Summary};
use crate::{Error, TokenDType};
use ferrotron_data::indexed::ResumableWriter;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
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

    /// Makes everything so far durable, and says how to go on from here after an interruption; `None` for a writer
    /// that cannot.
    ///
    /// # Errors
    /// When writing fails.
    fn mark(&mut self) -> Result<Option<SinkMark>, SinkError> {
        Ok(None)
    }

    /// Writes what is left and closes both files.
    fn finish(self: Box<Self>) -> Result<(), SinkError>;
}

/// How far a writer came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkMark {
    /// Bytes of `<partial>.bin`.
    pub bytes: u64,
    /// Sequences.
    pub sequences: u64,
    /// Documents.
    pub documents: u64,
}

/// One dataset to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPlan {
    /// The JSON key.
    pub key: String,
    /// Prefix of the final files: `<output prefix>_<key>_document`, or `_sentence`.
    pub prefix: PathBuf,
    /// Prefix to write to; both files are renamed to the final names at the end.
    pub partial: PathBuf,
    /// Storage type of a token.
    pub dtype: TokenDType,
    /// Where an interrupted run's files are to be gone on with; `None` to begin anew.
    pub resume: Option<SinkMark>,
}

/// `path` with `suffix` after its last component, whatever dots it has.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
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
    journal: Option<Journal>,
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
    /// Size, with what is still in the buffer.
    bytes: u64,
}

impl BadLines {
    /// Opens the file of an interrupted run, cut to the size it had.
    fn go_on_from(&mut self, bytes: u64) -> Result<(), Error> {
        let open = || -> std::io::Result<File> {
            let mut file = File::options().write(true).open(&self.partial)?;
            if file.metadata()?.len() < bytes {
                return Err(std::io::Error::other(format!("it has less than the {bytes} bytes written before")));
            }
            file.set_len(bytes)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        self.file = Some(BufWriter::new(open().map_err(Error::io("open", &self.partial))?));
        self.bytes = bytes;
        Ok(())
    }
}

/// How the files of a run are called.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// `--output-prefix`, with the share of `--shard`.
    pub prefix: PathBuf,
    /// `document`, or `sentence` for `--split-sentences`.
    pub level: &'static str,
}

impl Names {
    /// # Errors
    /// When the folder does not exist.
    pub fn check(&self) -> Result<(), Error> {
        let folder = self.folder();
        if folder.is_dir() {
            return Ok(());
        }
        let detail = format!("folder {} does not exist; make it first (mkdir -p)", folder.display());
        Err(Error::Argument { flag: "--output-prefix", detail })
    }

    pub fn journal(&self) -> PathBuf {
        with_suffix(&self.prefix, ".journal")
    }

    fn folder(&self) -> PathBuf {
        self.prefix.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
    }
}

impl Outputs {
    /// Opens all files: anew, or as `journal` and its last state left them.
    pub fn create(
        names: &Names,
        keys: &[String],
        dtype: TokenDType,
        sinks: &mut SinkFactory<'_>,
        (journal, state): (Option<Journal>, Option<&State>),
    ) -> Result<Outputs, Error> {
        let prefix = &names.prefix;
        let bad = BadLines {
            path: with_suffix(prefix, ".bad.jsonl"),
            partial: with_suffix(prefix, ".bad.jsonl.partial"),
            file: None,
            bytes: 0,
        };
        let mut outputs = Outputs { sets: Vec::new(), folder: names.folder(), bad, journal };
        for (i, key) in keys.iter().enumerate() {
            let prefix = with_suffix(prefix, &format!("_{key}_{}", names.level));
            let partial = with_suffix(&prefix, ".partial");
            let before = state.and_then(|s| s.keys.get(i)).copied();
            let mut summary = KeySummary { key: key.clone(), prefix: prefix.clone(), ..Default::default() };
            let resume = before.map(|k| {
                summary.go_on_from(&k);
                SinkMark { bytes: k.bytes, sequences: k.sequences, documents: k.documents }
            });
            let plan = OutputPlan { key: key.clone(), prefix, partial, dtype, resume };
            outputs.sets.push(Set { plan, sink: None, summary });
        }
        for set in &mut outputs.sets {
            set.sink = Some(sinks(&set.plan).map_err(|source| Error::Sink { path: set.plan.partial.clone(), source })?);
        }
        if let Some(bytes) = state.map(|s| s.bad_bytes).filter(|&n| n > 0) {
            outputs.bad.go_on_from(bytes)?;
        }
        Ok(outputs)
    }

    /// Makes everything so far durable and notes it in the journal, if all writers can go on from here.
    pub fn checkpoint(&mut self, mut state: State) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        for set in &mut self.sets {
            let Some(sink) = &mut set.sink else { return Ok(()) };
            let mark = sink.mark().map_err(|source| Error::Sink { path: set.plan.partial.clone(), source })?;
            let Some(SinkMark { bytes, sequences, documents }) = mark else { return Ok(()) };
            let KeySummary { tokens, longest, empty, .. } = set.summary;
            state.keys.push(KeyState { bytes, sequences, documents, tokens, longest, empty });
        }
        if let Some(file) = &mut self.bad.file {
            let flushed = file.flush().and_then(|()| file.get_ref().sync_data());
            flushed.map_err(Error::io("write", &self.bad.partial))?;
            state.bad_bytes = self.bad.bytes;
        }
        journal.add(&state)
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
        let BadLines { partial, file, bytes, .. } = &mut self.bad;
        let file = match file {
            Some(file) => file,
            None => file.insert(BufWriter::new(File::create(&*partial).map_err(Error::io("create", &*partial))?)),
        };
        *bytes += line.len() as u64 + 1;
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
        for set in &self.sets {
            ResumableWriter::remove_side_files(&set.plan.partial);
        }
        if let Some(journal) = self.journal.take() {
            journal.remove();
        }
        summary.keys = self.sets.iter().map(|s| s.summary.clone()).collect();
        Ok(())
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.bad.file = None;
        for set in &mut self.sets {
            set.sink = None;
            // Nothing more can be done about a file that cannot be removed; its name says that it is partial.
            ResumableWriter::remove(&set.plan.partial);
        }
        let _ = fs::remove_file(&self.bad.partial);
        if let Some(journal) = self.journal.take() {
            journal.remove();
        }
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
