//! One shared library of all kernels of a folder.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Why there is no library.
#[derive(Debug)]
pub enum BuildError {
    /// g++ is not installed.
    NoCompiler,
    /// g++ refuses the kernels; its words.
    Refused(String),
    /// A file cannot be read or written.
    File(PathBuf, io::Error),
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::NoCompiler => f.write_str("g++ is not installed: apt-get install g++"),
            BuildError::Refused(words) => write!(f, "g++ refuses the kernels:\n{words}"),
            BuildError::File(path, e) => write!(f, "{}: {e}", path.display()),
        }
    }
}

impl std::error::Error for BuildError {}

/// Says, past what a test harness captures, that tests without a compiler did not run.
pub fn say_not_run(what: &str, why: &BuildError) {
    // a standard error that is closed leaves nobody to tell
    let _ = writeln!(io::stderr(), "NOT RUN: {what}: {why}");
}

/// The kernels of the CUDA device.
pub fn kernels_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels")
}

/// Where libraries go: `emulator` beside what cargo builds.
pub fn default_folder() -> io::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let folder = exe.parent().unwrap_or(Path::new("."));
    let profile = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(profile.join("emulator"))
}

fn sorted(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, BuildError> {
    let failed = |e| BuildError::File(folder.to_path_buf(), e);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// All kernels of a folder as one source without includes of its own files: the shared files (`.cuh`), `prelude.cuh`
/// first, then the others by name. What a compiler at run time takes, and what ships is made of.
pub fn single_source(folder: &Path) -> Result<String, BuildError> {
    let mut shared = sorted(folder, &["cuh"])?;
    shared.sort_by_key(|p| !p.ends_with("prelude.cuh"));
    let mut text = String::new();
    for path in shared.into_iter().chain(sorted(folder, &["cu"])?) {
        let own = |l: &&str| !l.starts_with("#include \"") || l.contains("emulator.h");
        read(&path)?.lines().filter(own).filter(|l| *l != "#pragma once").for_each(|l| {
            text.push_str(l);
            text.push('\n');
        });
    }
    Ok(text)
}

/// A number that changes with any kernel of a folder.
pub fn fingerprint(folder: &Path) -> Result<u64, BuildError> {
    Ok(fnv(FNV, &single_source(folder)?))
}

/// Names of the kernels that a file defines: what follows `KERNEL` at the start of a line.
pub fn kernel_names(source: &str) -> Vec<&str> {
    source.lines().filter_map(|l| l.strip_prefix("KERNEL ")?.split('(').next()).map(str::trim).collect()
}

fn read(path: &Path) -> Result<String, BuildError> {
    fs::read_to_string(path).map_err(|e| BuildError::File(path.to_path_buf(), e))
}

/// Builds the kernels of `folder` into a library in `out` that is named after what it was built from; nothing happens when
/// it is there. Several processes may do so at once.
pub fn build(folder: &Path, out: &Path) -> Result<PathBuf, BuildError> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::from("#include \"emulator.cpp\"\nnamespace cuda_kernels {\n");
    let mut names = Vec::new();
    let files = sorted(folder, &["cu"])?;
    for path in &files {
        text.push_str(&format!("#include \"{}\"\n", path.file_name().unwrap_or_default().to_string_lossy()));
        names.extend(kernel_names(&read(path)?).into_iter().map(String::from));
    }
    names.iter().for_each(|n| text.push_str(&format!("EMULATED({n})\n")));
    text.push_str("}\n");

    let prelude = if folder.join("prelude.cuh").exists() { folder.to_path_buf() } else { kernels_folder() };
    let mut hash = fnv(FNV, &text);
    for path in files.into_iter().chain(sorted(folder, &["cuh"])?).chain(sorted(&prelude, &["cuh"])?) {
        hash = fnv(hash, &read(&path)?);
    }
    for path in [own.join("include/emulator.h"), own.join("src/emulator.cpp")] {
        hash = fnv(hash, &read(&path)?);
    }
    let library = out.join(format!("kernels-{hash:016x}.so"));
    if library.exists() {
        return Ok(library);
    }

    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |e| BuildError::File(path, e)
    };
    fs::create_dir_all(out).map_err(failed(out))?;
    let turn = out.join("lock");
    let lock = fs::File::create(&turn).and_then(|f| f.lock().map(|()| f)).map_err(failed(&turn))?;
    if library.exists() {
        return Ok(library); // built by who had the lock before
    }
    let source = library.with_extension("cpp");
    let fresh = library.with_extension("new");
    fs::write(&source, text).map_err(failed(&source))?;
    // Kernels read one storage through pointers of several types, as nvcc lets them. What is a thread's own is small and
    // read at every access, so it gets a fixed place.
    let compiler = Command::new("g++")
        .args(["-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-ftls-model=initial-exec"])
        .args(["-DCUDA_EMULATOR", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-x", "c++"])
        .arg(format!("-fmacro-prefix-map={}/=", folder.display())) // sites are file:line
        .arg("-I")
        .arg(folder)
        .arg("-I")
        .arg(&prelude)
        .arg("-I")
        .arg(own.join("include"))
        .arg("-I")
        .arg(own.join("src"))
        .arg("-o")
        .arg(&fresh)
        .arg(&source)
        .output();
    let compiler = match compiler {
        Ok(done) => done,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(BuildError::NoCompiler),
        Err(e) => return Err(BuildError::File("g++".into(), e)),
    };
    if !compiler.status.success() {
        return Err(BuildError::Refused(String::from_utf8_lossy(&compiler.stderr).into_owned()));
    }
    fs::rename(&fresh, &library).map_err(failed(&library))?;
    fs::remove_file(&source).map_err(failed(&source))?;
    drop(lock);
    Ok(library)
}

const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a.
fn fnv(hash: u64, text: &str) -> u64 {
    text.bytes().fold(hash, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_are_named_where_they_are_defined() {
        let source = "// KERNEL no\nKERNEL fill(Out y) {}\nKERNEL adam(In a,\n    In b) {}\n    KERNEL not_this()\n";
        assert_eq!(super::kernel_names(source), ["fill", "adam"]);
    }
}
