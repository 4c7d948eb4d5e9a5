//! `ferrotron corpus`: text files to JSONL, one document a file. For trying things out on text that is there.

use std::io::Write;
use std::path::{Path, PathBuf};

use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Nargs, Source};

use crate::table::{parse_or_exit, required};

const PROGRAM: &str = "ferrotron corpus";

#[rustfmt::skip]
static FLAGS: Group = Group { name: "corpus", source: Source::Ferrotron, flags: &[
    Flag::new("--input", "input", Kind::Str, "Files, or folders that are searched").takes(Nargs::Some).or(Fallback::List(&[Fallback::Str(".")])),
    Flag::new("--extensions", "extensions", Kind::Str, "Endings of the files that folders contribute").takes(Nargs::Some)
        .or(Fallback::List(&[Fallback::Str("rs"), Fallback::Str("md"), Fallback::Str("sh"), Fallback::Str("toml"), Fallback::Str("args")])),
    Flag::new("--output", "output", Kind::Str, "The JSONL file to write"),
] };

/// Parses and runs; gives the exit code.
pub fn run(argv: &[String]) -> u8 {
    let args = match parse_or_exit(PROGRAM, &FLAGS, argv) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let output = match required(PROGRAM, &args, "output") {
        Ok(path) => PathBuf::from(path),
        Err(code) => return code,
    };
    match write(&args.texts("input"), &args.texts("extensions"), &output) {
        Ok((files, bytes)) => {
            println!("{PROGRAM}: {files} documents, {bytes} bytes of text in {}", output.display());
            0
        }
        Err(e) => crate::fail(PROGRAM, e),
    }
}

fn write(input: &[String], extensions: &[String], output: &Path) -> Result<(usize, usize), String> {
    let mut files = vec![];
    for path in input {
        collect(Path::new(path), extensions, true, &mut files)?;
    }
    // Sorted by path, so that the same tree gives the same bytes everywhere.
    files.sort();
    files.dedup();
    let context = |what: &str, path: &Path| {
        let text = format!("cannot {what} {}", path.display());
        move |e: std::io::Error| format!("{text}: {e}")
    };
    if let Some(dir) = output.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(context("make folder", dir))?;
    }
    let file = std::fs::File::create(output).map_err(context("write", output))?;
    let mut out = std::io::BufWriter::new(file);
    let (mut documents, mut bytes) = (0, 0);
    for path in &files {
        let Ok(text) = String::from_utf8(std::fs::read(path).map_err(context("read", path))?) else {
            eprintln!("{PROGRAM}: {} is not UTF-8 text: left out", path.display());
            continue;
        };
        if text.trim().is_empty() {
            continue;
        }
        documents += 1;
        bytes += text.len();
        writeln!(out, "{}", serde_json::json!({ "text": text })).map_err(context("write", output))?;
    }
    out.flush().map_err(context("write", output))?;
    if documents == 0 {
        return Err(format!("no text files with endings {} below {}", extensions.join(", "), input.join(", ")));
    }
    Ok((documents, bytes))
}

/// Files below `path`. Hidden folders and `target` are passed over; links are not followed.
fn collect(path: &Path, extensions: &[String], named: bool, out: &mut Vec<PathBuf>) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let kind = std::fs::symlink_metadata(path).map_err(fail)?.file_type();
    if kind.is_dir() {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !named && (name.starts_with('.') || name == "target" || name == "runs") {
            return Ok(());
        }
        for entry in std::fs::read_dir(path).map_err(fail)? {
            collect(&entry.map_err(fail)?.path(), extensions, false, out)?;
        }
    } else if kind.is_file() {
        let ending = path.extension().map(|e| e.to_string_lossy().into_owned()).unwrap_or_default();
        if named || extensions.contains(&ending) {
            out.push(path.to_path_buf());
        }
    }
    Ok(())
}
