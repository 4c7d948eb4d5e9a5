//! Several ranks on `--device npu` over the mock of CANN and HCCL.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{Temp, losses, program, text};

/// An installation of CANN that is the mock, in a folder as the vendor's installer makes it.
fn cann(home: &Path) {
    let exe = std::env::current_exe().unwrap();
    let library = exe.parent().unwrap().join("libferrotron_ascend_mock.so");
    let lib = home.join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    for name in ["libascendcl.so", "libnnopbase.so", "libopapi.so", "libhccl.so"] {
        std::os::unix::fs::symlink(&library, lib.join(name)).unwrap();
    }
}

/// Command line 5 of the article this program follows, at tiny width.
const LINE: &str = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 4 --hidden-size 32 \
    --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 --global-batch-size 8 --bf16 --use-flash-attn \
    --flash-attn-backend npu";
/// What it omits.
const MISSING: &str = "--max-position-embeddings 16 --train-iters 4 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer \
    --vocab-size 61 --log-interval 1 --eval-iters 0 --hidden-dropout 0 --attention-dropout 0";

fn on(home: &Path, device: &str, words: &str) -> Command {
    let mut c = program();
    c.args(words.split_whitespace()).args(["--device", device, "--thread-ranks", "8"]);
    c.env("ASCEND_HOME_PATH", home).env("FERROTRON_MOCK_LOUD", "1").env("HCCL_BUFFSIZE", "512");
    c
}

#[test]
fn the_articles_line_on_eight_ranks() {
    let t = Temp::new("npu-line5");
    cann(&t.path("cann"));
    let began = Instant::now();
    let Output { status, stdout, stderr } = on(&t.path("cann"), "npu", &format!("{LINE} {MISSING}")).output().unwrap();
    let (out, err) = (text(&stdout), text(&stderr));
    println!("{out}\n{err}\n{:?}", began.elapsed());
    assert!(status.success() && losses(&out).len() == 4 && !err.contains("mock:"), "{out}\n{err}");
    assert!(began.elapsed() < Duration::from_secs(60));
}
