//! Errors: which file or record, what is wrong, what to do.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What stops conversations from becoming samples.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A line is not a conversation.
    #[error("{}:{line}: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The chat template cannot be used.
    #[error("chat template of {place}: {problem}")]
    Template {
        /// Where the template is from.
        place: String,
        /// What is wrong with it, or what it refuses.
        problem: String,
    },
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] ferrotron_tokenizer::Error),
    /// A setting or a set of examples that cannot work.
    #[error("{0}")]
    Setting(String),
}
