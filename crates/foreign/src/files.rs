//! Parts of files, read by position, with a bounded number of open files.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Error, Result};

/// Open files at most: a checkpoint of many ranks has thousands, a process may have a thousand open.
const OPEN: usize = 32;

/// The files that were read last stay open.
#[derive(Debug, Default)]
pub struct Files(Mutex<VecDeque<(PathBuf, Arc<File>)>>);

impl Files {
    /// The open file.
    fn get(&self, path: &Path) -> Result<Arc<File>> {
        // A panic elsewhere leaves nothing half done in this list.
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(p, _)| p == path)
            && let Some(found) = open.remove(at)
        {
            let file = found.1.clone();
            open.push_back(found);
            return Ok(file);
        }
        let file = File::open(path).map_err(|source| Error::Io { path: path.into(), source })?;
        let file = Arc::new(file);
        if open.len() >= OPEN {
            open.pop_front();
        }
        open.push_back((path.into(), file.clone()));
        Ok(file)
    }
}

/// `len` bytes of a file from `start`.
#[derive(Clone, Debug)]
pub struct Blob {
    files: Arc<Files>,
    path: PathBuf,
    start: u64,
    len: u64,
}

/// The length of a regular file.
pub fn length(path: &Path) -> Result<u64> {
    // A fifo would block; look before opening.
    let meta = std::fs::metadata(path).map_err(|source| Error::Io { path: path.into(), source })?;
    match meta.is_file() {
        true => Ok(meta.len()),
        false => Err(Error::file(path, "is not a regular file")),
    }
}

impl Blob {
    /// A whole file.
    pub fn whole(files: &Arc<Files>, path: PathBuf) -> Result<Blob> {
        let len = length(&path)?;
        Ok(Blob { files: files.clone(), path, start: 0, len })
    }

    /// A part of a file of `there` bytes.
    pub fn part(files: &Arc<Files>, path: PathBuf, there: u64, start: u64, len: u64) -> Result<Blob> {
        if start.checked_add(len).is_none_or(|end| end > there) {
            return Err(Error::file(&path, format!("has {there} bytes; bytes {start}.. of {len} are asked for")));
        }
        Ok(Blob { files: files.clone(), path, start, len })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads all of `out` from `at` on.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let end = at.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            let (n, len) = (out.len(), self.len);
            return Err(Error::file(&self.path, format!("ends early: {n} bytes at {at} of {len} are asked for")));
        }
        let file = self.files.get(&self.path)?;
        file.read_exact_at(out, self.start + at).map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// An error about this file.
    pub fn wrong(&self, what: impl Into<String>) -> Error {
        Error::file(&self.path, what)
    }
}
