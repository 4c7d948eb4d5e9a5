//! The index cache: arrays that are costly to shuffle are kept on disk under the MD5 of the dataset's description.
//!
//! Names and contents are Megatron's, so either program can use the other's cache. Megatron's hash covers neither the
//! extra token, nor the drop-last rule, nor the content of the token files; a cache is therefore checked against the
//! data before use, and one that does not fit is rebuilt.

use std::fs;
use std::path::{Path, PathBuf};

use crate::description::md5_hex;
use crate::error::{Error, Result};
use crate::files::{AtomicFile, with_suffix};
use crate::splits::SplitName;

/// Where index arrays are kept between runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Nowhere: built anew in every process.
    Off,
    /// `<prefix>/cache/GPTDataset_indices`, Megatron's place when `--data-cache-path` is absent. Blends are not kept.
    BesideData,
    /// In one directory (`--data-cache-path`).
    Dir(PathBuf),
}

impl Cache {
    /// The files of a GPT dataset made from `prefix`.
    pub(crate) fn of_gpt(&self, prefix: &str, description: &str, split: SplitName) -> Option<CacheFiles> {
        let dir = match self {
            Cache::Off => return None,
            Cache::BesideData => Path::new(prefix).join("cache").join("GPTDataset_indices"),
            Cache::Dir(dir) => dir.clone(),
        };
        Some(CacheFiles::new(dir, "GPTDataset", description, split))
    }

    /// The files of a blend.
    pub(crate) fn of_blend(&self, description: &str, split: SplitName) -> Option<CacheFiles> {
        match self {
            Cache::Off | Cache::BesideData => None,
            Cache::Dir(dir) => Some(CacheFiles::new(dir.clone(), "BlendedDataset", description, split)),
        }
    }
}

/// The files of one dataset: `<dir>/<md5>-<class>-<split>-<suffix>`.
pub(crate) struct CacheFiles {
    dir: PathBuf,
    stem: String,
}

impl CacheFiles {
    fn new(dir: PathBuf, class: &str, description: &str, split: SplitName) -> CacheFiles {
        CacheFiles { dir, stem: format!("{}-{class}-{}-", md5_hex(description), split.as_str()) }
    }

    pub fn path(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.dir.join(&self.stem), suffix)
    }

    /// The cached index, or a new one that is then cached. A cache that cannot be used, or cannot be written, is no
    /// error: the second value says what happened.
    pub fn load_or_build<I>(
        &self,
        description: &str,
        open: impl FnOnce(&CacheFiles) -> Result<I>,
        build: impl FnOnce() -> Result<I>,
        save: impl FnOnce(&I, &CacheFiles) -> Result<()>,
    ) -> Result<(I, Vec<String>)> {
        let mut notices = Vec::new();
        if let Some(found) = self.read_description(description) {
            match found.and_then(|()| open(self)) {
                Ok(index) => return Ok((index, notices)),
                Err(problem) => notices.push(format!("index cache not used and rebuilt: {problem}")),
            }
        }
        let index = build()?;
        let saved = fs::create_dir_all(&self.dir)
            .map_err(|e| Error::io("create", &self.dir, e))
            .and_then(|()| save(&index, self))
            // Last: a description says that the arrays beside it are complete.
            .and_then(|()| {
                let mut file = AtomicFile::create(&self.path("description.txt"))?;
                file.write(description.as_bytes())?;
                file.commit()
            });
        if let Err(problem) = saved {
            notices.push(format!("index not cached: {problem}"));
        }
        Ok((index, notices))
    }

    /// `None` when there is no cache, an error when its description is not this one.
    fn read_description(&self, description: &str) -> Option<Result<()>> {
        let path = self.path("description.txt");
        match fs::read(&path) {
            Ok(found) if found == description.as_bytes() => Some(Ok(())),
            Ok(_) => {
                let problem = "is not the description whose MD5 is in the file's name";
                Some(Err(Error::format(&path, "description", problem)))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => Some(Err(Error::io("read", &path, e))),
        }
    }
}
