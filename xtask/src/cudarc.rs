//! A client of the CUDA driver that nobody here wrote, cudarc, on the mock: it loads our kernels and launches one.

use std::path::Path;
use std::process::Command;

use crate::binaries;
use crate::cuda::run;

/// Names under which cudarc looks for the driver.
const DRIVER: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// Builds the mock and the client, and runs the one on the other.
pub fn check(root: &Path) -> Result<(), String> {
    let built = binaries::build(root, "ferrotron-cuda-mock")?;
    let mock = built.canonicalize().map_err(|e| format!("{}: {e}", built.display()))?.join("libferrotron_cuda_mock.so");
    let folder = built.join("cudarc-client");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = root.join("cuda/mock/clients/cudarc/Cargo.toml");
    let mut build = Command::new(cargo);
    run(build.args(["build", "--locked", "--manifest-path"]).arg(manifest).arg("--target-dir").arg(&folder))?;
    let libraries = folder.join("mock");
    std::fs::create_dir_all(&libraries).map_err(|e| format!("{}: {e}", libraries.display()))?;
    for name in DRIVER {
        let link = libraries.join(name);
        // one of an earlier run
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&mock, &link).map_err(|e| format!("{}: {e}", link.display()))?;
    }
    // For this program only: others would take the mock for a GPU. What the mock holds against cudarc (pageable copies, waits for
    // events that were not recorded) the driver allows.
    let words = run(Command::new(folder.join("debug/cudarc-client")).env("LD_LIBRARY_PATH", &libraries))?;
    print!("{words}");
    Ok(())
}
