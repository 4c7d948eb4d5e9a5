//! What can go wrong with data: each error says what, where, why and what to do, with the values that disagree.

use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the data pipeline.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: "open", "map", "write" ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file's content contradicts its format or another file.
    #[error("{}: {field}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The field of the format that is wrong.
        field: &'static str,
        /// What was found and what was expected.
        problem: String,
    },
    /// A token id that the element type cannot hold.
    #[error("{file}: token {position} of sequence {sequence} is {id}, which {holder} cannot hold")]
    TokenRange {
        /// Prefix of the dataset.
        file: String,
        /// Sequence number, from 0.
        sequence: usize,
        /// Position inside the sequence, from 0.
        position: usize,
        /// The value, as text because it may be fractional.
        id: String,
        /// The type that cannot hold it.
        holder: String,
    },
    /// A token id outside the model's vocabulary.
    #[error(
        "{file}: token {position} of document {document} is {id}, but the padded vocabulary has {vocab} entries \
         (0..={}); the data was made with another tokenizer or --vocab-size is too small", vocab - 1
    )]
    Vocabulary {
        /// Prefix of the dataset.
        file: String,
        /// Sequence number in the file, from 0 (every sequence is a document here).
        document: usize,
        /// Position inside the document, from 0.
        position: usize,
        /// The id found.
        id: i32,
        /// Padded vocabulary size.
        vocab: i32,
    },
    /// A part of a sequence that does not exist was asked for.
    #[error("{file}: {what} {index} was asked for, but there are {len}")]
    OutOfRange {
        /// Prefix of the dataset, or a dataset's name.
        file: String,
        /// "sequence", "sample", "token".
        what: &'static str,
        /// What was asked for.
        index: usize,
        /// How many there are.
        len: usize,
    },
    /// `--split` cannot be understood.
    #[error("--split {text:?}: {problem}")]
    Split {
        /// The string as typed.
        text: String,
        /// Why it is refused.
        problem: String,
    },
    /// Samples were requested from a split that holds no tokens (Megatron would loop forever).
    #[error(
        "{file}: the {split} split holds no tokens: {range} of {sequences} documents is documents {begin}..{end} with \
         {tokens} tokens, but {requested} samples were requested; give the split a larger share with --split, use more \
         data, or request none (--eval-iters 0)"
    )]
    EmptySplit {
        /// Prefix of the dataset.
        file: String,
        /// train, valid or test.
        split: &'static str,
        /// The fractions, as text.
        range: String,
        /// Documents in the file.
        sequences: usize,
        /// First document of the split.
        begin: usize,
        /// One past the last document of the split.
        end: usize,
        /// Tokens in the split.
        tokens: u64,
        /// Samples requested, as text ("one epoch of" when no number was given).
        requested: String,
    },
    /// One epoch of the split is shorter than one sample and no number of samples was requested.
    #[error(
        "{file}: the {split} split has {tokens} tokens in documents {begin}..{end}, but one sample needs {needed} \
         (--seq-length {sequence_length} plus {extra} for the last label); use more data or a shorter --seq-length"
    )]
    TooShort {
        /// Prefix of the dataset.
        file: String,
        /// train, valid or test.
        split: &'static str,
        /// Tokens in the split.
        tokens: u64,
        /// First document of the split.
        begin: usize,
        /// One past the last document of the split.
        end: usize,
        /// Tokens that one sample needs.
        needed: u64,
        /// `--seq-length`.
        sequence_length: usize,
        /// 1 when samples carry an extra token for the last label.
        extra: u64,
    },
    /// A list of weights and prefixes cannot be used.
    #[error("{flag}: {problem}")]
    Blend {
        /// The flag the list came from, or the blended split.
        flag: String,
        /// Why it is refused.
        problem: String,
    },
    /// The sampler's numbers do not fit together.
    #[error("sampler: {0}")]
    Sampler(String),
    /// A setting that cannot work.
    #[error("{setting}: {problem}")]
    Setting {
        /// Flag or field.
        setting: &'static str,
        /// Why it is refused.
        problem: String,
    },
    /// An index would not fit in memory.
    #[error("{what} needs {bytes} bytes, which could not be allocated")]
    Memory {
        /// Which table.
        what: &'static str,
        /// Its size.
        bytes: u128,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn format(path: &Path, field: &'static str, problem: impl Into<String>) -> Error {
        Error::Format { path: path.to_owned(), field, problem: problem.into() }
    }
}

/// An empty vector with room for `len` elements, or an error instead of an abort.
pub(crate) fn reserve<T>(len: u64, what: &'static str) -> Result<Vec<T>> {
    let error = || Error::Memory { what, bytes: u128::from(len) * size_of::<T>() as u128 };
    let mut v = Vec::new();
    v.try_reserve_exact(usize::try_from(len).map_err(|_| error())?).map_err(|_| error())?;
    Ok(v)
}
