//! Users' reports of launches gone wrong, as far as they concern the trainer; each is a test by its id.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;
#[path = "common/world.rs"]
mod world;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::Temp;
use world::{Ended, LIMIT, SMALL, as_rank, clean, free_port, log_of, printed, signal, small, start, until};

const RUN: &str = "--global-batch-size 4 --train-iters 100000 --lr-warmup-iters 0";

/// Rank `rank` of two, with these variables on top.
fn rank_with(rank: usize, words: &str, variables: &[(&str, &str)]) -> Command {
    let mut c = as_rank(small(&format!("{RUN} {words}")), rank, 2, free_port());
    c.envs(variables.iter().copied());
    c
}

fn fails(c: Command, within: Duration, texts: &[&str]) -> Ended {
    let e = start(c).end(within);
    assert!(!e.status.success(), "{}", e.stdout);
    for text in texts {
        assert!(e.stderr.contains(text), "no '{text}' in\n{}", e.stderr);
    }
    e
}

/// pytorch#52848, #53395, #58431, ms-swift#3343: a wrong master address, or a rank that never comes, was a silent wait for
/// half an hour.
#[test]
fn lau_03_a_wait_says_for_whom_and_ends_at_its_limit() {
    let limit = "--timeout-seconds 3";
    let soon = Duration::from_secs(20); // on a busy machine; the limit itself is 3 s
    fails(rank_with(1, limit, &[("MASTER_ADDR", "nosuch.invalid")]), soon, &["nosuch.invalid:"]);
    // Nobody listens there: refused at once, tried until the limit.
    let port = free_port().to_string();
    let e = fails(rank_with(1, limit, &[("MASTER_PORT", &port)]), soon, &[&format!("127.0.0.1:{port}")]);
    assert!(e.took >= Duration::from_secs(2), "it may still come: {:?}", e.took);
    // An address that leads nowhere: no answer at all, or an error of the network.
    fails(rank_with(1, limit, &[("MASTER_ADDR", "10.255.255.1")]), soon, &["10.255.255.1:"]);
    // Rank 0 alone says whom it waits for, more than once, and in the end.
    let e = fails(rank_with(0, limit, &[]), soon, &["waiting for 1 of 2 ranks to start: missing 1"]);
    assert!(e.stderr.lines().last().unwrap().contains("missing 1"), "{}", e.stderr);
    assert!(e.stderr.matches("missing 1").count() >= 3, "{}", e.stderr);

    // Variables that cannot be.
    let at_once = Duration::from_secs(10);
    fails(rank_with(2, "", &[]), at_once, &["rank 2 of a world of 2: ranks are 0 to 1"]);
    fails(rank_with(0, "", &[("RANK", "one")]), at_once, &["RANK=one is not a number"]);
    let mut c = rank_with(1, "", &[]);
    c.env_remove("MASTER_ADDR");
    fails(c, at_once, &["MASTER_ADDR"]);
    let mut c = rank_with(1, "", &[]);
    c.env_remove("WORLD_SIZE");
    fails(c, at_once, &["WORLD_SIZE"]);

    // The same rank twice.
    let port = free_port();
    let twin = |r: usize| start(as_rank(small(&format!("{RUN} {limit} --global-batch-size 3")), r, 3, port));
    let all = [twin(0), twin(1), twin(1)].map(|r| r.end(soon));
    assert!(all.iter().all(|e| !e.status.success()));
    assert!(all.iter().any(|e| e.stderr.contains("two processes are rank 1")), "{:?}", all.map(|e| e.stderr));
}

/// `ferrotron launch` of two ranks that save on SIGTERM.
fn launched(dir: &Path, words: &str) -> Command {
    let mut c = clean(env!("CARGO_BIN_EXE_ferrotron"));
    c.args(["launch", "--standalone", "--nproc_per_node", "2", env!("CARGO_BIN_EXE_pretrain_gpt")]);
    c.args(SMALL.split_whitespace()).args(RUN.split_whitespace()).args(words.split_whitespace());
    c.args(["--exit-signal-handler", "--save"]).arg(dir);
    c
}

/// Folders of iterations below a checkpoint's root.
fn saved(dir: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name().into_string().unwrap());
    let mut all: Vec<u64> = names.filter_map(|n| n.strip_prefix("iter_")?.parse().ok()).collect();
    all.sort_unstable();
    all
}

/// Ranks that a launcher started: its children that train.
fn ranks_of(launcher: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
    let all = text.split_whitespace().map(|p| p.parse::<u32>().unwrap());
    all.filter(|p| std::fs::read_to_string(format!("/proc/{p}/comm")).is_ok_and(|c| c.trim() == "pretrain_gpt"))
        .collect()
}

/// Megatron-LM#1376, Megatron-DeepSpeed#460, Megatron-Bridge#5975: a signal was lost when it went to the launcher, or came
/// during start-up, evaluation or a save.
#[test]
fn lau_05_a_signal_at_any_moment_saves_once_and_ends_well() {
    let t = Temp::new("lau05");
    let whole = printed(&log_of(small(&format!("{RUN} --thread-ranks 2 --exit-interval 40"))));
    let long_evaluation = "--eval-interval 2 --eval-iters 150";
    for (moment, words, ready, wait) in [
        ("start-up", "", "using world size: 2", 0),
        ("an iteration", "", "iteration        3/", 0),
        ("an evaluation", long_evaluation, "iteration        2/", 5),
        ("a save", "--save-interval 1", "saving checkpoint at iteration", 0),
        ("one rank only", "", "iteration        3/", 0),
    ] {
        let dir = t.path(&moment.replace(' ', "-"));
        let run = start(launched(&dir, words));
        run.says(ready);
        std::thread::sleep(Duration::from_millis(wait));
        let launcher = run.child.id();
        if moment == "one rank only" {
            let ranks = until(LIMIT, "two ranks", || Some(ranks_of(launcher)).filter(|all| all.len() == 2));
            signal("TERM", ranks[0]);
        } else {
            signal("TERM", launcher);
        }
        let e = run.end(LIMIT);
        if moment == "start-up" && e.status.code() == Some(143) {
            // A rank was told before it could listen: nothing was trained, and the code says what happened.
            assert!(saved(&dir).is_empty());
            continue;
        }
        let e = e.well();
        assert!(e.stdout.contains("exiting program after receiving SIGTERM"), "{moment}: {}", e.stdout);
        let (steps, kept) = (printed(&e.stdout), saved(&dir));
        let last = *kept.last().unwrap();
        assert_eq!(last as usize, steps.len(), "{moment}: the last iteration is the saved one");
        if !words.contains("--save-interval") {
            assert_eq!(kept.len(), 1, "{moment}: saved once");
        }
        // Seen soon after: how far a run gets in the meantime is the machine's doing, by far not its whole length.
        if moment == "an evaluation" {
            assert!((2..=20).contains(&last), "{last}");
        }
        let more = last + 3;
        let resumed = log_of(small(&format!("{RUN} --thread-ranks 2 --load {} --exit-interval {more}", dir.display())));
        let both = [steps, printed(&resumed)].concat();
        let n = both.len().min(whole.len());
        assert_eq!(both[..n], whole[..n], "{moment}: resumed");
    }
}
