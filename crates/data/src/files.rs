//! Files that appear whole or not at all: written under a temporary name, synced, then renamed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// `path` with `suffix` appended to its last component: dataset prefixes may contain dots, so nothing is replaced.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// A file being written. Dropped before [`AtomicFile::commit`], it leaves nothing behind.
pub(crate) struct AtomicFile {
    writer: BufWriter<File>,
    temporary: PathBuf,
    target: PathBuf,
    renamed: bool,
    /// A write failed: the content has a hole and must never be published.
    failed: bool,
}

impl AtomicFile {
    pub(crate) fn create(target: &Path) -> Result<AtomicFile> {
        // Two processes, or two threads, may write the same target at once: every writer has its own name.
        let mut n = 0u32;
        let (temporary, file) = loop {
            let temporary = with_suffix(target, &format!(".{}-{n}.tmp", std::process::id()));
            match File::options().write(true).create_new(true).open(&temporary) {
                Ok(file) => break (temporary, file),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && n < u32::MAX => n += 1,
                Err(e) => return Err(Error::io("create", &temporary, e)),
            }
        };
        let writer = BufWriter::with_capacity(1 << 20, file);
        Ok(AtomicFile { writer, temporary, target: target.to_owned(), renamed: false, failed: false })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|e| {
            self.failed = true;
            Error::io("write", &self.temporary, e)
        })
    }

    /// Makes the content durable, then visible under its final name.
    pub(crate) fn commit(mut self) -> Result<()> {
        if self.failed {
            let source = std::io::Error::other("an earlier write to it failed");
            return Err(Error::io("finish", &self.target, source));
        }
        self.writer.flush().map_err(|e| Error::io("write", &self.temporary, e))?;
        self.writer.get_ref().sync_all().map_err(|e| Error::io("sync", &self.temporary, e))?;
        fs::rename(&self.temporary, &self.target).map_err(|e| Error::io("rename to", &self.target, e))?;
        self.renamed = true;
        // The rename itself is durable only when the directory is.
        let dir = match self.target.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("sync", dir, e))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing useful can be done about a failure here: the name is unique and never read.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
