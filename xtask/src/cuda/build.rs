//! What ships of the kernels: PTX by the oldest NVRTC, and a fatbin of that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrotron_cuda_kernels::{self as kernels, Cubin, Entry, Kind, Ptx, fatbin_entries};

use super::example;
use super::packages::{Packages, find, folder_of, run};

/// nvcc and `fatbinary` of CUDA 13: the packages of CUDA 12 have neither.
pub const NVCC: [&str; 2] = ["nvidia-cuda-nvcc==13.*", "nvidia-cuda-runtime==13.*"];
/// Chips that nvcc compiles for, every warning an error: A100, H100 with what only it has, B200.
const CHECKED: [&str; 3] = ["80", "90a", "100"];
/// What makes `kernels.ptx`: the oldest NVRTC whose PTX every driver for CUDA 12 and later takes.
const NVRTC_12_0: &str = "nvidia-cuda-nvrtc-cu12==12.0.*";
/// NVRTC as it may be found where a device is: the last of CUDA 12, the newest of CUDA 13.
pub const NVRTC: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.*", "nvidia-cuda-nvrtc==13.*"];
/// The chip that the PTX is for, and every later one.
const PTX_CHIP: u32 = 80;
/// Chips with machine code in the fatbin, each by the first `ptxas` that knows it: every driver that knows the chip reads that.
/// Later ones gain nothing here, and CUDA 13's has another binary interface, which only its own drivers read. The code runs on
/// later chips of the same first digit too. sm_90, not sm_90a: no kernel uses what only sm_90a has, and the code of both is
/// the same.
const SHIPPED: [(u32, &str); 3] = [
    (80, "nvidia-cuda-nvcc-cu12==12.0.*"),
    (90, "nvidia-cuda-nvcc-cu12==12.0.*"),
    (100, "nvidia-cuda-nvcc-cu12==12.8.*"),
];

/// Compiles with nvcc: warnings, spills and local memory are errors.
pub fn warnings(packages: &Packages) -> Result<(), String> {
    let nvcc = find(&packages.installed(&NVCC)?, "bin", "nvcc")?;
    let source = packages.file("program.cu");
    written(&source, kernels::program())?;
    let kernels = kernels::names().count();
    for chip in CHECKED {
        let words = run(Command::new(&nvcc)
            .args(["-O3", "-std=c++17", "-Werror", "all-warnings", "-cubin"])
            .arg(format!("-gencode=arch=compute_{chip},code=sm_{chip}"))
            .args(["-Xptxas", "-v,-warn-spills,-warn-lmem-usage", "-I"])
            .arg(kernels::folder())
            .arg("-o")
            .arg(packages.file("program.cubin"))
            .arg(&source))?;
        told(&format!("nvcc, sm_{chip}"), &words, kernels)?;
    }
    Ok(())
}

/// Makes `kernels.ptx`.
pub fn ptx(root: &Path, packages: &Packages, write: bool) -> Result<(), String> {
    let library = packages.installed(&[NVRTC_12_0])?;
    let fresh = packages.file("fresh.ptx");
    let made = compile(root, &folder_of(&library, "lib", "libnvrtc.so.12")?, &format!("compute_{PTX_CHIP}"), &fresh)?;
    let text = format!("{}\n{}", kernels::ptx_title(), fs::read_to_string(&fresh).map_err(|e| e.to_string())?);
    let ptx = Ptx::read(&text).ok_or("NVRTC gives no PTX")?;
    all_there("the PTX", &ptx.kernels)?;
    let committed = kernels::folder().join("kernels.ptx");
    if write {
        written(&committed, &text)?;
    } else if fs::read_to_string(&committed).unwrap_or_default() != text {
        return Err(format!("{} is not what the kernels give: run with --write", committed.display()));
    }
    println!("cuda-check: kernels.ptx: {} kernels, {} KiB, {made}", ptx.kernels.len(), text.len() >> 10);
    Ok(())
}

