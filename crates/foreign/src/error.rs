//! What is wrong with a checkpoint of another program.

use std::path::{Path, PathBuf};

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// A file is truncated, damaged, hostile, or of a kind that is not read.
    #[error("{path}: {what}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the values.
        what: String,
    },
    /// Tracker and folders.
    #[error(transparent)]
    Checkpoint(#[from] ferrotron_checkpoint::Error),
    /// The model of the command line is another.
    #[error(transparent)]
    Differs(#[from] ferrotron_published::Error),
}

impl Error {
    pub(crate) fn file(path: &Path, what: impl Into<String>) -> Error {
        Error::File { path: path.into(), what: what.into() }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
