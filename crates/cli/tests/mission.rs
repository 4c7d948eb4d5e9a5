//! Two command lines as users type them, in bash scripts, through the stand-ins of `ferrotron shims`, with every rank a
//! process: 8 ranks of a TP x PP x DP layout, and 32 of an interleaved one. Widths are scaled down by flags that come last;
//! losses are those of one rank.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;
#[path = "common/world.rs"]
mod world;

use std::path::Path;
use std::process::Command;

use common::{Temp, losses, succeed};
use world::{clean, log_of};

/// A folder with the stand-ins, in which scripts run.
fn installed(name: &str) -> Temp {
    let t = Temp::new(name);
    succeed(clean(env!("CARGO_BIN_EXE_ferrotron")).arg("shims").arg(t.path("shims")));
    t
}

/// A script in the folder of the stand-ins, where `examples/pretrain_gpt.sh` is what upstream has under that name.
fn script(t: &Temp, text: &str) -> Command {
    let file = t.path("run.sh");
    std::fs::write(&file, format!("#!/usr/bin/env bash\nset -euo pipefail\n{text}\n")).unwrap();
    let path = format!("{}:/usr/bin:/bin", t.path("shims/bin").display());
    let mut c = clean("bash");
    c.arg(file).current_dir(t.path("shims")).env("PATH", path).env("MASTER_PORT", world::free_port().to_string());
    c
}

/// Losses of the training lines.
fn curve(log: &str) -> Vec<f64> {
    let of = |l: &String| l.split('|').find_map(|f| f.trim().strip_prefix("lm loss: ").map(str::to_string));
    losses(log).iter().filter_map(of).map(|v| v.parse().unwrap()).collect()
}

/// What one rank prints for the same flags without the layout.
fn one_rank(t: &Temp, flags: &str) -> Vec<f64> {
    let mut c = clean(env!("CARGO_BIN_EXE_pretrain_gpt"));
    curve(&succeed(c.current_dir(t.path("")).args(flags.split_whitespace())))
}

fn agree(got: &[f64], want: &[f64], within: f64) {
    assert_eq!((got.len(), want.len()), (3, 3), "{got:?}, {want:?}");
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
    assert!(off <= within, "{off}: {got:?}, one rank: {want:?}");
}

#[test]
fn forty_layers_on_eight_ranks() {
    let t = installed("mission-1");
    let line = "--num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 4096 --micro-batch-size 4 \
        --global-batch-size 128 --use-distributed-optimizer";
    let small = "--hidden-size 32 --num-attention-heads 4 --seq-length 12 --global-batch-size 16 --mock-data \
        --tokenizer-type NullTokenizer --vocab-size 61 --make-vocab-size-divisible-by 16 --train-iters 3 --lr 1e-2 --log-interval 1 --eval-iters 0 \
        --hidden-dropout 0.1 --init-method-std 0.1";
    let text = format!(
        "bash examples/pretrain_gpt.sh --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 {line} {small}"
    );
    let mut c = script(&t, &text);
    c.env("GPUS_PER_NODE", "8");
    // Seven digits are printed; f32 sums in another order are within 1e-5.
    agree(&curve(&log_of(c)), &one_rank(&t, &format!("{line} {small}")), 1e-5);
}

#[test]
fn interleaved_stages_on_thirty_two_ranks() {
    let t = installed("mission-4");
    std::fs::write(t.path("corpus.jsonl"), (0..64).map(document).collect::<String>()).unwrap();
    let dir = t.path("");
    let data = dir.join("corpus").display().to_string();
    let line = |save: &Path| {
        let save = save.display();
        format!(
            "--num-layers 40 --hidden-size 5120 --num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 \
             --micro-batch-size 2 --global-batch-size 256 --train-iters 100000 --lr 3e-4 --min-lr 3e-5 \
             --lr-decay-style cosine --lr-warmup-iters 2000 --weight-decay 0.1 --clip-grad 1.0 --bf16 --use-flash-attn \
             --use-mcore-models --transformer-impl transformer_engine --overlap-p2p-communication \
             --distributed-backend nccl --save {save} --load {save} --data-path {data}_text_document --split 98,2,0 \
             --log-interval 10 --save-interval 1000 --eval-interval 1000 --eval-iters 10"
        )
    };
    let small = "--hidden-size 16 --num-attention-heads 4 --seq-length 12 --max-position-embeddings 12 --global-batch-size 16 \
        --tokenizer-type ByteLevelTokenizer --padded-vocab-size 320 --train-iters 3 --lr-warmup-iters 1 --log-interval 1 --eval-iters 0 \
        --lr-decay-iters 100 --init-method-std 0.1";
    let text = format!(
        "python tools/preprocess_data.py --input {}/corpus.jsonl --tokenizer-type ByteLevelTokenizer --append-eod \
         --dataset-impl mmap --workers 2 --output-prefix {data}\n\
         bash examples/pretrain_gpt_distributed.sh --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 \
         --num-layers-per-virtual-pipeline-stage 2 {} {small}",
        dir.display(),
        line(&t.path("many")),
    );
    let mut c = script(&t, &text);
    c.env("GPUS_PER_NODE", "32");
    let log = log_of(c);
    assert!(log.contains("model parallel rank (3, 0, 1)"), "{log}");
    // bf16 keeps 8 bits: sums in another order are within 1 %.
    agree(&curve(&log), &one_rank(&t, &format!("{} {small}", line(&t.path("one")))), 0.01);
    assert_eq!(std::fs::read_to_string(t.path("many/latest_checkpointed_iteration.txt")).unwrap().trim(), "3");
}

/// A line of JSON with some text.
fn document(i: usize) -> String {
    format!("{{\"text\": \"Document {i}: the quick brown fox jumps over {} lazy dogs.\"}}\n", i * i)
}
