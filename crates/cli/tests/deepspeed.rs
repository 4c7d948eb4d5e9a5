//! A tiny model trained from a DeepSpeed file gives the digits that the same values give as flags: in one process, and by
//! `deepspeed` through the stand-ins of `ferrotron shims`.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;
#[path = "common/world.rs"]
mod world;

use common::{Temp, fail, losses, program, succeed};
use world::{clean, log_of};

/// What stands on the command line either way.
const MODEL: &str = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 24 --max-position-embeddings 24 \
    --hidden-dropout 0.1 --tokenizer-type NullTokenizer --vocab-size 61 --mock-data --split 80,10,10 --train-iters 6 \
    --eval-interval 3 --eval-iters 1 --lr-decay-style cosine --lr-warmup-iters 2 --min-lr 1e-4 --seed 7 --deepspeed";

const FILE: &str = r#"{
  // Hjson, as DeepSpeed reads it
  "train_batch_size": 12,
  "gradient_accumulation_steps": 3,
  steps_per_print: 1,
  "gradient_clipping": 0.25,
  "fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 3, "hysteresis": 1},
  "zero_optimization": {"stage": 1, "overlap_comm": true, "reduce_bucket_size": 5e2, "contiguous_gradients": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}},
}"#;

const FLAGS: &str = "--global-batch-size 12 --micro-batch-size 2 --log-interval 1 --clip-grad 0.25 --fp16 \
    --initial-loss-scale 1024 --loss-scale-window 3 --hysteresis 1 --zero-stage 1 --overlap-grad-reduce \
    --ddp-bucket-size 500 --lr 1e-2 --adam-beta1 0.8 --adam-beta2 0.95 --adam-eps 1e-6 --weight-decay 0.1";

#[test]
fn a_file_trains_as_its_flags_do() {
    let t = Temp::new("deepspeed");
    std::fs::write(t.path("ds.json"), FILE).unwrap();
    let run = |words: &str| {
        let mut c = program();
        c.current_dir(t.path("")).args(MODEL.split_whitespace()).args(["--thread-ranks", "2"]);
        c.args(words.split_whitespace());
        succeed(&mut c)
    };
    let flags = losses(&run(FLAGS));
    assert!(flags.len() >= 8 && flags[5].contains("loss scale"), "{flags:?}");
    assert_eq!(losses(&run("--deepspeed_config ds.json")), flags);
    // The same values on both sides agree, and --print-config tells where they come from.
    let values = run(&format!("{FLAGS} --deepspeed_config ds.json --print-config text"));
    assert!(values.contains("adam_eps = 1e-06  (command line)"), "{values}");
    let values = run("--deepspeed_config ds.json --print-config text");
    assert!(values.contains("adam_eps = 1e-06  (ds.json:9, optimizer.params.eps)"), "{values}");
    assert!(values.contains("global_batch_size = 12  (ds.json:3, train_batch_size)"), "{values}");

    let mut c = program();
    c.current_dir(t.path("")).args(MODEL.split_whitespace()).args(["--thread-ranks", "2", "--micro-batch-size", "4"]);
    let (code, e) = fail(c.args(["--deepspeed_config", "ds.json", "--lr", "0.5"]));
    assert_eq!(code, 2, "{e}");
    for part in ["optimizer.params.lr: 0.01 (ds.json:9)", "--lr 0.5", "12 != 4 * 3 * 2", "train_batch_size 24"] {
        assert!(e.contains(part), "{part}: {e}");
    }
}

/// The command line of a Megatron-DeepSpeed script, with two ranks.
#[test]
fn deepspeed_starts_ranks_that_read_the_file() {
    let t = Temp::new("deepspeed-shim");
    succeed(clean(env!("CARGO_BIN_EXE_ferrotron")).arg("shims").arg(t.path("shims")));
    std::fs::write(t.path("shims/ds.json"), FILE).unwrap();
    let script = |words: &str| {
        let line =
            format!("deepspeed --num_gpus 2 --master_port {} pretrain_gpt.py {MODEL} {words}", world::free_port());
        std::fs::write(t.path("run.sh"), format!("set -euo pipefail\n{line}\n")).unwrap();
        let path = format!("{}:/usr/bin:/bin", t.path("shims/bin").display());
        let mut c = clean("bash");
        c.arg(t.path("run.sh")).current_dir(t.path("shims")).env("PATH", path);
        losses(&log_of(c))
    };
    let flags = script(FLAGS);
    assert!(flags.len() >= 8, "{flags:?}");
    assert_eq!(script("--deepspeed_config ds.json"), flags);
}
