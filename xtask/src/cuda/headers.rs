//! Our tables beside NVIDIA's headers, from the oldest versions that serve to the newest: constants, structs, and the number
//! and sizes of every function's arguments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::NVRTC;
use super::example;
use super::packages::{Packages, find, run};

/// A runtime's headers, which the others include: its package, the compiler's part of it, and `nv/target`.
type Runtime = [(&'static str, &'static str); 3];
const RUNTIME_12_0: Runtime = [
    ("nvidia-cuda-runtime-cu12==12.0.*", "cuda.h"),
    ("nvidia-cuda-nvcc-cu12==12.0.*", "crt/host_defines.h"),
    ("nvidia-cuda-cccl-cu12==12.9.*", "nv/target"), // that of 12.0 lacks it
];
const RUNTIME_12_9: Runtime = [
    ("nvidia-cuda-runtime-cu12==12.9.*", "cuda.h"),
    ("nvidia-cuda-nvcc-cu12==12.9.*", "crt/host_defines.h"),
    ("nvidia-cuda-cccl-cu12==12.9.*", "nv/target"),
];
const RUNTIME_13: Runtime = [
    ("nvidia-cuda-runtime==13.*", "cuda.h"),
    ("nvidia-cuda-crt==13.*", "crt/host_defines.h"),
    ("nvidia-cuda-cccl==13.*", "nv/target"),
];
/// NCCL: the first that serves, two between, the newest.
const NCCL: [&str; 4] =
    ["nvidia-nccl-cu11==2.14.3", "nvidia-nccl-cu12==2.18.3", "nvidia-nccl-cu12==2.24.3", "nvidia-nccl-cu13==2.*"];

/// See the module.
pub fn check(root: &Path, packages: &Packages) -> Result<(), String> {
    let runtime = |parts: Runtime| -> Result<Vec<PathBuf>, String> {
        parts.into_iter().map(|(package, file)| include_of(&packages.headers(package)?, file)).collect()
    };
    let (first, last, newest) = (runtime(RUNTIME_12_0)?, runtime(RUNTIME_12_9)?, runtime(RUNTIME_13)?);
    let sys = |header| run(example(root, "ferrotron-cuda-sys", "cuda_header_check").arg(header));

    let driver = sys("cuda.h")?;
    for (version, include) in [("CUDA 12.0", &first), ("CUDA 12.9", &last), ("CUDA 13", &newest)] {
        holds(packages, version, "cuda.h", &driver, include)?;
    }
    let blas = sys("cublasLt.h")?;
    let versions = [
        ("nvidia-cublas-cu12==12.0.*", &first),
        ("nvidia-cublas-cu12==12.9.*", &last),
        ("nvidia-cublas==13.*", &newest),
    ];
    for (package, runtime) in versions {
        let include = include_of(&packages.headers(package)?, "cublasLt.h")?;
        holds(packages, package, "cublasLt.h", &blas, &[&runtime[..], &[include]].concat())?;
    }
    let nvrtc = sys("nvrtc.h")?;
    for package in NVRTC {
        let include = include_of(&packages.installed(&[package])?, "nvrtc.h")?;
        holds(packages, package, "nvrtc.h", &nvrtc, &[include])?;
    }
    let nccl = run(&mut example(root, "ferrotron-nccl-sys", "nccl_header_check"))?;
    for package in NCCL {
        let include = include_of(&packages.headers(package)?, "nccl.h")?;
        holds(packages, package, "nccl.h", &nccl, &[&first[..], &[include]].concat())?;
    }
    Ok(())
}

/// The folder that has this header, which may stand in a folder of it.
fn include_of(package: &Path, file: &str) -> Result<PathBuf, String> {
    let (inner, name) = file.rsplit_once('/').unwrap_or(("", file));
    let found = find(package, &format!("include/{inner}"), name)?;
    let include = found.ancestors().nth(file.split('/').count());
    Ok(include.unwrap_or(package).to_path_buf())
}

/// Compiles what a header must say.
fn holds(packages: &Packages, version: &str, header: &str, claims: &str, include: &[PathBuf]) -> Result<(), String> {
    let file = packages.file(&format!("{header}.cpp"));
    fs::write(&file, claims).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-fsyntax-only"]).arg(&file);
    for folder in include {
        compiler.arg("-isystem").arg(folder);
    }
    run(&mut compiler).map_err(|e| format!("{version}: {e}"))?;
    let count = claims.lines().filter(|l| l.starts_with("static_assert")).count();
    println!("cuda-check: {header} of {version}: {count} assertions at most hold");
    Ok(())
}
