//! What Python's own programs make of a run: TensorBoard, MLflow and Weights & Biases read its files, torch starts it. A package
//! that is missing is an error, never a pass.

use std::path::Path;
use std::process::Command;

use crate::binaries;

/// Runs `python_check.py` with a Python that has the packages.
pub fn check(root: &Path, python: &str) -> Result<(), String> {
    run(root, python, "python_check.py")
}

/// Runs `published_check.py`: transformers reads what we export, and we what it saves.
pub fn published(root: &Path, python: &str) -> Result<(), String> {
    run(root, python, "published_check.py")
}

fn run(root: &Path, python: &str, script: &str) -> Result<(), String> {
    let bin = binaries::build(root, "ferrotron-cli")?;
    let script = root.join("xtask/src").join(script);
    let done =
        Command::new(python).arg(&script).arg(&bin).status().map_err(|e| format!("cannot start {python}: {e}"))?;
    if done.success() { Ok(()) } else { Err(format!("{} ended with {done}", script.display())) }
}
