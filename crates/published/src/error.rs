//! What is wrong with a published model, or with one that is to be published.

use std::path::PathBuf;

use ferrotron_models::hf::HfError;

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        what: String,
    },
    /// A safetensors file or checkpoint is damaged, or cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] ferrotron_checkpoint::Error),
    /// The model is not what its configuration says, or not of a kind that is known.
    #[error("{dir}: {source}")]
    Model {
        /// The folder.
        dir: PathBuf,
        /// What is wrong.
        source: HfError,
    },
    /// The model of the command line is another.
    #[error("{dir} is another model than the command line's; --use-checkpoint-args takes its shape from there{}", lines(.differences))]
    Differs {
        /// The folder.
        dir: PathBuf,
        /// One line each.
        differences: Vec<String>,
    },
    /// No published family has this model.
    #[error("no published family has a model with {0}")]
    NoFamily(String),
}

fn lines(all: &[String]) -> String {
    all.iter().map(|line| format!("\n  {line}")).collect()
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
