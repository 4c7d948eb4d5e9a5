//! One shared library of all kernels of a folder.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use ferrotron_base::fnv::{FNV, fnv};
use ferrotron_cuda_kernels::{folder as kernels_folder, names_in};

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
        names.extend(names_in(&read(path)?).map(String::from));
    }
    names.iter().for_each(|n| text.push_str(&format!("EMULATED({n})\n")));
    text.push_str("}\n");

    let prelude = if folder.join("prelude.cuh").exists() { folder.to_path_buf() } else { kernels_folder() };
    let mut hash = fnv(FNV, text.bytes());
    for path in files.into_iter().chain(sorted(folder, &["cuh"])?).chain(sorted(&prelude, &["cuh"])?) {
        hash = fnv(hash, read(&path)?.bytes());
    }
    for path in [own.join("include/emulator.h"), own.join("src/emulator.cpp")] {
        hash = fnv(hash, read(&path)?.bytes());
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
