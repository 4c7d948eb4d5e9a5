//! Several ranks on `--device npu` over the mock of CANN and HCCL: the article's command line, HCCL's buffers, and what the
//! user reads when a rank, a link or the library fails.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/vendor.rs"]
mod vendor;
#[path = "common/world.rs"]
mod world;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{Temp, clean, difference, losses, program, text};
use vendor::{Vendor, cann};

/// Command line 5 of the article that this program follows, at tiny width.
const LINE: &str = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 4 --hidden-size 32 \
    --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 --global-batch-size 8 --bf16 --use-flash-attn \
    --flash-attn-backend npu";
/// What it omits, and what makes it short.
const REST: &str = "--max-position-embeddings 16 --train-iters 8 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer \
    --vocab-size 61 --log-interval 1 --eval-iters 0 --hidden-dropout 0 --attention-dropout 0";

fn on(home: &Path, device: &str, words: &[&str]) -> Command {
    let mut c = program();
    c.args(words.iter().flat_map(|w| w.split_whitespace()));
    c.args(["--device", device, "--thread-ranks", "8"]);
    c.env("ASCEND_HOME_PATH", home).env("FERROTRON_MOCK_LOUD", "1").env("HCCL_BUFFSIZE", "512");
    c
}

#[test]
fn the_articles_line_says_in_one_message_what_it_omits() {
    let Output { status, stderr, .. } = on(Path::new("/nowhere"), "npu", &[LINE]).output().unwrap();
    let err = text(&stderr);
    assert_eq!(status.code(), Some(2), "{err}");
    for flag in ["1. required, but not given:", "--data-path", "--tokenizer-type", "--train-iters", "--lr "] {
        assert!(err.contains(flag), "{flag} in {err}");
    }
    assert!(!err.contains("2. "), "{err}");
}

#[test]
fn the_articles_line_trains_on_eight_ranks_with_its_buffers() {
    let t = Temp::new("npu-line5");
    cann(&t.path("cann"));
    let comms = t.path("comms");
    let npu = clean(on(&t.path("cann"), "npu", &[LINE, REST]).env("FERROTRON_MOCK_COMMS", &comms));
    assert_eq!(losses(&npu).len(), 8, "{npu}");
    // The start says it, HCCL gets it, and the memory lines count it: seven communicators of twice 512 MiB.
    let says = "environment: HCCL_BUFFSIZE=512 (passed to CANN: MB of a communicator's buffer, of which it takes two";
    assert!(npu.contains(says), "{npu}");
    let line = npu.lines().find(|l| l.starts_with("communicators of rank 7: 7, 7168 MiB of its device: "));
    let line = line.unwrap_or_else(|| panic!("{npu}"));
    for group in ["tp/layers of 2", "dp/grads of 2", "dp/params of 2", "embedding/grads of 2", "world/steps of 8"] {
        assert!(line.contains(group), "{line}");
    }
    assert!(line.contains("pp 0>1/forward of 2, pp 1>0/backward of 2"), "{line}");
    let reserved = npu.split("reserved: ").nth(1).and_then(|r| r.split(' ').next()?.parse::<f64>().ok());
    assert!(reserved.is_some_and(|mb| (7168.0..7170.0).contains(&mb)), "{reserved:?} {npu}");
    let told = std::fs::read_to_string(&comms).unwrap();
    // 7 of each of 8 ranks
    assert_eq!(told.lines().count(), 56, "{told}");
    assert!(told.lines().all(|l| l.contains(" buffer=512 deterministic=unset ")), "{told}");

    // bf16: the same run on CPU ranks, which round sums of more than two once
    let cpu = clean(&mut on(&t.path("cann"), "cpu", &[LINE, REST]));
    assert!(difference(&npu, &cpu) <= 2e-2, "{}\n{npu}\n{cpu}", difference(&npu, &cpu));
}

