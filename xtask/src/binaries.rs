//! The programs of this repository, for checks that run them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of fresh binaries and libraries of a package.
pub fn build(root: &Path, package: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo).args(["build", "-p", package]).current_dir(root).status();
    if !done.map_err(|e| format!("cannot start cargo: {e}"))?.success() {
        return Err("the build failed".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("debug"))
}
