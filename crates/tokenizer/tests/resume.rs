//! Runs that are killed: the next one goes on, and the files are those of a run that was not.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

mod common;

use common::{Folder, preprocess};
use ferrotron_tokenizer::preprocess::{Options, PreprocessArgs};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the folder for [`one_run`] when this test binary runs itself.
const FOLDER: &str = "FERROTRON_TEST_RESUME";

/// A checkpoint after every batch.
fn options() -> Options {
    Options { checkpoint_every: Duration::ZERO, ..Options::default() }
}

/// Two keys, bad lines, empty texts, two plain files and a packed one: some hundred batches.
fn corpus(f: &Folder) -> PreprocessArgs {
    let mut state = 1u64;
    let mut text = |lines: usize| {
        let mut text = Vec::new();
        for i in 0..lines {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let words = "some words, to be counted; ".repeat((state >> 58) as usize);
            match i % 3001 {
                3000 => writeln!(text, "{{\"text\": {i}}}").unwrap(),
                _ => writeln!(text, "{{\"text\": \"{words}\", \"title\": \"{state}\"}}").unwrap(),
            }
        }
        text
    };
    f.write("a.jsonl", text(6000));
    let packed = text(6000);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&packed).unwrap();
    f.write("b.jsonl.gz", gz.finish().unwrap());
    f.write("c.jsonl", text(4000));
    args(f)
}

fn args(f: &Folder) -> PreprocessArgs {
    let mut args = f.args(&format!("{}/[abc].jsonl*", f.0.display()));
    args.tokenizer.tokenizer_type = "ByteLevel".into();
    args.json_keys = vec!["text".into(), "title".into()];
    args.append_eod = true;
    args.skip_bad = 10;
    args
}

type Files = (common::Dataset, common::Dataset, Vec<u8>);

fn files(f: &Folder) -> Files {
    let bad = fs::read(f.0.join("out.bad.jsonl")).unwrap();
    (f.dataset("out_text_document"), f.dataset("out_title_document"), bad)
}

/// What the killed processes run. By itself: a run to its end, with a checkpoint after each batch.
#[test]
fn one_run() {
    let given = std::env::var_os(FOLDER);
    let f = match &given {
        Some(folder) => std::mem::ManuallyDrop::new(Folder(folder.into())),
        None => std::mem::ManuallyDrop::new(Folder::new("one-run")),
    };
    let args = if given.is_some() { args(&f) } else { corpus(&f) };
    let (summary, log) = preprocess(&args, &options()).unwrap();
    println!("{log}");
    assert_eq!((summary.documents, summary.dropped), (15_997, 3));
    if given.is_none() {
        assert!(!f.names().iter().any(|n| n.contains("partial") || n.contains("journal")), "{:?}", f.names());
        drop(std::mem::ManuallyDrop::into_inner(f));
    }
}

fn child(f: &Folder) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_run", "--nocapture"])
        .env(FOLDER, &f.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lines of the journal, 0 when there is none.
fn journal(path: &Path) -> usize {
    fs::read(path).map_or(0, |bytes| bytes.iter().filter(|&&b| b == b'\n').count())
}

#[test]
fn a_killed_run_is_gone_on_with() {
    let f = Folder::new("killed");
    preprocess(&corpus(&f), &Options::default()).unwrap();
    let want = files(&f);
    let corpus: Vec<String> = f.names().into_iter().filter(|n| !n.starts_with("out")).collect();
    let clear = || {
        for name in f.names().into_iter().filter(|n| n.starts_with("out")) {
            fs::remove_file(f.0.join(name)).unwrap();
        }
    };
    clear();
    // Killed again and again, each time after some more checkpoints; other times at any moment.
    let path = f.0.join("out.journal");
    for round in 0..7 {
        let mut running = child(&f);
        let (begun, deadline) = (journal(&path), Instant::now() + Duration::from_secs(60));
        match round {
            // Anywhere: while it starts, reads, writes, or makes a checkpoint.
            1 | 3 => std::thread::sleep(Duration::from_millis(7 * round)),
            _ => {
                while journal(&path) < begun + 3 && running.try_wait().unwrap().is_none() {
                    assert!(Instant::now() < deadline, "no checkpoint in a minute");
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(!f.0.join("out_text_document.idx").exists() || journal(&path) == 0, "an index before the end");
    }
    let last = child(&f).wait_with_output().unwrap();
    let printed = String::from_utf8(last.stdout).unwrap();
    assert!(last.status.success(), "{printed}");
    assert!(
        printed.contains("Going on after") && printed.contains("were done by the run that was interrupted"),
        "{printed}"
    );
    assert!(files(&f) == want);
    let left: Vec<String> = f.names().into_iter().filter(|n| !n.starts_with("out")).collect();
    assert_eq!(left, corpus);
    assert_eq!(f.names().len(), corpus.len() + 5, "{:?}", f.names());
}

/// A journal whose files are gone or whose flags are others is not gone on with, and that is said.
#[test]
fn what_does_not_fit_is_begun_anew() {
    let f = Folder::new("anew");
    let args = corpus(&f);
    preprocess(&args, &Options::default()).unwrap();
    let want = files(&f);
    let interrupt = || {
        let mut running = child(&f);
        let path = f.0.join("out.journal");
        while journal(&path) < 4 && running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(journal(&path) >= 4);
    };
    interrupt();
    fs::remove_file(f.0.join("out_title_document.partial.bin")).unwrap();
    let (_, log) = preprocess(&args, &Options::default()).unwrap();
    assert!(log.contains("cannot be gone on with") && log.contains("beginning anew"), "{log}");
    assert!(files(&f) == want);

    interrupt();
    let (_, log) = preprocess(&PreprocessArgs { append_eod: false, ..args.clone() }, &Options::default()).unwrap();
    assert!(log.contains("with other flags or files is thrown away"), "{log}");
    assert!(files(&f) != want);
    let (_, log) = preprocess(&args, &Options::default()).unwrap();
    assert!(!log.contains("interrupted"), "{log}");
    assert!(files(&f) == want);
}

/// An error is not an interruption: nothing is left, and nothing is gone on with.
#[test]
fn an_error_leaves_nothing() {
    let f = Folder::new("error");
    let args = PreprocessArgs { skip_bad: 2, ..corpus(&f) };
    let before = f.names();
    let e = preprocess(&args, &options()).unwrap_err();
    assert!(e.contains("3 bad lines are more than the 2"), "{e}");
    assert_eq!(f.names(), before);
}
