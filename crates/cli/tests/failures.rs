//! Ranks that are killed, stopped, interrupted, or fail by themselves at any moment: all others end within seconds, with a
//! code that is not zero and the cause in the last line, and nothing is left behind.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;
#[path = "common/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Temp, succeed};
use world::{Ended, LIMIT, Running, SMALL, as_rank, clean, free_port, log_of, signal, small, start, until};

/// Within this all ranks must have ended.
const SOON: Duration = Duration::from_secs(5);
/// A run that does not end by itself.
const ENDLESS: &str = "--global-batch-size 6 --train-iters 1000000 --lr-warmup-iters 0";

/// `n` processes at a port.
fn ranks(n: usize, words: &str) -> (u16, Vec<Running>) {
    let port = free_port();
    (port, (0..n).map(|r| start(as_rank(small(words), r, n, port))).collect())
}

/// The last line of standard error.
fn last(e: &Ended) -> &str {
    e.stderr.lines().last().unwrap_or_default()
}

/// These ranks end within the limit, badly, and their last line (or the report that it heads) holds the texts.
fn end_badly(all: impl IntoIterator<Item = Running>, limit: Duration, texts: &[&str]) {
    for r in all {
        let e = r.end(limit);
        assert!(!e.status.success() && e.status.code().is_some(), "{:?}\n{}", e.status, e.stderr);
        let report = e.stderr.rsplit("pretrain_gpt: ").next().unwrap();
        for text in texts {
            assert!(report.contains(text), "no '{text}' in the last report of\n{}", e.stderr);
        }
    }
}

