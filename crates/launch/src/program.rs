//! From the program's word to a file: old script names become our binaries, paths of executables stay what they are.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferrotron_config::{Severity, Violation};

/// Old script names, as the last part of a path, and the binary that does their work.
const SCRIPTS: [(&str, &str); 4] = [
    ("pretrain_gpt.py", "pretrain_gpt"),
    ("pretrain_gpt", "pretrain_gpt"),
    ("preprocess_data.py", "preprocess_data"),
    ("preprocess_data", "preprocess_data"),
];

/// What every rank of a node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its words, the same for all ranks.
    pub args: Vec<String>,
}

impl Program {
    /// The command line, quoted for a shell.
    pub fn line(&self) -> String {
        let words = std::iter::once(self.path.to_string_lossy().into_owned()).chain(self.args.iter().cloned());
        words.map(|w| quote(&w)).collect::<Vec<_>>().join(" ")
    }
}

/// The binary for an old script name, path or not.
pub fn binary_of(word: &str) -> Option<&'static str> {
    let last = word.rsplit('/').next().unwrap_or(word);
    SCRIPTS.iter().find(|(script, _)| *script == last).map(|(_, binary)| *binary)
}

/// Whether a word can hardly be a flag's value: it names a script or a path.
pub fn looks_like_one(word: &str) -> bool {
    binary_of(word).is_some() || word.ends_with(".py") || word.contains('/')
}

/// Finds the executable for `word`. `beside` is the folder of the running binary, `search` the text of `PATH`; relative
/// paths are taken from `cwd`. `as_is` (`--no-python`) leaves old script names alone.
///
/// # Errors
/// No such program, or a file that cannot be executed; the violation says what was looked for and where.
pub fn resolve(
    word: &str,
    as_is: bool,
    beside: Option<&Path>,
    search: &str,
    cwd: &Path,
) -> Result<PathBuf, Box<Violation>> {
    let folders = || std::env::split_paths(search).filter(|f| !f.as_os_str().is_empty()).map(|f| cwd.join(f));
    let refuse = |severity, what: String| Violation::new(severity, &["PROGRAM"], what);
    if let Some(binary) = binary_of(word).filter(|_| !as_is) {
        let mut places = beside.map(Path::to_path_buf).into_iter().chain(folders()).map(|f| f.join(binary));
        return places.find(|p| is_executable(p)).ok_or_else(|| {
            let beside = beside.map_or("unknown".to_string(), |b| b.display().to_string());
            let what = format!("{word} is run by the program {binary}, which is not installed");
            let violation = refuse(Severity::Missing, what)
                .arithmetic(format!("looked in the launcher's folder {beside}, then along PATH"))
                .legal(format!("install {binary} beside ferrotron, or put its folder on PATH"));
            Box::new(violation)
        });
    }
    if word.ends_with(".py") && !as_is {
        return Err(Box::new(unknown_script(word)));
    }
    if word.contains('/') {
        let path = cwd.join(word);
        let violation = match path.metadata() {
            Err(e) => refuse(Severity::Missing, format!("cannot find the program {word}: {e}"))
                .arithmetic(format!("looked for {}", path.display())),
            Ok(_) if is_executable(&path) => return Ok(path),
            Ok(_) => refuse(Severity::Invalid, format!("{word} is not an executable file"))
                .legal(format!("chmod +x {word}, or name the interpreter: --no-python bash {word}")),
        };
        return Err(Box::new(violation));
    }
    folders().map(|f| f.join(word)).find(|p| is_executable(p)).ok_or_else(|| Box::new(unknown_script(word)))
}

fn unknown_script(word: &str) -> Violation {
    let known: Vec<&str> = SCRIPTS.iter().map(|(script, _)| *script).filter(|s| s.ends_with(".py")).collect();
    Violation::new(Severity::Invalid, &["PROGRAM"], format!("no program stands for {word}"))
        .legal(format!("{} (run by our own binaries), or the path of an executable", known.join(", ")))
        .why(if word.ends_with(".py") {
            "Python scripts are not run; one that trains a GPT, Llama or Qwen model has the flags of pretrain_gpt.py"
        } else {
            "it is no known script and not on PATH"
        })
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// A word as a POSIX shell must read it.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_are_known_by_their_last_part() {
        assert_eq!(binary_of("/a/Megatron-LM/pretrain_gpt.py"), Some("pretrain_gpt"));
        assert_eq!(binary_of("tools/preprocess_data.py"), Some("preprocess_data"));
        assert_eq!(binary_of("my_pretrain_gpt.py"), None);
    }

    #[test]
    fn an_unknown_script_says_what_is_known() {
        let refused = resolve("train_qwen70b.py", false, None, "/bin", Path::new("/")).unwrap_err().to_string();
        assert!(
            refused.contains("train_qwen70b.py") && refused.contains("pretrain_gpt.py, preprocess_data.py"),
            "{refused}"
        );
        let refused = resolve("nothing-like-it", false, None, "/bin", Path::new("/")).unwrap_err().to_string();
        assert!(refused.contains("not on PATH"), "{refused}");
    }

    #[test]
    fn executables_are_run_as_they_are() {
        assert_eq!(resolve("sh", false, None, "/nowhere:/bin", Path::new("/")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(resolve("bin/sh", false, None, "", Path::new("/")).unwrap(), Path::new("/bin/sh"));
        let refused = resolve("/etc/passwd", false, None, "", Path::new("/")).unwrap_err().to_string();
        assert!(refused.contains("not an executable"), "{refused}");
        let refused = resolve("./nothing", false, None, "", Path::new("/tmp")).unwrap_err().to_string();
        assert!(refused.contains("/tmp/./nothing"), "{refused}");
    }

    #[test]
    fn quoting_survives_a_shell() {
        for word in ["plain", "", "two words", "it's", "$HOME `x` \"q\" \\ *", "a\nb"] {
            let out =
                std::process::Command::new("/bin/sh").arg("-c").arg(format!("printf %s {}", quote(word))).output();
            assert_eq!(String::from_utf8(out.unwrap().stdout).unwrap(), word);
        }
    }
}
