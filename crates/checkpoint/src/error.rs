//! What can go wrong with a checkpoint, said with the values that disagree.

use std::io;
use std::path::{Path, PathBuf};

use ferrotron_base::DType;

use crate::{Foreign, Kind};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of reading and writing checkpoints and safetensors files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// Verb of the message: "read", "rename", ...
        doing: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The folder has no tracker file (or does not exist). The caller decides: a fresh start if `--load` equals `--save`.
    #[error("nothing to load in {}: it has no {}", dir.display(), crate::layout::TRACKER)]
    NothingToLoad {
        /// The folder given by `--load`.
        dir: PathBuf,
    },
    /// The tracker or `--ckpt-step` names a checkpoint that is not there.
    #[error("{} has no checkpoint {wanted}; it has {}", dir.display(), list(available))]
    NoSuchStep {
        /// The folder given by `--load`.
        dir: PathBuf,
        /// Folder name looked for, for example `iter_0001000`.
        wanted: String,
        /// Checkpoint folders that are there.
        available: Vec<String>,
    },
    /// The tracker file holds neither an integer nor the word `release`.
    #[error("{} must hold an iteration number or the word release, not {found:?}", path.display())]
    BadTracker {
        /// The tracker file.
        path: PathBuf,
        /// Its (shortened) content.
        found: String,
    },
    /// A checkpoint of another program.
    #[error(
        "{} is a {format}, not a checkpoint of this program (a folder with manifest.json and shard_*.safetensors, as written \
         by --save). {}", path.display(), format.remedy()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What it is.
        format: Foreign,
    },
    /// A file is truncated, corrupted or contradicts another one.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the values.
        why: String,
    },
    /// A later version of this program wrote the file.
    #[error("{} has format version {found}; this program reads up to {supported}: use a newer one", path.display())]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest that this program reads.
        supported: u64,
    },
    /// The checkpoint lacks a tensor altogether.
    #[error("{} has no {kind} of {name:?}", dir.display())]
    MissingTensor {
        /// The checkpoint folder or file.
        dir: PathBuf,
        /// Which of the tensor's states.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// The checkpoint has parts of a tensor, but not all that was asked for.
    #[error("{} has {kind} of {name:?} (shape {global:?}) only in part: element {index:?} is in no shard", dir.display())]
    MissingElement {
        /// The checkpoint folder.
        dir: PathBuf,
        /// Which of the tensor's states.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its global shape.
        global: Vec<usize>,
        /// First missing element, as an index of the global tensor.
        index: Vec<usize>,
    },
    /// The model has another shape than the checkpoint.
    #[error("{kind} of {name:?} has shape {wanted:?} in this model and {saved:?} in the checkpoint")]
    ShapeMismatch {
        /// Which of the tensor's states.
        kind: Kind,
        /// Its name.
        name: String,
        /// Shape in the model.
        wanted: Vec<usize>,
        /// Shape in the checkpoint.
        saved: Vec<usize>,
    },
    /// No conversion between the stored and the wanted element type.
    #[error("{name:?} is stored as {stored} and cannot be read as {wanted}")]
    NoConversion {
        /// The tensor.
        name: String,
        /// Element type in the file.
        stored: String,
        /// Element type asked for.
        wanted: DType,
    },
    /// A plain safetensors file lacks a tensor.
    #[error("{} has no tensor {name:?}", path.display())]
    NoSuchTensor {
        /// The file.
        path: PathBuf,
        /// Its name.
        name: String,
    },
    /// The caller's request or entry contradicts itself: range, buffer length, boxes, duplicate keys.
    #[error("{name:?}: {why}")]
    BadEntry {
        /// The tensor.
        name: String,
        /// What does not fit, with the values.
        why: String,
    },
    /// The callback that delivers an entry's data failed.
    #[error("cannot fetch the data of {key:?} for the checkpoint: {source}")]
    Fill {
        /// Key of the entry.
        key: String,
        /// The callback's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// At commit, a rank's shard is not there.
    #[error("cannot finish the checkpoint: rank {rank} has written no {}", path.display())]
    MissingShard {
        /// The rank.
        rank: usize,
        /// The file that should be there.
        path: PathBuf,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

impl Error {
    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Error {
        Error::Damaged { path: path.into(), why: why.into() }
    }

    pub(crate) fn entry(name: &str, why: impl Into<String>) -> Error {
        Error::BadEntry { name: name.into(), why: why.into() }
    }
}

/// Adds verb and path to an `io::Result`.
pub(crate) trait IoContext<T> {
    fn io(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn io(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { doing, path: path.into(), source })
    }
}
