//! Read-only memory maps: the only `unsafe` of this crate.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A whole file mapped read-only.
pub(crate) struct MappedFile {
    map: memmap2::Mmap,
    path: PathBuf,
}

impl MappedFile {
    pub(crate) fn open(path: &Path) -> Result<MappedFile> {
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        if !file.metadata().map_err(|e| Error::io("read the size of", path, e))?.is_file() {
            return Err(Error::format(path, "file", "is not a regular file"));
        }
        // SAFETY: the map is private to this struct and only ever read as bytes, which are valid for any content.
        // Nobody may truncate or rewrite the file while it is open: dataset and cache files are written once under
        // another name and then renamed, never changed in place (see `files`). This is the contract Megatron's
        // numpy.memmap has with its files too.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io("map", path, e))?;
        Ok(MappedFile { map, path: path.to_owned() })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
