//! NVIDIA's packages from PyPI: compilers, libraries, headers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Takes what a wheel has below a folder called `include`.
const UNPACK: &str = "import sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
z.extractall(sys.argv[2], [n for n in z.namelist() if '/include/' in n])";

/// A folder of packages, each in a folder of its own: several versions stand beside each other. What is there stays.
pub struct Packages {
    folder: PathBuf,
    python: PathBuf,
}

impl Packages {
    /// With a virtual environment for pip.
    pub fn in_folder(folder: PathBuf) -> Result<Packages, String> {
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let python = folder.join("venv/bin/python");
        if !python.exists() {
            run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
        }
        Ok(Packages { folder, python })
    }

    /// Where files of our own go.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Packages with what they depend on, in one folder.
    pub fn installed(&self, requirements: &[&str]) -> Result<PathBuf, String> {
        self.once(&requirements.join(" "), |to| {
            run(self.pip("install").args(requirements).arg("--target").arg(to)).map(drop)
        })
    }

    /// A package's headers; the wheel, which may be large, does not stay.
    pub fn headers(&self, requirement: &str) -> Result<PathBuf, String> {
        self.once(&format!("headers of {requirement}"), |to| {
            let wheels = to.join("wheels");
            run(self.pip("download").args(["--no-deps", requirement, "--dest"]).arg(&wheels))?;
            let failed = |e| format!("{}: {e}", wheels.display());
            for wheel in fs::read_dir(&wheels).map_err(failed)?.flatten() {
                run(Command::new(&self.python).args(["-c", UNPACK]).arg(wheel.path()).arg(to))?;
            }
            fs::remove_dir_all(&wheels).map_err(failed)
        })
    }

    fn pip(&self, command: &str) -> Command {
        let mut pip = Command::new(&self.python);
        pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check"]);
        pip
    }

    /// A folder that `make` fills. One that was left half filled is made anew.
    fn once(&self, name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
        let done = self.folder.join("packages").join(name.replace(['*', '/'], "x"));
        if !done.exists() {
            println!("cuda-check: takes {name} from PyPI");
            let begun = done.with_extension("begun");
            let failed = |e| format!("{}: {e}", begun.display());
            if begun.exists() {
                fs::remove_dir_all(&begun).map_err(failed)?;
            }
            fs::create_dir_all(&begun).map_err(failed)?;
            make(&begun)?;
            fs::rename(&begun, &done).map_err(failed)?;
        }
        Ok(done)
    }
}

/// The file of this name in a folder called `place` below a folder.
pub fn find(folder: &Path, place: &str, name: &str) -> Result<PathBuf, String> {
    let mut folders = vec![folder.to_path_buf()];
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
    Err(format!("there is no {place}/{name} below {}", folder.display()))
}

/// The folder that has this file, as [`find`].
pub fn folder_of(folder: &Path, place: &str, name: &str) -> Result<PathBuf, String> {
    let file = find(folder, place, name)?;
    Ok(file.parent().unwrap_or(folder).to_path_buf())
}

/// What a program says, both streams; `Err` when it fails.
pub fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|e| format!("{program}: {e}"))?;
    let words = [&done.stdout[..], &done.stderr[..]].concat();
    let words = String::from_utf8_lossy(&words).into_owned();
    if done.status.success() { Ok(words) } else { Err(format!("{program} fails:\n{words}")) }
}