#[test]
fn ranks_links_and_the_library_fail_with_a_report_and_in_time() {
    let t = Temp::new("npu-rank-faults");
    cann(&t.path("cann"));
    for (fault, words) in [
        // The device of rank 3 never does its part of a call.
        (
            "3:lost:HcclAllReduce#5=1",
            &["waited 3.", "ranks [2, 3] wait in tp #5 all_reduce", "last 16 collectives"][..],
        ),
        (
            "3:lost:HcclSend#3=1",
            &["waited 3.", "ranks [3, 7] wait in pp 0>1 #3 exchange", "crates/executor/src/edges.rs"],
        ),
        // The link of rank 3 is slower than the deadline. All ranks wait as long, so any of them may be the one that reports.
        ("3:slow:HcclReduceScatter#1=20000", &["waited 3.", "ranks [1, 3] wait in dp #1 reduce_scatter", "link"]),
        // The library refuses a call.
        (
            "3:HcclReduceScatter#2=9",
            &[
                "rank 3: dp #2 reduce_scatter of ",
                "HcclReduceScatter in group dp/grads: 9 HCCL_E_TIMEOUT: not all ranks",
            ],
        ),
        // The library fails after the call, whichever stream is asked first.
        (
            "3:task:HcclAllReduce#5=507015",
            &["rank 3", "507015 AICORE_EXCEPTION", "HcclAllReduce of", "in group tp/layers"],
        ),
        ("3:task:HcclAllGather#1=107020", &["rank 3", "107020", "HcclAllGather of", "in group dp/params"]),
    ] {
        let limits = "--use-distributed-optimizer --distributed-timeout-seconds-after-init 3";
        let began = Instant::now();
        let mut c = on(&t.path("cann"), "npu", &[LINE, REST, limits]);
        let Output { status, stderr, .. } = c.env("FERROTRON_MOCK_FAULTS", fault).output().unwrap();
        let (took, err) = (began.elapsed(), text(&stderr));
        assert!(status.code().is_some_and(|code| code != 0), "{fault}: {status}\n{err}");
        for part in words {
            assert!(err.contains(part), "{part} of {fault}\n{err}");
        }
        assert!(took < Duration::from_secs(10), "{fault}: {took:?}");
    }
}

/// The line as the article types it, through our launcher: eight processes that find each other over the store, and train
/// to the losses of eight threads. One that is killed ends all, with its name.
#[test]
fn eight_processes_train_to_the_losses_of_eight_threads() {
    let t = Temp::new("npu-processes");
    cann(&t.path("cann"));
    let launched = |rest: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_ferrotron"));
        c.args(["launch", "--standalone", "--nproc_per_node=8", env!("CARGO_BIN_EXE_pretrain_gpt"), "--device", "npu"]);
        c.args([LINE, REST, rest].iter().flat_map(|w| w.split_whitespace()));
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK"] {
            c.env_remove(name);
        }
        c.env("ASCEND_HOME_PATH", t.path("cann")).env("HCCL_BUFFSIZE", "512").env("OMP_NUM_THREADS", "1");
        vendor::between_processes(&mut c, &t);
        c.env("FERROTRON_MOCK_LOUD", "1");
        c
    };
    let processes = clean(&mut launched("--check-collectives"));
    let threads = clean(&mut on(&t.path("cann"), "npu", &[LINE, REST]));
    assert_eq!(losses(&processes), losses(&threads), "{processes}\n{threads}");

    let began = Instant::now();
    let mut c = launched("--distributed-timeout-seconds-after-init 3");
    let Output { status, stderr, .. } = c.env("FERROTRON_MOCK_FAULTS", "3:lost:HcclAllReduce#5=1").output().unwrap();
    let (took, err) = (began.elapsed(), text(&stderr));
    assert!(status.code().is_some_and(|code| code != 0), "{status}\n{err}");
    assert!(err.contains("waited 3.") && err.contains("ranks [2, 3] wait in tp #5 all_reduce"), "{err}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn processes_train_to_the_losses_of_the_cpu() {
    let t = Temp::new("npu-few-processes");
    vendor::processes_train_to_the_losses_of_the_cpu(&Vendor::npu(&t), &t);
}

#[test]
fn a_killed_rank_ends_all_processes_in_time() {
    let t = Temp::new("npu-killed");
    vendor::a_killed_rank_ends_all_processes_in_time(&Vendor::npu(&t), &t);
}
