//! `ferrotron shims DIR`: stand-ins under the names that old scripts call. All are POSIX shell; none needs Python.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferrotron_config::{Severity, Violation, report};

use crate::program::quote;
use crate::pump::Screen;

/// The files, by path in the folder. `@BIN@` becomes the folder of our binaries.
const FILES: [(&str, &str); 11] = [
    ("bin/torchrun", include_str!("torchrun.sh")),
    ("bin/ft_launcher", include_str!("torchrun.sh")),
    ("bin/msrun", include_str!("torchrun.sh")),
    ("bin/deepspeed", include_str!("deepspeed.sh")),
    ("bin/python", include_str!("python.sh")),
    ("bin/python3", include_str!("python.sh")),
    ("pretrain_gpt.py", include_str!("pretrain_gpt.sh")),
    ("tools/preprocess_data.py", include_str!("preprocess_data.sh")),
    ("examples/pretrain_gpt.sh", include_str!("example.sh")),
    ("examples/pretrain_gpt_distributed.sh", include_str!("example.sh")),
    ("README.txt", include_str!("readme.txt")),
];
/// The first lines of every script: how our binaries are found.
const HEAD: &str = include_str!("head.sh");
/// The mark by which a stand-in knows a stand-in.
const MARK: &str = "ferrotron shim";

/// Why the stand-ins cannot be written.
#[derive(Debug, thiserror::Error)]
enum ShimError {
    #[error("cannot write {path}: {source}")]
    Write { path: String, source: io::Error },
    #[error("{path} is there and was not written by `ferrotron shims`: it stays as it is; choose another folder")]
    Foreign { path: String },
}

/// `ferrotron shims DIR`: writes the stand-ins and says how to use them. Returns the exit code.
pub fn shims(argv: &[String]) -> u8 {
    let out = Screen::new(Box::new(io::stdout()));
    let err = Screen::new(Box::new(io::stderr()));
    const USAGE: &str = "usage: ferrotron shims DIR\n\n\
        Writes stand-ins for torchrun, deepspeed, msrun, python, pretrain_gpt.py, tools/preprocess_data.py and\n\
        examples/pretrain_gpt.sh, so that old scripts run unchanged once DIR/bin is first on PATH.\n";
    let folder = match argv {
        [word] if word == "-h" || word == "--help" => {
            out.write(USAGE.as_bytes());
            return 0;
        }
        [word] if !word.starts_with('-') && !word.is_empty() => PathBuf::from(word),
        _ => {
            err.write(USAGE.as_bytes());
            return 2;
        }
    };
    let beside = std::env::current_exe().ok().and_then(|e| Some(e.parent()?.to_path_buf())).unwrap_or_default();
    match write(&folder, &beside) {
        Ok(folder) => {
            let path = quote(&folder.join("bin").display().to_string());
            let text = format!(
                "wrote {} stand-ins to {}; now type:\n  export PATH={path}:\"$PATH\"\n",
                FILES.len() - 1,
                folder.display()
            );
            out.write(text.as_bytes());
            0
        }
        Err(faults) => {
            let violations: Vec<Violation> =
                faults.iter().map(|f| Violation::new(Severity::Invalid, &["DIR"], f.to_string())).collect();
            err.write(report("ferrotron shims", &violations).as_bytes());
            1
        }
    }
}

/// Writes all files or, if one of them is somebody else's, none. Returns the folder's full path.
fn write(folder: &Path, beside: &Path) -> Result<PathBuf, Vec<ShimError>> {
    let fault = |path: &Path, source: io::Error| ShimError::Write { path: path.display().to_string(), source };
    let foreign: Vec<ShimError> = FILES
        .iter()
        .map(|(name, _)| folder.join(name))
        .filter(|path| path.symlink_metadata().is_ok())
        .filter(|path| !fs::read_to_string(path).is_ok_and(|text| text.contains(MARK)))
        .map(|path| ShimError::Foreign { path: path.display().to_string() })
        .collect();
    if !foreign.is_empty() {
        return Err(foreign);
    }
    let bin = quote(&beside.display().to_string());
    let head = HEAD.replace("@BIN@", &bin);
    for (name, body) in FILES {
        let path = folder.join(name);
        let is_script = !name.ends_with(".txt");
        let text = if is_script { format!("{head}{body}") } else { body.to_string() };
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).map_err(|e| vec![fault(parent, e)])?;
        let mode = if is_script { 0o755 } else { 0o644 };
        // Written aside and renamed: a script that runs at the moment keeps its old text.
        let aside = path.with_extension("new");
        let written = fs::write(&aside, text)
            .and_then(|()| fs::set_permissions(&aside, fs::Permissions::from_mode(mode)))
            .and_then(|()| fs::rename(&aside, &path));
        written.map_err(|e| vec![fault(&path, e)])?;
    }
    folder.canonicalize().map_err(|e| vec![fault(folder, e)])
}
