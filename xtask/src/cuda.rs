//! The CUDA kernels without a GPU: for the host by g++, for the chips by compilers from PyPI; and our tables of functions
//! beside NVIDIA's headers.

mod build;
mod headers;
mod packages;

use std::path::Path;
use std::process::Command;

use ferrotron_cuda_emulator::{Emulator, build as build_for_host, default_folder, kernels_folder};
pub use packages::{Packages, find, run};

/// Builds the kernels for the host.
pub fn emu() -> Result<(), String> {
    let out = default_folder().map_err(|e| e.to_string())?;
    let library = build_for_host(&kernels_folder(), &out).map_err(|e| e.to_string())?;
    let kernels = Emulator::load(&library)?.kernels().len();
    println!("emu: {kernels} kernels in {}", library.display());
    Ok(())
}

/// Compares the headers; compiles the kernels for the chips, every warning an error, no spills; makes PTX and fatbin, which
/// are compared with what is committed, or written; compiles with NVRTC as a device does.
pub fn check(root: &Path, write: bool) -> Result<(), String> {
    let packages = Packages::in_folder(root.join("target/cuda-check"))?;
    build::warnings(&packages)?;
    build::ptx(root, &packages, write)?;
    build::fatbin(&packages, write)?;
    build::at_run_time(root, &packages)?;
    headers::check(root, &packages)?;
    crate::nvtx::check(root, &packages)
}

/// An example of one of our packages; arguments follow.
pub fn example(root: &Path, package: &str, example: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["run", "--quiet", "--package", package, "--example", example, "--"]).current_dir(root);
    cargo
}
