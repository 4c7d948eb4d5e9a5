//! `--input` to a list of files: literal paths, folders and shell patterns.

use super::source::Packing;
use crate::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One file of the corpus, or the part of it that this run reads.
#[derive(Debug, Default)]
pub(super) struct InputFile {
    pub path: PathBuf,
    /// Size on disk when the run began.
    pub bytes: u64,
    pub packing: Packing,
    /// Only lines that begin in this range of bytes are read. Whole, unless [`shard`] divided a plain file.
    pub part: Range<u64>,
    /// Lines before the part, counted when first asked for.
    lines_before: OnceLock<u64>,
}

impl InputFile {
    pub fn new(path: PathBuf, bytes: u64, packing: Packing) -> InputFile {
        InputFile { path, bytes, packing, part: 0..u64::MAX, ..Default::default() }
    }

    /// Bytes on disk that are to be read.
    pub fn disk_bytes(&self) -> u64 {
        self.part.end.min(self.bytes).saturating_sub(self.part.start)
    }

    /// The number in the file of a line that is counted from 1 where the part begins. Finding it out takes reading
    /// all that comes before: errors are rare, and every other line is spared that.
    pub fn line_number(&self, line: u64) -> Result<u64, Error> {
        let before = match self.lines_before.get() {
            Some(&before) => before,
            None => {
                let before = self.count_lines().map_err(Error::io("read", &self.path))?;
                *self.lines_before.get_or_init(|| before)
            }
        };
        Ok(before + line)
    }

    fn count_lines(&self) -> std::io::Result<u64> {
        if self.part.start == 0 {
            return Ok(0);
        }
        let mut reader = BufReader::with_capacity(1 << 20, File::open(&self.path)?).take(self.part.start - 1);
        let mut lines = 0;
        loop {
            let buffer = reader.fill_buf()?;
            if buffer.is_empty() {
                // The line that the part's first byte may be in the middle of is before it, too.
                return Ok(lines + 1);
            }
            lines += buffer.iter().filter(|&&b| b == b'\n').count() as u64;
            let read = buffer.len();
            reader.consume(read);
        }
    }
}

/// The `index`-th of `count` shares of the input, in order: shares are equal in bytes on disk, and joining the results
/// of all gives the result of the whole. Plain files are divided between lines; packed files are not divided.
pub(super) fn shard(files: Vec<InputFile>, index: u64, count: u64) -> Vec<InputFile> {
    let total: u128 = files.iter().map(|f| u128::from(f.bytes)).sum();
    let edge = |i: u64| (total * u128::from(i) / u128::from(count)) as u64;
    let (from, to) = (edge(index), edge(index + 1));
    let mut at = 0;
    let mut share = Vec::new();
    for mut file in files {
        let (begin, end) = (at, at + file.bytes);
        at = end;
        if file.packing != Packing::Plain {
            if (from..to).contains(&begin) {
                share.push(file);
            }
            continue;
        }
        let (first, last) = (from.max(begin), to.min(end));
        if first < last {
            file.part = first - begin..if last == end { u64::MAX } else { last - begin };
            share.push(file);
        }
    }
    share
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
                return Err(bad(format!(
                    "folder {input} has no .jsonl or .json file (or one that ends in .gz or .zst)"
                )));
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
            let (bytes, packing) = check_is_text(&path)?;
            files.push(InputFile::new(path, bytes, packing));
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
    let wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
        path.is_file() && (name.ends_with(".jsonl") || name.ends_with(".json"))
    };
    paths.retain(wanted);
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

/// Opens the file and refuses what is plainly not JSON lines in UTF-8. Returns its size and packing.
fn check_is_text(path: &Path) -> Result<(u64, Packing), Error> {
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
        [b'B', b'Z', b'h', ..] => "is compressed with bzip2; unpack it first (bunzip2 -k)",
        [0xfd, b'7', b'z', b'X', ..] => "is compressed with xz; unpack it first (unxz -k)",
        [b'P', b'K', 3, 4, ..] => "is a zip archive; unpack it first",
        [b'P', b'A', b'R', b'1', ..] => {
            "is a parquet file, which is not read; convert it first, for example: python -c \"import pandas; \
            pandas.read_parquet('x.parquet').to_json('x.jsonl', orient='records', lines=True, force_ascii=False)\""
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "is UTF-16; convert it first (iconv -f UTF-16 -t UTF-8)",
        head => return Ok((bytes, Packing::of(head))),
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
    fn shares_cover_everything_once() {
        let files = || {
            let file = |name: &str, bytes, packing| InputFile::new(name.into(), bytes, packing);
            vec![file("a", 10, Packing::Plain), file("z", 25, Packing::Gzip), file("b", 15, Packing::Plain)]
        };
        for count in 1..=60 {
            let (mut a, mut b, mut z) = (0, 0, 0);
            for index in 0..count {
                for file in shard(files(), index, count) {
                    match file.path.to_str().unwrap() {
                        "a" => {
                            assert_eq!(file.part.start, a);
                            a = file.part.end;
                        }
                        "b" => {
                            assert_eq!(file.part.start, b);
                            b = file.part.end;
                        }
                        _ => z += 1,
                    }
                }
            }
            assert_eq!((a, b, z), (u64::MAX, u64::MAX, 1), "{count}");
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
