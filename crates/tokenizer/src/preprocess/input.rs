//! `--input` to a list of files: literal paths, folders and shell patterns.

use crate::Error;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// One file of the corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InputFile {
    pub path: PathBuf,
    /// Size when the run began.
    pub bytes: u64,
}

/// Files that `inputs` stand for, in order.
pub(super) fn expand(inputs: &[String]) -> Result<Vec<InputFile>, Error> {
    let bad = |detail: String| Error::Argument { flag: "--input", detail };
    if inputs.is_empty() {
        return Err(bad("no file given".into()));
    }
    let mut files = Vec::new();
    for input in inputs {
        let path = Path::new(input);
        let paths = if path.is_dir() {
            let found = folder(path)?;
            if found.is_empty() {
                return Err(bad(format!("folder {input} has no .jsonl or .json file")));
            }
            found
        } else if path.exists() || !input.contains(['*', '?', '[']) {
            vec![path.into()]
        } else {
            let found = glob(input)?;
            if found.is_empty() {
                return Err(bad(format!("pattern {input} matches no file")));
            }
            found
        };
        for path in paths {
            let bytes = check_is_text(&path)?;
            files.push(InputFile { path, bytes });
        }
    }
    Ok(files)
}

/// Entries of a folder, sorted by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = || -> std::io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect() };
    let mut paths = read().map_err(Error::io("list", folder))?;
    paths.sort();
    Ok(paths)
}

fn folder(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut paths = entries(folder)?;
    paths.retain(|p| p.is_file() && p.extension().is_some_and(|e| e == "jsonl" || e == "json"));
    Ok(paths)
}

/// Files that match a pattern whose path components may have `*`, `?` and `[…]`. As in a shell, a leading dot is
/// matched only by a dot.
fn glob(pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = vec![PathBuf::from(if pattern.starts_with('/') { "/" } else { "" })];
    for component in pattern.split('/').filter(|c| !c.is_empty()) {
        let mut next = Vec::new();
        for base in found {
            if !component.contains(['*', '?', '[']) {
                let path = base.join(component);
                next.extend(path.exists().then_some(path));
                continue;
            }
            let listed = if base.as_os_str().is_empty() { Path::new(".") } else { &base };
            if !listed.is_dir() {
                continue;
            }
            for path in entries(listed)? {
                let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
                let hidden = name.starts_with('.') && !component.starts_with('.');
                if !hidden && matches(&component.chars().collect::<Vec<_>>(), &name.chars().collect::<Vec<_>>()) {
                    next.push(base.join(name));
                }
            }
        }
        found = next;
    }
    found.retain(|p| p.is_file());
    Ok(found)
}

/// Whether `name` matches `pattern`. Linear in space, at most `pattern * name` steps: the last `*` is the only place
/// that is ever returned to.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match one(&pattern[p..], name[n]) {
            Step::Star => {
                star = Some((p + 1, n));
                p += 1;
            }
            Step::Matched(width) => (p, n) = (p + width, n + 1),
            Step::Failed => match star {
                Some((after, at)) => {
                    star = Some((after, at + 1));
                    (p, n) = (after, at + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

enum Step {
    Star,
    /// The pattern's element has this many characters.
    Matched(usize),
    Failed,
}

fn one(pattern: &[char], c: char) -> Step {
    match pattern {
        [] => Step::Failed,
        ['*', ..] => Step::Star,
        ['?', ..] => Step::Matched(1),
        ['[', rest @ ..] => {
            let negated = matches!(rest.first(), Some('!' | '^'));
            let set = &rest[usize::from(negated)..];
            // A bracket directly after the opening one is a member of the set.
            let Some(end) = set.iter().skip(1).position(|&c| c == ']').map(|i| i + 1) else {
                return if c == '[' { Step::Matched(1) } else { Step::Failed };
            };
            let (mut i, mut member) = (0, false);
            while i < end {
                if i + 2 < end && set[i + 1] == '-' {
                    member |= (set[i]..=set[i + 2]).contains(&c);
                    i += 3;
                } else {
                    member |= set[i] == c;
                    i += 1;
                }
            }
            if member != negated { Step::Matched(1 + usize::from(negated) + end + 1) } else { Step::Failed }
        }
        [literal, ..] => {
            if *literal == c {
                Step::Matched(1)
            } else {
                Step::Failed
            }
        }
    }
}

/// Opens the file and refuses what is plainly not JSON lines in UTF-8. Returns its size.
fn check_is_text(path: &Path) -> Result<u64, Error> {
    let open = || -> std::io::Result<(u64, Vec<u8>)> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut head = Vec::new();
        if file.metadata()?.is_file() {
            file.take(4).read_to_end(&mut head)?;
        }
        Ok((bytes, head))
    };
    let (bytes, head) = open().map_err(Error::io("open", path))?;
    let problem = match head.as_slice() {
        [0x1f, 0x8b, ..] => "is compressed with gzip; unpack it first (gunzip -k)",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "is compressed with zstd; unpack it first (zstd -d)",
        [b'B', b'Z', b'h', ..] => "is compressed with bzip2; unpack it first (bunzip2 -k)",
        [0xfd, b'7', b'z', b'X', ..] => "is compressed with xz; unpack it first (unxz -k)",
        [b'P', b'K', 3, 4, ..] => "is a zip archive; unpack it first",
        [b'P', b'A', b'R', b'1', ..] => "is a parquet file; convert it to JSON lines first",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "is UTF-16; convert it first (iconv -f UTF-16 -t UTF-8)",
        _ => return Ok(bytes),
    };
    Err(Error::Malformed { path: path.into(), detail: problem.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        let chars = |s: &str| s.chars().collect::<Vec<_>>();
        for name in yes {
            assert!(matches(&chars(pattern), &chars(name)), "{pattern} {name}");
        }
        for name in no {
            assert!(!matches(&chars(pattern), &chars(name)), "{pattern} {name}");
        }
    }

    #[test]
    fn patterns() {
        check("*.jsonl", &["a.jsonl", ".jsonl"], &["a.json", "a.jsonl.gz"]);
        check("a?c*", &["abc", "a你c.x"], &["ac", "abbc"]);
        check("p[0-3!].x", &["p0.x", "p3.x", "p!.x"], &["p4.x", "p.x"]);
        check("p[!a-c]", &["pd"], &["pa", "pc", "p"]);
        check("[]x]", &["]", "x"], &["y"]);
        check("a[b", &["a[b"], &["ab"]);
        check("*a*b*", &["ab", "xaybz"], &["ba"]);
        check("**", &["", "x"], &[]);
        // Would take exponential time with naive recursion.
        check(&"*a".repeat(30), &[], &["a".repeat(29).as_str()]);
    }
}
