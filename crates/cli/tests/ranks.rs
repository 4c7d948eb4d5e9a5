//! Data parallelism: any number of ranks, with or without the distributed optimizer, overlap, accumulation and whatever
//! bucket size, trains what one rank trains; threads, TCP and shared memory train the same bits; checkpoints move between
//! layouts.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;
#[path = "common/world.rs"]
mod world;

use std::path::Path;

use common::{Temp, files, losses};
use world::{log_of, log_of_processes, loss_gap, printed, small};

/// Printed losses have seven digits, and are f32 sums over tokens, made in another order by another layout.
const LAST_DIGIT: f64 = 5e-7;

/// 20 steps of 16 samples.
const STEPS: &str = "--global-batch-size 16 --train-iters 20";

/// What must differ in nothing but the layout.
fn same_training(words: &str, layouts: &[String], loss_bound: f64) {
    let one = printed(&log_of(small(words)));
    assert_eq!(one.len(), words.split("--train-iters ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap());
    for layout in layouts {
        let many = printed(&log_of(small(&format!("{words} {layout}"))));
        let gap = loss_gap(&many, &one);
        assert!(gap < loss_bound, "{layout}: losses differ by {gap:e}\n{many:?}\n{one:?}");
        let norms = |all: &[(String, String)]| -> Vec<String> { all.iter().map(|p| p.1.clone()).collect() };
        if loss_bound == LAST_DIGIT {
            assert_eq!(norms(&many), norms(&one), "{layout}");
        }
    }
}

#[test]
fn data_parallel_equals_one_rank_in_f32() {
    let mut layouts = vec![];
    for n in [2, 4, 8] {
        for optimizer in ["", "--use-distributed-optimizer"] {
            for overlap in ["", "--overlap-grad-reduce"] {
                // A bucket each for the larger parameters, and one for all.
                for bucket in ["", "--ddp-bucket-size 500"] {
                    if n == 4 && overlap.is_empty() != bucket.is_empty() {
                        continue; // between 2 and 8, which have all
                    }
                    let params = match (optimizer, overlap) {
                        ("", _) | (_, "") => "",
                        _ => "--overlap-param-gather",
                    };
                    layouts.push(format!("--thread-ranks {n} {optimizer} {overlap} {params} {bucket}"));
                }
            }
        }
    }
    for (n, instances, more) in [
        (4, 2, ""),
        (4, 2, "--overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 500"),
        (8, 4, "--overlap-grad-reduce"),
        (4, 4, ""),
        (4, 2, "--zero-stage 3"),
    ] {
        let optimizer = format!("--use-distributed-optimizer --num-distributed-optimizer-instances {instances}");
        layouts.push(format!("--thread-ranks {n} {optimizer} {more}"));
    }
    same_training(STEPS, &layouts, LAST_DIGIT);
}

#[test]
fn accumulation_changes_nothing_but_rounding() {
    // 16 samples as micro-batches of 1, 2 and 4 over 1, 2 and 4 ranks; dropout follows the sample, not the rank.
    let all = [(1, 2), (1, 4), (2, 1), (2, 4), (4, 1), (4, 4)];
    let layouts = all.map(|(ranks, micro)| {
        format!("--thread-ranks {ranks} --micro-batch-size {micro} --use-distributed-optimizer --overlap-grad-reduce")
    });
    same_training(STEPS, &layouts, LAST_DIGIT);
}

#[test]
fn losses_per_token_weigh_alike_wherever_the_tokens_are() {
    // Micro-batches have different numbers of tokens that count, as token 60 ends documents and is masked.
    let words = format!("{STEPS} --calculate-per-token-loss --eod-mask-loss --reset-position-ids");
    let layouts = [2, 4].map(|n| format!("--thread-ranks {n} --use-distributed-optimizer --overlap-grad-reduce"));
    same_training(&words, &layouts, LAST_DIGIT);
    // And it is another mean than that of micro-batches, so the flag is not ignored.
    let (of_tokens, of_micros) =
        (log_of(small(&words)), log_of(small(&words.replace("--calculate-per-token-loss", ""))));
    assert_ne!(printed(&of_tokens), printed(&of_micros));
}

#[test]
fn sixteen_bits_stay_within_their_rounding() {
    // Parameters round at 2^-8 after each of 20 updates; another order of sums moves single roundings, and the curves of
    // one rank and of many part by a few of them.
    let layouts = ["--thread-ranks 2", "--thread-ranks 4 --use-distributed-optimizer --overlap-grad-reduce"];
    same_training(&format!("{STEPS} --bf16"), &layouts.map(String::from), 2e-3);
    // Gradients that travel as bf16 lose 2^-9 of each element, in f32 training too.
    let narrow = ["", "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 500"]
        .map(|o| format!("--thread-ranks 4 --grad-reduce-in-bf16 {o}"));
    same_training(STEPS, &narrow, 2e-3);
    let wide = printed(&log_of(small(&format!("{STEPS} --thread-ranks 4"))));
    let bf16 = printed(&log_of(small(&format!("{STEPS} {}", narrow[0]))));
    assert_ne!(wide, bf16, "the flag has an effect");
}

/// All numbers of a checkpoint: its shards, by name.
fn shards(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let all = files(dir).into_iter().filter(|(p, _)| p.extension().is_some_and(|e| e == "safetensors"));
    let all: Vec<_> = all.map(|(p, bytes)| (p.display().to_string(), bytes)).collect();
    assert!(!all.is_empty(), "no shards in {}", dir.display());
    all
}

#[test]
fn threads_tcp_and_shared_memory_train_the_same_bits() {
    let t = Temp::new("engines");
    let instances = "--use-distributed-optimizer --num-distributed-optimizer-instances 2 --overlap-grad-reduce";
    let experts =
        "--num-experts 6 --moe-aux-loss-coeff 1e-2 --expert-model-parallel-size 2 --use-distributed-optimizer";
    for (n, layout) in [
        (2, ""),
        (4, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
        (4, instances),
        (4, experts),
    ] {
        let words = |dir: &Path| {
            let dir = dir.display();
            format!("--global-batch-size 8 --train-iters 6 --ddp-bucket-size 2000 {layout} --save {dir}")
        };
        let threads = |name: &str| {
            let dir = t.path(&format!("{name}{n}{}", layout.len()));
            let log = log_of(small(&format!("{} --thread-ranks {n}", words(&dir))));
            (losses(&log), shards(&dir))
        };
        let processes = |transport: &str| {
            let dir = t.path(&format!("{transport}{n}{}", layout.len()));
            let log = log_of_processes(n, |_| {
                let mut c = small(&words(&dir));
                c.env("FERROTRON_TRANSPORT", transport);
                c
            });
            (losses(&log), shards(&dir))
        };
        let first = threads("threads");
        assert_eq!(first.0.len(), 6 + 2, "6 steps, validation and test");
        let balanced = first.0.iter().filter(|l| l.contains("| load_balancing_loss: 1.")).count();
        assert_eq!(balanced, if layout == experts { 6 } else { 0 }, "{:?}", first.0);
        for (other, name) in
            [(threads("again"), "twice"), (processes("tcp"), "TCP"), (processes("shm"), "shared memory")]
        {
            assert_eq!(other.0, first.0, "{name}, {n} ranks");
            assert!(other.1 == first.1, "{name}, {n} ranks: checkpoint bytes differ");
        }
    }
}

#[test]
fn checkpoints_move_between_layouts() {
    let t = Temp::new("layouts");
    let sharded = "--thread-ranks 8 --tensor-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce";
    let instances = "--thread-ranks 4 --use-distributed-optimizer --num-distributed-optimizer-instances 2";
    let one = "";
    let run = |layout: &str, dir: &Path, more: &str| {
        let dir = dir.display();
        let steps = format!("{STEPS} --make-vocab-size-divisible-by 1");
        printed(&log_of(small(&format!("{steps} {layout} --save {dir} --load {dir} {more}"))))
    };
    // 62 words divide over two ranks as they are: the padded vocabulary is that of one rank.
    let steps = format!("{STEPS} --make-vocab-size-divisible-by 1");
    let whole = printed(&log_of(small(&steps)));
    for (name, first, second) in [
        ("gathered", sharded, one),
        ("scattered", one, sharded),
        ("to_instances", sharded, instances),
        ("from_instances", instances, sharded),
    ] {
        let dir = t.path(name);
        let mut both = run(first, &dir, "--exit-interval 9");
        assert_eq!(both.len(), 9);
        both.extend(run(second, &dir, ""));
        let gap = loss_gap(&both, &whole);
        assert!(gap < LAST_DIGIT, "{name}: {gap:e}\n{both:?}\n{whole:?}");
        let norms = |all: &[(String, String)]| -> Vec<String> { all.iter().map(|p| p.1.clone()).collect() };
        assert_eq!(norms(&both), norms(&whole), "{name}");
    }
}
