//! NVTX without a profiler: the vendor's headers against `sys/nvtx`, and a tool that they are compiled into, by both ways.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cuda::{Packages, example, find, run};

/// NVTX's headers and its shared library, `cudaProfiler.h`, and what that includes.
const PACKAGES: [&str; 3] = ["nvidia-nvtx==13.*", "nvidia-cuda-profiler-api==13.*", "nvidia-cuda-runtime==13.*"];
/// The shared library of these packages.
const LIBRARY: &str = "libnvtx3interop.so.1";
/// What the tool hears from the example of `sys/nvtx`, but for the names of threads.
const RANGES: [&str; 6] = ["push iteration", "push forward-backward", "pop", "push optimizer", "pop", "pop"];

/// Compares constants, structs and functions with the headers, then lets a tool of these headers attach to our half of the
/// interface, and to the vendor's library under ours: it must hear the same.
pub fn check(root: &Path, packages: &Packages) -> Result<(), String> {
    let installed = packages.installed(&PACKAGES)?;
    let include = find(&installed, "include", "cudaProfiler.h")?;
    let include = include.parent().unwrap_or(&installed);
    let file = packages.file("nvtx_header_check.cpp");
    write(&file, &printed(root, "nvtx_header_check", &[])?)?;
    run(Command::new("g++").args(["-std=c++17", "-fsyntax-only", "-I"]).arg(include).arg(&file))?;

    let (source, tool) = (packages.file("nvtx_tool.cpp"), packages.file("libnvtx_tool.so"));
    write(&source, include_str!("nvtx_tool.cpp"))?;
    let flags = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-I"];
    run(Command::new("g++").args(flags).arg(include).arg(&source).arg("-o").arg(&tool))?;
    // a toolkit with the vendor's library, and one without
    let home = packages.file("nvtx-home");
    let lib = home.join("lib64");
    fs::create_dir_all(&lib).map_err(|e| format!("{}: {e}", lib.display()))?;
    let link = lib.join(LIBRARY);
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(find(&installed, "lib", LIBRARY)?, &link)
        .map_err(|e| format!("{}: {e}", link.display()))?;
    for (home, by) in [(packages.file("nowhere"), &tool), (home, &link)] {
        let heard = printed(root, "ranges", &[("CUDA_HOME", &home), ("NVTX_INJECTION64_PATH", &tool)])?;
        let mut want = vec![format!("NVTX ranges go to {}", by.display())];
        for thread in ["thread rank 0", "thread rank 1"] {
            want.push(thread.into());
            want.extend(RANGES.map(String::from));
        }
        if heard.lines().ne(&want) {
            return Err(format!(
                "a tool of the NVTX headers hears by {}:\n{heard}\nnot:\n{}",
                by.display(),
                want.join("\n")
            ));
        }
    }
    println!("cuda-check: NVTX's headers agree with sys/nvtx; a tool that they made hears our ranges by both ways");
    Ok(())
}

/// What an example of `sys/nvtx` prints.
fn printed(root: &Path, name: &str, variables: &[(&str, &Path)]) -> Result<String, String> {
    run(example(root, "ferrotron-nvtx-sys", name).envs(variables.iter().copied()).env_remove("CUDA_PATH"))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}
