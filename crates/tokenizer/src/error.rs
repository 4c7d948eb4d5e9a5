//! Errors of tokenizers and of preprocessing: what, where, why and what to do.

use std::fmt;
use std::path::PathBuf;

/// Anything that stops a tokenizer from being built or used, or a corpus from being preprocessed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A flag's value cannot be used.
    #[error("{flag}: {detail}")]
    Argument {
        /// The flag as typed.
        flag: &'static str,
        /// What is wrong with its value, and what would be right.
        detail: String,
    },
    /// A tokenizer needs a flag that is absent.
    #[error("--tokenizer-type {tokenizer} needs {flag}")]
    MissingFlag {
        /// The tokenizer asked for.
        tokenizer: &'static str,
        /// The absent flag.
        flag: &'static str,
    },
    /// `--tokenizer-type` names something this program cannot build.
    #[error("--tokenizer-type {name} is not available: {reason}. Available: {available}")]
    UnavailableType {
        /// The name as typed.
        name: String,
        /// Unknown, or known but without an implementation, and the way around.
        reason: String,
        /// Names that work.
        available: &'static str,
    },
    /// The tokenizer's path is not on this machine.
    #[error(
        "{flag} {path}: no such file or folder. Nothing is downloaded: copy the tokenizer here (a folder with \
         tokenizer.json) and give its path"
    )]
    NotLocal {
        /// The flag that named it.
        flag: &'static str,
        /// The path or hub name as typed.
        path: String,
    },
    /// A tokenizer's file is not what it should be.
    #[error("{}: {detail}", path.display())]
    Malformed {
        /// The file or folder.
        path: PathBuf,
        /// What was found, what was expected.
        detail: String,
    },
    /// The tokenizer lacks a special token that was asked for.
    #[error("tokenizer {tokenizer} has no {role} token, which {needed_by} needs; {remedy}")]
    MissingSpecial {
        /// The tokenizer.
        tokenizer: String,
        /// `end-of-document` or `beginning-of-sequence`.
        role: &'static str,
        /// The flag that needs it.
        needed_by: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A text cannot be expressed in ids.
    #[error("{tokenizer}: {detail}")]
    Encode {
        /// The tokenizer.
        tokenizer: String,
        /// Why.
        detail: String,
    },
    /// Ids cannot be turned into text.
    #[error("{tokenizer}: cannot decode: {detail}")]
    Decode {
        /// The tokenizer.
        tokenizer: String,
        /// Why.
        detail: String,
    },
    /// A line of the corpus is bad, and no more may be skipped.
    #[error("{0}")]
    Line(#[from] LineError),
    /// One bad line more than `--skip-bad` allows.
    #[error("{last}\n{count} bad lines are more than the {allowed} that --skip-bad allows")]
    TooManyBadLines {
        /// The line that was one too many.
        last: LineError,
        /// Bad lines so far, this one included.
        count: u64,
        /// `--skip-bad`.
        allowed: u64,
    },
    /// The tokenizer crashed on a part of the corpus.
    #[error("{}: lines {first_line} to {last_line}: the tokenizer crashed: {detail}", file.display())]
    WorkerCrashed {
        /// The input file.
        file: PathBuf,
        /// First line of the batch, from 1.
        first_line: u64,
        /// Last line of the batch.
        last_line: u64,
        /// The panic's message.
        detail: String,
    },
    /// The writer of token files failed.
    #[error("cannot write {}: {source}", path.display())]
    Sink {
        /// The file being written.
        path: PathBuf,
        /// The writer's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }
}

/// A bad line of a corpus, as `file:line:column: problem`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineError {
    /// The input file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: u64,
    /// Byte column, from 1.
    pub column: usize,
    /// What is wrong there.
    pub problem: Problem,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file.display(), self.line, self.column, self.problem)
    }
}

impl std::error::Error for LineError {}

/// What can be wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not one JSON object.
    #[error("not a JSON object: {message}, near {excerpt}")]
    Json {
        /// The parser's reason.
        message: String,
        /// Text around the place, quoted.
        excerpt: String,
    },
    /// Bytes that are not UTF-8.
    #[error("not UTF-8: byte 0x{byte:02x}; convert the file, for example with iconv -t UTF-8")]
    Utf8 {
        /// The first offending byte.
        byte: u8,
    },
    /// A byte order mark anywhere but at the head of a file, where it is accepted.
    #[error("a UTF-8 byte order mark inside the file: files were joined; remove it")]
    ByteOrderMark,
    /// No such key in the record.
    #[error("no key {key:?} (keys: {present}); use --json-keys to name the keys to read")]
    MissingKey {
        /// The key of `--json-keys`.
        key: String,
        /// Keys the record has.
        present: String,
    },
    /// The key's value is not text.
    #[error("key {key:?} is {found}, expected a string or a list of strings")]
    WrongType {
        /// The key.
        key: String,
        /// What the value is.
        found: &'static str,
    },
    /// The tokenizer refuses the text.
    #[error("key {key:?}: {detail}")]
    Encode {
        /// The key.
        key: String,
        /// The tokenizer's reason.
        detail: String,
    },
    /// The tokenizer gave an id that its vocabulary or the storage type does not have.
    #[error("key {key:?}: token id {id} is not below the vocabulary size {vocab_size} (stored as {dtype})")]
    IdOutOfRange {
        /// The key.
        key: String,
        /// The id.
        id: u32,
        /// The tokenizer's vocabulary.
        vocab_size: usize,
        /// Storage type of the token file.
        dtype: crate::TokenDType,
    },
    /// Longer than a document can be.
    #[error("the line is longer than {limit} bytes; split the document")]
    TooLong {
        /// Most bytes a line may have.
        limit: u64,
    },
}