/// No file of ours in shared memory, and the port is free.
fn nothing_left(port: u16) {
    until(SOON, "the port is free", || std::net::TcpListener::bind(("127.0.0.1", port)).ok());
    let left = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let ours: Vec<_> = left.map(|e| e.file_name()).filter(|n| n.to_string_lossy().contains("ferrotron")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

#[test]
fn killed_in_forward() {
    // A forward and backward of about a second, with no collective in it.
    let slow = "--seq-length 256 --max-position-embeddings 256 --hidden-size 64 --ffn-hidden-size 256 --train-iters 1000 \
        --micro-batch-size 2 --global-batch-size 96";
    let (port, mut all) = ranks(3, &format!("{ENDLESS} {slow}"));
    all[2].says("before the start of training step");
    std::thread::sleep(Duration::from_millis(100));
    let victim = all.remove(1);
    victim.signal("KILL");
    end_badly(all, SOON, &["iteration ", "rank 1 (", "has gone"]);
    assert!(!victim.end(SOON).status.success());
    nothing_left(port);
}

#[test]
fn killed_in_a_collective_beside_one_that_is_stopped() {
    let (port, mut all) = ranks(3, ENDLESS);
    all[2].says("iteration        3/");
    // The others cannot get past their next collective.
    all[0].signal("STOP");
    std::thread::sleep(Duration::from_millis(200));
    let victim = all.remove(1);
    victim.signal("KILL");
    end_badly([all.pop().unwrap()], SOON, &["iteration ", "rank 1 (", "has gone"]);
    all[0].signal("CONT");
    end_badly(all, SOON, &["has gone"]);
    drop(victim);
    nothing_left(port);
}

/// A save that is not complete yet.
fn is_saving(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().contains("tmp"))
}

#[test]
fn killed_in_a_save() {
    let t = Temp::new("killed-save");
    let dir = t.path("ckpt");
    let save = format!("--save {0} --load {0}", dir.display());
    let (port, mut all) = ranks(3, &format!("{ENDLESS} {save} --save-interval 1"));
    all[2].says("iteration        3/");
    // Stopped again and again, until the others wait for it in a save.
    let began = Instant::now();
    loop {
        all[1].signal("STOP");
        std::thread::sleep(Duration::from_millis(100));
        if is_saving(&dir) {
            break;
        }
        all[1].signal("CONT");
        std::thread::sleep(Duration::from_millis(7));
        assert!(began.elapsed() < LIMIT, "no stop fell into a save");
    }
    let victim = all.remove(1);
    victim.signal("KILL");
    end_badly(all, SOON, &[", saving", "rank 1 (", "has gone"]);
    drop(victim);
    nothing_left(port);
    // What was complete before is there, and one rank goes on from it.
    let saved = std::fs::read_to_string(dir.join("latest_checkpointed_iteration.txt")).unwrap();
    let next = saved.trim().parse::<u64>().unwrap() + 1;
    let log = log_of(small(&format!("{ENDLESS} {save} --exit-interval {next}")));
    assert!(log.contains(&format!("iteration {next:8}/")), "{log}");
    assert!(!is_saving(&dir), "the killed save is cleaned up");
}

/// An executable that notes its process id, runs `first`, and becomes the program.
fn wrapper(t: &Temp, first: &str) -> PathBuf {
    let path = t.path("rank.sh");
    let (dir, program) = (t.path(""), env!("CARGO_BIN_EXE_pretrain_gpt"));
    let text = format!("#!/bin/sh\necho $$ > {}/pid.$RANK\n{first}\nexec {program} \"$@\"\n", dir.display());
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// `ferrotron launch` of `n` wrapped ranks.
fn launch(script: &Path, n: usize, words: &str) -> Command {
    let mut c = clean(env!("CARGO_BIN_EXE_ferrotron"));
    c.args(["launch", "--standalone", "--nproc_per_node", &n.to_string(), "--no_python"]).arg(script);
    c.args(SMALL.split_whitespace()).args(words.split_whitespace());
    c
}

fn pid(t: &Temp, rank: usize) -> u32 {
    let file = t.path(&format!("pid.{rank}"));
    until(LIMIT, "a rank starts", || std::fs::read_to_string(&file).ok()?.trim().parse().ok())
}

fn is_alive(pid: u32) -> bool {
    // A zombie has no command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty())
}

#[test]
fn killed_in_rendezvous_under_the_launcher() {
    let t = Temp::new("killed-rendezvous");
    let script = wrapper(&t, "[ $RANK = 2 ] && sleep 30");
    let run = start(launch(&script, 3, ENDLESS));
    let pids = [0, 1, 2].map(|r| pid(&t, r));
    std::thread::sleep(Duration::from_millis(300));
    signal("KILL", pids[1]);
    let e = run.end(SOON);
    assert_eq!(e.status.code(), Some(137), "{}", e.stderr);
    assert!(last(&e).contains("rank 1 (pid ") && last(&e).contains("SIGKILL"), "{}", e.stderr);
    until(SOON, "all are gone", || pids.iter().all(|p| !is_alive(*p)).then_some(()));
}

#[test]
fn a_stopped_rank_is_told_from_a_slow_one_at_the_time_out() {
    let (port, mut all) = ranks(3, &format!("{ENDLESS} --distributed-timeout-seconds-after-init 2"));
    all[2].says("iteration        3/");
    let stopped = all.remove(1);
    stopped.signal("STOP");
    end_badly(
        all,
        Duration::from_secs(2) + SOON,
        &["iteration ", "missing [1]", "rank 1 (", "does not answer: stopped"],
    );
    stopped.signal("CONT");
    end_badly([stopped], SOON, &["missing [1]"]);
    nothing_left(port);
}

#[test]
fn interrupted_ranks_all_stop() {
    // As a terminal does it: the launcher's signal reaches all.
    let t = Temp::new("interrupted");
    let script = wrapper(&t, "");
    let run = start(launch(&script, 3, ENDLESS));
    let pids = [0, 1, 2].map(|r| pid(&t, r));
    run.says("iteration        3/");
    run.signal("INT");
    let e = run.end(SOON);
    assert_eq!(e.status.code(), Some(130), "{}", e.stderr);
    until(SOON, "all are gone", || pids.iter().all(|p| !is_alive(*p)).then_some(()));
    // Threads of one process.
    let run = start(small(&format!("{ENDLESS} --thread-ranks 2")));
    run.says("iteration        3/");
    run.signal("INT");
    let e = run.end(SOON);
    assert_eq!(e.status.code(), Some(130), "{}", e.stderr);
    assert!(e.stdout.contains("stopped by signal 2"), "{}", e.stdout);
    // Waiting for a rank that does not come.
    let port = free_port();
    let run = start(as_rank(small(&format!("{ENDLESS} --timeout-seconds 6")), 0, 2, port));
    run.says("missing 1");
    run.signal("INT");
    let e = run.end(SOON);
    assert_eq!(e.status.code(), Some(130), "{}", e.stderr);
    assert!(last(&e).contains("stopped by signal 2 while waiting for the other ranks"), "{}", e.stderr);
    nothing_left(port);
}

/// A corpus in which one document of many has a token beyond the vocabulary that training is told.
fn corpus(t: &Temp) -> PathBuf {
    let lines: String = (0..40)
        .map(|i| {
            let tokens: Vec<String> = (0..60).map(|k| ((i + k) % 60).to_string()).collect();
            let text = if i == 17 { "9000 ".repeat(60) } else { tokens.join(" ") };
            format!("{{\"text\": \"{}\"}}\n", text.trim())
        })
        .collect();
    let jsonl = t.path("docs.jsonl");
    std::fs::write(&jsonl, lines).unwrap();
    let prefix = t.path("docs");
    let mut c = clean(env!("CARGO_BIN_EXE_preprocess_data"));
    c.args(["--tokenizer-type", "NullTokenizer", "--vocab-size", "10000", "--workers", "1", "--append-eod"]);
    succeed(c.arg("--input").arg(&jsonl).arg("--output-prefix").arg(&prefix));
    t.path("docs_text_document")
}

#[test]
fn bad_data_on_one_rank_is_one_report() {
    let t = Temp::new("bad-data");
    let words = format!("{ENDLESS} --data-path {}", corpus(&t).display());
    let command = || {
        let mut c = clean(env!("CARGO_BIN_EXE_pretrain_gpt"));
        c.args(SMALL.replace("--mock-data", "").split_whitespace()).args(words.split_whitespace());
        c
    };
    let port = free_port();
    let all: Vec<Running> = (0..3).map(|r| start(as_rank(command(), r, 3, port))).collect();
    let ends: Vec<Ended> = all.into_iter().map(|r| r.end(LIMIT)).collect();
    one_report(&ends, &["reading data", "of document 17 is 9000"]);
    // The same as threads.
    let mut c = command();
    c.args(["--thread-ranks", "3"]);
    let e = start(c).end(LIMIT);
    assert_eq!(e.status.code(), Some(1), "{}", e.stderr);
    let text = last(&e);
    assert!(text.starts_with("pretrain_gpt: rank ") && text.contains(": iteration "), "{}", e.stderr);
    assert!(text.contains("reading data: ") && text.contains("of document 17 is 9000"), "{}", e.stderr);
}

/// One rank reports its failure with rank, host, step, phase and cause; the others say that they end with it, and repeat it.
fn one_report(ends: &[Ended], cause: &[&str]) {
    let failed: Vec<&Ended> = ends.iter().filter(|e| e.status.code() == Some(1)).collect();
    let reports: Vec<&str> = ends.iter().map(|e| e.stderr.as_str()).collect();
    assert_eq!(failed.len(), 1, "one rank is the cause: {reports:#?}");
    let report = last(failed[0]).strip_prefix("pretrain_gpt: ").unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for text in [&["rank ", &format!(" ({} pid ", host.trim()), "iteration "], cause].concat() {
        assert!(report.contains(text), "no '{text}' in {report}");
    }
    for e in ends.iter().filter(|e| e.status.code() != Some(1)) {
        assert_eq!(e.status.code(), Some(75), "{}", e.stderr);
        assert!(last(e).ends_with(report) && last(e).contains("ended with a peer: "), "{}\n{report}", last(e));
    }
}