/// Makes `kernels.fatbin` of `kernels.ptx`.
pub fn fatbin(packages: &Packages, write: bool) -> Result<(), String> {
    let fatbinary = find(&packages.installed(&NVCC)?, "bin", "fatbinary")?;
    let ptx = kernels::folder().join("kernels.ptx");
    let fresh = packages.file("fresh.fatbin");
    // every driver reads LZ4, which is what `speed` is; the other modes need one for 12.4
    let mut container = Command::new(fatbinary);
    container.args(["-64", "--compress-all", "--compress-mode=speed"]).arg(option("--create=", &fresh));
    for (chip, package) in SHIPPED {
        let ptxas = find(&packages.installed(&[package])?, "bin", "ptxas")?;
        let cubin = packages.file(&format!("sm_{chip}.cubin"));
        let words = run(Command::new(&ptxas)
            .args(["-O3", "-v", "--warn-on-spills", "--warn-on-local-memory-usage", "--warning-as-error"])
            .arg(format!("--gpu-name=sm_{chip}"))
            .arg("-o")
            .arg(&cubin)
            .arg(&ptx))?;
        told(&format!("ptxas, sm_{chip}"), &words, kernels::names().count())?;
        container.arg(option(&format!("--image3=kind=elf,sm={chip},file="), &cubin));
    }
    run(container.arg(option(&format!("--image3=kind=ptx,sm={PTX_CHIP},file="), &ptx)))?;

    let bytes = fs::read(&fresh).map_err(|e| format!("{}: {e}", fresh.display()))?;
    let entries = fatbin_entries(&bytes).map_err(|e| format!("{}: {e}", fresh.display()))?;
    let committed = kernels::folder().join("kernels.fatbin");
    for Entry { kind, chip, bytes } in &entries {
        let text = || Ptx::read(std::str::from_utf8(bytes).ok()?);
        let found = match kind {
            Kind::Cubin => Cubin::read(bytes).map_err(|e| e.to_string())?.kernels,
            Kind::Ptx => text().ok_or("the fatbin has no PTX")?.kernels,
        };
        all_there(&format!("the fatbin's {kind:?} for {chip}"), &found)?;
    }
    if write {
        written(&committed, &bytes)?;
    } else {
        // entry by entry: headers may differ with the version of `fatbinary`
        let standing = fs::read(&committed).map_err(|e| format!("{}: {e}", committed.display()))?;
        if fatbin_entries(&standing).ok().as_ref() != Some(&entries) {
            return Err(format!("{} is not what kernels.ptx gives: run with --write", committed.display()));
        }
    }
    println!("cuda-check: kernels.fatbin: {} entries, {} KiB", entries.len(), bytes.len() >> 10);
    Ok(())
}

/// Compiles with NVRTC as a device does where it must.
pub fn at_run_time(root: &Path, packages: &Packages) -> Result<(), String> {
    for (package, library) in NVRTC.into_iter().zip(["libnvrtc.so.12", "libnvrtc.so.13"]) {
        let folder = folder_of(&packages.installed(&[package])?, "lib", library)?;
        for (chip, _) in SHIPPED {
            let made = compile(root, &folder, &format!("sm_{chip}"), &packages.file("run_time.cubin"))?;
            let bytes = fs::read(packages.file("run_time.cubin")).map_err(|e| e.to_string())?;
            let cubin = Cubin::read(&bytes).map_err(|e| e.to_string())?;
            all_there(&format!("{made}, sm_{chip}"), &cubin.kernels)?;
            println!("cuda-check: {made}, sm_{chip}: {} kernels, {} KiB", cubin.kernels.len(), bytes.len() >> 10);
        }
    }
    Ok(())
}

/// Compiles with the NVRTC of a folder by the device's own table; gives its name and version.
fn compile(root: &Path, library: &Path, target: &str, out: &Path) -> Result<String, String> {
    let words = run(example(root, "ferrotron-cuda", "compile").arg(library).arg(target).arg(out))?;
    Ok(words.trim().to_string())
}

/// Says what ptxas said, if it was of all kernels.
fn told(what: &str, words: &str, kernels: usize) -> Result<(), String> {
    let compiled = words.lines().filter(|l| l.contains("Compiling entry function")).count();
    if compiled != kernels {
        return Err(format!("{what}: {compiled} kernels, the source has {kernels}\n{words}"));
    }
    let used = words.lines().filter_map(|l| l.split("Used ").nth(1)?.split(' ').next()?.parse().ok());
    let registers: u32 = used.max().unwrap_or(0);
    println!("cuda-check: {what}: {compiled} kernels, {registers} registers at most, no spills");
    Ok(())
}

fn all_there(what: &str, found: &[String]) -> Result<(), String> {
    let (found, names): (BTreeSet<&str>, BTreeSet<&str>) =
        (found.iter().map(String::as_str).collect(), kernels::names().collect());
    if found == names { Ok(()) } else { Err(format!("{what} has the kernels {found:?}, the sources have {names:?}")) }
}

fn written(path: &PathBuf, bytes: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

fn option(name: &str, path: &Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(name);
    option.push(path);
    option
}
