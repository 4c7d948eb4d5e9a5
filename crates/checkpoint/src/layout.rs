//! Folder and file names (Megatron-LM's, `megatron/training/checkpointing.py`), and which checkpoint to load.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::IoContext;
use crate::{Error, Result, foreign};

/// The file that names the last complete checkpoint: an integer without newline, or the word `release`.
pub const TRACKER: &str = "latest_checkpointed_iteration.txt";

/// The manifest of a checkpoint folder. A folder that has one under its final name is complete.
pub const MANIFEST: &str = "manifest.json";

/// Which checkpoint of a `--save` folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// State after this iteration.
    Iteration(u64),
    /// Weights to start from, in the folder `release`.
    Release,
}

impl Step {
    /// Name of its folder.
    pub fn folder(self) -> String {
        match self {
            Step::Iteration(n) => format!("iter_{n:07}"),
            Step::Release => "release".into(),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Iteration(n) => write!(f, "{n}"),
            Step::Release => f.write_str("release"),
        }
    }
}

/// File of a rank's numbers.
pub fn shard_file(rank: usize) -> String {
    format!("shard_{rank:05}.safetensors")
}

/// File that says which parts of which tensors a rank's numbers are.
pub fn shard_index(rank: usize) -> String {
    format!("shard_{rank:05}.json")
}

/// What a folder name in a `--save` folder means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Folder {
    /// A checkpoint under its final name.
    Complete(u64),
    /// `iter_N.tmp-*`: being written, or left by a run that was killed while writing.
    Temporary,
    /// `iter_N.old-*`: the complete predecessor of `iter_N`, moved aside while that was being replaced.
    Aside(u64),
    /// Not ours.
    Other,
}

/// Classifies a folder name. Only names that this program makes are ever cleaned up.
pub(crate) fn classify(name: &str) -> Folder {
    let Some(rest) = name.strip_prefix("iter_") else { return Folder::Other };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let Ok(n) = rest[..digits].parse::<u64>() else { return Folder::Other };
    if format!("{n:07}") != rest[..digits] {
        return Folder::Other;
    }
    match &rest[digits..] {
        "" => Folder::Complete(n),
        s => match s.strip_prefix('.').and_then(|s| s.split_once('-')) {
            Some(("tmp", unique)) if is_unique(unique) => Folder::Temporary,
            Some(("old", unique)) if is_unique(unique) => Folder::Aside(n),
            _ => Folder::Other,
        },
    }
}

/// True for the words that may distinguish temporary names: letters, digits, hyphens.
pub(crate) fn is_unique(s: &str) -> bool {
    (1..=64).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Names in a folder, sorted. A folder that does not exist is empty.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        other => other.io("list", dir)?,
    };
    let mut names = vec![];
    for e in entries {
        names.push(e.io("list", dir)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Reads the tracker file. `None`: there is none.
///
/// # Errors
/// [`Error::BadTracker`], [`Error::Io`].
pub fn read_tracker(dir: &Path) -> Result<Option<Step>> {
    let path = dir.join(TRACKER);
    let bytes = match read_limited(&path, 64) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let text = String::from_utf8_lossy(&bytes);
    match text.trim() {
        "release" => Ok(Some(Step::Release)),
        // No sign: Megatron writes plain digits.
        n if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => match n.parse() {
            Ok(n) => Ok(Some(Step::Iteration(n))),
            Err(_) => Err(Error::BadTracker { path, found: n.into() }),
        },
        other => Err(Error::BadTracker { path, found: other.into() }),
    }
}

/// Finds the checkpoint to load: `--ckpt-step` if given, else what the tracker file names.
///
/// # Errors
/// [`Error::NothingToLoad`] without a tracker file, [`Error::NoSuchStep`] if the folder is not there,
/// [`Error::Foreign`] for another program's checkpoint, [`Error::BadTracker`], [`Error::Io`].
pub fn resolve(dir: &Path, ckpt_step: Option<u64>) -> Result<(Step, PathBuf)> {
    let step = match ckpt_step {
        Some(n) => Step::Iteration(n),
        None => match read_tracker(dir)? {
            Some(step) => step,
            None => {
                return Err(match foreign::detect(dir) {
                    Some(format) => Error::Foreign { path: dir.into(), format },
                    None => Error::NothingToLoad { dir: dir.into() },
                });
            }
        },
    };
    let folder = dir.join(step.folder());
    if folder.is_dir() {
        return Ok((step, folder));
    }
    // Killed between "old one aside" and "new one in place" of a re-save: the old one is complete.
    let names = names(dir)?;
    if let Step::Iteration(n) = step
        && let Some(aside) = names.iter().find(|name| classify(name) == Folder::Aside(n))
    {
        return Ok((step, dir.join(aside)));
    }
    if let Some(format) = foreign::detect(dir) {
        return Err(Error::Foreign { path: dir.into(), format });
    }
    let available =
        names.into_iter().filter(|n| matches!(classify(n), Folder::Complete(_)) || n == "release").collect();
    Err(Error::NoSuchStep { dir: dir.into(), wanted: step.folder(), available })
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let meta = std::fs::metadata(path).io("read", path)?;
    if !meta.is_file() || meta.len() > limit {
        let why = format!("it must be a regular file of at most {limit} bytes (it has {})", meta.len());
        return Err(Error::damaged(path, why));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    File::open(path).io("read", path)?.take(limit).read_to_end(&mut bytes).io("read", path)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names() {
        assert_eq!(Step::Iteration(1000).folder(), "iter_0001000");
        assert_eq!(Step::Iteration(12_345_678).folder(), "iter_12345678");
        for (name, want) in [
            ("iter_0001000", Folder::Complete(1000)),
            ("iter_12345678", Folder::Complete(12_345_678)),
            ("iter_0001000.tmp-a1-b2", Folder::Temporary),
            ("iter_0001000.old-7", Folder::Aside(1000)),
            ("iter_0001000.kept-7", Folder::Other),
            ("iter_0001000.tmp-", Folder::Other),
            ("iter_0001000.tmp-a/b", Folder::Other),
            ("iter_0001000.backup", Folder::Other),
            ("iter_1000", Folder::Other),
            ("iter_00010000", Folder::Other),
            ("iter_", Folder::Other),
            ("iter_99999999999999999999999", Folder::Other),
            ("my.tmp-7", Folder::Other),
        ] {
            assert_eq!(classify(name), want, "{name}");
        }
    }
}
