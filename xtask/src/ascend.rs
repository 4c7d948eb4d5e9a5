//! Opt-in checks of the Ascend interface against what others wrote: the vendor's headers, and a client of HCCL.

use std::path::Path;
use std::process::Command;

/// The package with the vendor's headers, and the client.
const PACKAGES: [&str; 2] = ["torch-npu==2.14.0", "pyhccl==0.1.0"];
/// Where the package's headers are, below its include folder.
const INCLUDES: [&str; 3] = ["", "third_party/acl/inc", "third_party/hccl/inc"];
/// Where the headers lie in the package.
const HEADERS: &str = "torch_npu/include/";

/// Takes both packages with this Python's pip into `target/ascend-check`; compiles the headers beside our constants, sizes,
/// offsets and signatures; runs the client's collectives over the mock of HCCL.
pub fn check(root: &Path, python: &str) -> Result<(), String> {
    let folder = root.join("target/ascend-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    headers(root, &folder, python)?;
    client(root, &folder, python)
}

fn headers(root: &Path, folder: &Path, python: &str) -> Result<(), String> {
    let wheels = folder.join("wheels");
    let pip = ["-m", "pip", "download", "-q", "--no-deps", "-d"];
    run(Command::new(python).args(pip).arg(&wheels).arg(PACKAGES[0]))?;
    let entries = std::fs::read_dir(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    let is_ours = |p: &std::path::PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("torch_npu-"));
    let wheel = entries.flatten().map(|e| e.path()).find(is_ours);
    let wheel = wheel.ok_or_else(|| format!("pip left no torch_npu wheel in {}", wheels.display()))?;
    let unpack = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\n\
                  z.extractall(sys.argv[2], [n for n in z.namelist() if n.startswith(sys.argv[3])])";
    run(Command::new(python).args(["-c", unpack]).arg(&wheel).arg(folder).arg(HEADERS))?;

    let written = cargo(root).args(["run", "-q", "-p", "ferrotron-hccl-sys", "--example", "header_check"]).output();
    let written = written.map_err(|e| format!("cannot run cargo: {e}"))?;
    if !written.status.success() {
        return Err(format!("header_check fails:\n{}", String::from_utf8_lossy(&written.stderr)));
    }
    let source = folder.join("check.cpp");
    std::fs::write(&source, &written.stdout).map_err(|e| format!("{}: {e}", source.display()))?;
    let mut compile = Command::new(std::env::var("CXX").unwrap_or_else(|_| "g++".into()));
    compile.args(["-std=c++17", "-fsyntax-only", "-Wno-deprecated-declarations"]).arg(&source);
    for inner in INCLUDES {
        compile.arg("-I").arg(folder.join(HEADERS).join(inner));
    }
    run(&mut compile)?;
    let claims = written.stdout.split(|b| *b == b'\n').filter(|l| l.starts_with(b"static_assert")).count();
    println!("{}: {claims} assertions about constants, sizes, offsets and signatures hold", PACKAGES[0]);
    Ok(())
}

fn client(root: &Path, folder: &Path, python: &str) -> Result<(), String> {
    let packages = folder.join("packages");
    run(Command::new(python)
        .args(["-m", "pip", "install", "-q", "--upgrade", "--target"])
        .arg(&packages)
        .arg(PACKAGES[1]))?;
    run(cargo(root).args(["build", "-q", "-p", "ferrotron-ascend-mock"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let mock = target.join("debug/libferrotron_ascend_mock.so");
    let lib = folder.join("lib");
    std::fs::create_dir_all(&lib).map_err(|e| format!("{}: {e}", lib.display()))?;
    std::fs::copy(&mock, lib.join("libhccl.so")).map_err(|e| format!("{}: {e}", mock.display()))?;
    let mut client = Command::new(python);
    client.arg(root.join("ascend/mock/clients/drive_pyhccl.py"));
    // The package keeps Python's lock while a communicator is made, so one thread makes all ranks.
    client.env("FERROTRON_MOCK_HCCL_LAZY", "1").env("LD_LIBRARY_PATH", &lib).env("PYTHONPATH", &packages);
    run(&mut client)?;
    println!("{}: its collectives run over the mock", PACKAGES[1]);
    Ok(())
}

fn cargo(root: &Path) -> Command {
    let mut c = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    c.current_dir(root);
    c
}

fn run(c: &mut Command) -> Result<(), String> {
    let status = c.status().map_err(|e| format!("cannot run {c:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{c:?} ends with {status}")) }
}
