//! The folder of the log files, laid out as torchrun does: `<log dir>/<run>_<tag>/attempt_<n>/<local rank>/`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::plan::Local;

/// A folder for log files that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the folder {path} for log files: {source}; --log-dir DIR names another place")]
pub struct LogError {
    path: String,
    source: io::Error,
}

/// Makes the folder of this run, new for each, if any stream goes to a file.
///
/// # Errors
/// It cannot be made.
pub fn folder(local: &Local) -> Result<Option<PathBuf>, LogError> {
    if !local.outputs.writes_files() {
        return Ok(None);
    }
    let parent = local.outputs.log_dir.clone().unwrap_or_else(|| std::env::temp_dir().join("ferrotron_logs"));
    let run: String =
        local.run_id.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    let error = |path: &Path, source: io::Error| LogError { path: path.display().to_string(), source };
    fs::create_dir_all(&parent).map_err(|e| error(&parent, e))?;
    let mut tag = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    loop {
        let path = parent.join(format!("{run}_{}_{tag:x}", local.node_rank));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(Some(path)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => tag += 1,
            Err(e) => return Err(error(&path, e)),
        }
    }
}

/// Makes the folder of one rank.
///
/// # Errors
/// It cannot be made.
pub fn of_rank(folder: &Path, attempt: u32, local_rank: usize) -> Result<PathBuf, LogError> {
    let path = folder.join(format!("attempt_{attempt}")).join(local_rank.to_string());
    match fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(LogError { path: path.display().to_string(), source }),
    }
}
