//! The CUDA kernels without a GPU: for the host by g++, for the chips by nvcc and NVRTC from PyPI.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrotron_cuda_emulator::{
    Emulator, build, default_folder, fingerprint, kernel_names, kernels_folder, single_source,
};

/// Chips that the kernels are compiled for: A100, H100, B200.
const CHIPS: [&str; 3] = ["80", "90a", "100"];
/// nvcc of CUDA 13 is on PyPI; the packages of CUDA 12 have no nvcc.
const NVCC: [&str; 2] = ["nvidia-cuda-nvcc==13.*", "nvidia-cuda-runtime==13.*"];
/// What makes `kernels.ptx`: the oldest NVRTC whose PTX every driver for CUDA 12 and later takes.
const NVRTC: &str = "nvidia-cuda-nvrtc-cu12==12.0.*";
/// The chip that the PTX is for, and every later one.
const PTX_CHIP: &str = "compute_80";

/// Builds the kernels for the host.
pub fn emu() -> Result<(), String> {
    let out = default_folder().map_err(|e| e.to_string())?;
    let library = build(&kernels_folder(), &out).map_err(|e| e.to_string())?;
    let kernels = Emulator::load(&library)?.kernels().len();
    println!("emu: {kernels} kernels in {}", library.display());
    Ok(())
}

/// Compiles the kernels for the chips, every warning an error, no spills; then to PTX, which is compared with what is
/// committed, or written.
pub fn check(root: &Path, write: bool) -> Result<(), String> {
    let kernels = root.join("cuda/kernels");
    let folder = root.join("target/cuda-check");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let python = venv(&folder)?;
    let source = single_source(&kernels).map_err(|e| e.to_string())?;
    let names: BTreeSet<&str> = kernel_names(&source).into_iter().collect();
    let file = folder.join("kernels.cu");
    fs::write(&file, &source).map_err(|e| format!("{}: {e}", file.display()))?;

    let nvcc = find(&folder.join("venv"), "bin", "nvcc")?;
    for chip in CHIPS {
        let cubin = folder.join(format!("sm_{chip}.cubin"));
        let words = run(Command::new(&nvcc)
            .args(["-O3", "-std=c++17", "-Werror", "all-warnings", "-cubin"])
            .arg(format!("-gencode=arch=compute_{chip},code=sm_{chip}"))
            .args(["-Xptxas", "-v,-warn-spills,-warn-lmem-usage", "-o"])
            .arg(&cubin)
            .arg(&file))?;
        let compiled = words.lines().filter(|l| l.contains("Compiling entry function")).count();
        if compiled != names.len() {
            return Err(format!("sm_{chip}: {compiled} kernels, the source has {}\n{words}", names.len()));
        }
        println!("cuda-check: sm_{chip}: {compiled} kernels, {} registers at most, no spills", registers(&words));
    }

    headers(root, &folder)?;
    crate::nvtx::check(root, &folder, &python)?;
    let fresh = folder.join("kernels.ptx");
    run(Command::new(&python)
        .arg("-c")
        .arg(include_str!("nvrtc.py"))
        .arg(folder.join("nvrtc"))
        .arg(&file)
        .arg(&fresh)
        .arg(PTX_CHIP))?;
    let ptx = fs::read_to_string(&fresh).map_err(|e| format!("{}: {e}", fresh.display()))?;
    let number = fingerprint(&kernels).map_err(|e| e.to_string())?;
    let head = format!(
        "// Made by `cargo xtask cuda-check --write` from the kernels of this folder, fingerprint {number:016x}.\n"
    );
    let text = head + &ptx;
    let committed = kernels.join("kernels.ptx");
    let entries: BTreeSet<&str> =
        text.lines().filter_map(|l| l.split(".entry ").nth(1)?.split('(').next()).map(str::trim).collect();
    if entries != names {
        return Err(format!("the PTX has {entries:?}, the source {names:?}"));
    }
    if write {
        fs::write(&committed, &text).map_err(|e| format!("{}: {e}", committed.display()))?;
    } else if fs::read_to_string(&committed).unwrap_or_default() != text {
        return Err(format!("{} is not what the kernels give: run with --write", committed.display()));
    }
    println!("cuda-check: {}: {} kernels, {} KiB", committed.display(), entries.len(), text.len() >> 10);
    Ok(())
}

/// Compares the driver's header with our table of its functions.
fn headers(root: &Path, folder: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let arguments = ["run", "--quiet", "--package", "ferrotron-cuda-sys", "--example", "header_check"];
    let claims = run(Command::new(cargo).args(arguments).current_dir(root))?;
    let file = folder.join("header_check.cpp");
    fs::write(&file, claims).map_err(|e| format!("{}: {e}", file.display()))?;
    let include = find(&folder.join("venv"), "include", "cuda.h")?;
    let include = include.parent().unwrap_or(folder);
    run(Command::new("g++").args(["-std=c++17", "-fsyntax-only", "-I"]).arg(include).arg(&file))?;
    println!("cuda-check: the driver's header agrees with sys/cuda");
    Ok(())
}

/// Most registers of a kernel, from ptxas's words.
fn registers(words: &str) -> u32 {
    let used = words.lines().filter_map(|l| l.split("Used ").nth(1)?.split(' ').next()?.parse().ok());
    used.max().unwrap_or(0)
}

/// A virtual environment with the compilers; gives its Python.
fn venv(folder: &Path) -> Result<PathBuf, String> {
    let (venv, nvrtc) = (folder.join("venv"), folder.join("nvrtc"));
    let python = venv.join("bin/python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    if find(&venv, "bin", "nvcc").is_err() {
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(NVCC))?;
    }
    // apart: its library has the name of a later one's
    if !nvrtc.exists() {
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", NVRTC, "--target"]).arg(&nvrtc))?;
    }
    Ok(python)
}

/// The file of this name in a folder called `place` below a folder.
pub(crate) fn find(folder: &Path, place: &str, name: &str) -> Result<PathBuf, String> {
    let mut folders = vec![folder.join("lib")];
    while let Some(f) = folders.pop() {
        for entry in fs::read_dir(&f).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.file_name().is_some_and(|n| n == name) && f.ends_with(place) {
                return Ok(path);
            }
        }
    }
    Err(format!("there is no {name} below {}", folder.display()))
}

/// What a program says, both streams; `Err` when it fails.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|e| format!("{program}: {e}"))?;
    let words = [&done.stdout[..], &done.stderr[..]].concat();
    let words = String::from_utf8_lossy(&words).into_owned();
    if done.status.success() { Ok(words) } else { Err(format!("{program} fails:\n{words}")) }
}
