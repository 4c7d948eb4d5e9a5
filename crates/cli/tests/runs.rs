//! Whole runs of the program: precisions, guards, schedules, exits, and what it says when something is wrong.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use common::{Temp, fail, losses, program, succeed, tiny};
use regex::Regex;

/// Losses of the training lines, as numbers.
fn curve(log: &str) -> Vec<f64> {
    let of = |l: &String| l.split('|').find_map(|f| f.trim().strip_prefix("lm loss: ").map(str::to_string));
    losses(log).iter().filter(|l| l.starts_with("iteration")).filter_map(of).map(|v| v.parse().unwrap()).collect()
}

#[test]
fn sixteen_bits_follow_thirty_two() {
    // Mock documents count upwards, so the loss falls fast. 16-bit parameters round at 2^-8 (bf16) and 2^-11 (fp16); over
    // twelve steps from a loss near ln 62 = 4.1 the curves stay within a few rounding steps of each other.
    let f32s = curve(&succeed(&mut tiny("")));
    let fp16 = curve(&succeed(&mut tiny("--fp16 --initial-loss-scale 1024")));
    let bf16 = curve(&succeed(&mut tiny("--bf16")));
    assert_eq!((f32s.len(), fp16.len(), bf16.len()), (12, 12, 12));
    assert!(f32s[11] < f32s[0] - 0.2, "the loss falls: {f32s:?}");
    for (a, bound, kind) in [(&bf16, 0.02, "bf16"), (&fp16, 0.005, "fp16")] {
        let worst = a.iter().zip(&f32s).map(|(x, y)| (x - y).abs() / y).fold(0.0, f64::max);
        assert!(worst < bound, "{kind} is off by {worst}: {a:?} against {f32s:?}");
    }
}

#[test]
fn fp16_overflow_skips_and_halves_the_scale() {
    let log = succeed(&mut tiny("--fp16 --initial-loss-scale 4294967296 --hysteresis 1 --train-iters 24"));
    assert!(log.contains("update skipped: gradients overflowed under the loss scale"), "{log}");
    let scales: Vec<f64> = log
        .lines()
        .filter_map(|l| l.split('|').find_map(|f| f.trim().strip_prefix("loss scale: ")?.parse().ok()))
        .collect();
    assert!(scales.windows(2).take(3).all(|w| w[1] == w[0] / 2.0), "{scales:?}");
    assert!(scales.last().unwrap() > &1.0);
}

#[test]
fn thresholds_skip_updates() {
    let spike = succeed(&mut tiny("--loss-spike-threshold 0.5"));
    assert_eq!(spike.matches("is above --loss-spike-threshold 0.5").count(), 12, "{spike}");
    let norm = succeed(&mut tiny("--grad-norm-skip-threshold 1e-6"));
    assert_eq!(norm.matches("is above --grad-norm-skip-threshold").count(), 12, "{norm}");
}

/// Megatron-LLM#34, Megatron-DeepSpeed#396: under bf16 nothing looked for NaN, and training went on. The run stops in the same
/// iteration, clipped or not, on one rank or several; the checkpoint before stays; a threshold makes it a counted skip.
#[test]
fn opt_02_a_number_that_is_not_finite_stops_the_run() {
    let t = Temp::new("opt02");
    let wild = "--lr 1e38 --min-lr 1e38 --lr-warmup-iters 0 --weight-decay 0";
    for (i, words) in
        ["--bf16 --clip-grad 1.0", "--bf16 --clip-grad 0", "--clip-grad 0 --thread-ranks 2"].iter().enumerate()
    {
        let dir = t.path(&i.to_string());
        let save = format!("--save {} --save-interval 1", dir.display());
        let (code, message) = fail(&mut tiny(&format!("{wild} {words} {save}")));
        assert_eq!(code, 1);
        for part in ["iteration 2: the loss is not finite", "the last good iteration is 1", "micro-batch 1 of "] {
            assert!(message.contains(part), "no '{part}' in {message}");
        }
        assert_eq!(message.contains("rank 0"), words.contains("ranks"), "{message}");
        let tracker = std::fs::read_to_string(dir.join("latest_checkpointed_iteration.txt")).unwrap();
        assert_eq!((tracker.trim(), dir.join("iter_0000001").is_dir()), ("1", true));
    }
    let log = succeed(&mut tiny(&format!("{wild} --bf16 --loss-spike-threshold 1e9")));
    let counted = |l: &&str| l.contains("skipped iterations:   1 |") && l.contains("nan iterations:   1 |");
    assert_eq!(log.lines().filter(counted).count(), 11, "all but the first: {log}");
}

#[test]
fn recomputation_changes_nothing() {
    let plain = losses(&succeed(&mut tiny("")));
    for words in [
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
        "--recompute-granularity selective",
        "--recompute-granularity selective --recompute-modules core_attn mlp layernorm",
    ] {
        assert_eq!(losses(&succeed(&mut tiny(words))), plain, "{words}");
    }
}

#[test]
fn every_architecture_flag_trains() {
    for words in [
        "--position-embedding-type learned_absolute",
        "--normalization LayerNorm --qk-layernorm --apply-layernorm-1p",
        "--rotary-percent 0.5 --rotary-interleaved",
        "--kv-channels 12 --rotary-base 500000",
        "--use-rope-scaling",
        "--add-qkv-bias",
        "--window-size 8,0",
        "--reset-position-ids --reset-attention-mask --eod-mask-loss",
        "--optimizer sgd --sgd-momentum 0.9",
        "--dataloader-type cyclic",
        "--log-throughput --log-params-norm --log-num-zeros-in-grad --timing-log-level 2",
    ] {
        let curve = curve(&succeed(&mut tiny(words)));
        assert!(curve.len() == 12 && curve[11] < curve[0], "{words}: {curve:?}");
    }
}

#[test]
fn skipped_iterations_consume_their_samples() {
    let log = succeed(&mut tiny("--iterations-to-skip 2 3"));
    assert!(!log.contains("iteration        3/") && !log.contains("iteration        4/"), "{log}");
    let fifth = log.lines().find(|l| l.contains("iteration        5/")).unwrap();
    assert!(fifth.contains("consumed samples:           20 |") && fifth.contains("skipped samples:            8 |"));
}

#[test]
fn full_validation_reads_the_whole_set() {
    let log = succeed(&mut tiny("--full-validation --eval-interval 12 --split 9980,19,1"));
    let losses: Vec<&str> =
        log.lines().filter(|l| l.contains("validation loss at") && l.contains("set | lm")).collect();
    let during = log.lines().find(|l| l.contains("validation loss at iteration 12 | ")).unwrap();
    let value = |l: &str| l.split("lm loss value: ").nth(1).unwrap().split(' ').next().unwrap().to_string();
    assert_eq!(value(losses[0]), value(during), "every full validation sees the same samples:\n{log}");
}

#[test]
fn batch_size_schedules() {
    let ramp = succeed(&mut tiny("--rampup-batch-size 2 2 8 --global-batch-size 8 --train-iters 6"));
    let sizes: Vec<&str> =
        ramp.lines().filter_map(|l| l.split("global batch size:").nth(1)?.split('|').next()).collect();
    let sizes: Vec<u64> = sizes.iter().map(|s| s.trim().parse().unwrap()).collect();
    assert!(sizes[0] == 2 && sizes.last() == Some(&8) && sizes.is_sorted(), "{sizes:?}");
}

#[test]
fn sigterm_with_the_handler_saves() {
    use std::io::{BufRead, BufReader};
    let t = Temp::new("sigterm");
    let dir = t.path("ckpt");
    let words = format!("--train-iters 100000 --exit-signal-handler --save {}", dir.display());
    let mut child = tiny(&words).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|l| l.as_ref().unwrap().contains("iteration        3/")).unwrap().unwrap();
    std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let rest: Vec<String> = lines.map(|l| l.unwrap()).collect();
    assert!(child.wait().unwrap().success());
    assert!(rest.iter().any(|l| l.contains("exiting program after receiving SIGTERM")), "{rest:?}");
    assert!(dir.join("latest_checkpointed_iteration.txt").exists());
}

#[test]
fn mistakes_have_one_clear_answer_each() {
    let (code, e) = fail(&mut tiny("--num-attention-heads 5 --lr-decay-style cosin --frobnicate"));
    assert_eq!(code, 2);
    for part in ["--frobnicate", "cosin", "mistakes"] {
        assert!(e.contains(part), "{part} in {e}");
    }
    let (code, e) = fail(&mut tiny("--load /nonexistent/checkpoints"));
    assert_eq!(code, 1);
    assert!(e.contains("/nonexistent/checkpoints"), "{e}");
    let (code, e) = fail(&mut tiny("--device npu"));
    assert_eq!(code, 1);
    assert!(e.contains("no npu device") && e.contains("to do:"), "{e}");
    let (code, e) = fail(program().args(["--tensor-model-parallel-size", "2"]));
    assert_eq!(code, 2, "{e}");
}

/// Ranks that are not there: the launcher's variable says how many, and one process speaks for all.
#[test]
fn a_dry_run_of_many_ranks() {
    let layout = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --global-batch-size 512 --dry-run";
    let world = |c: &mut std::process::Command| succeed(c.env("WORLD_SIZE", "512"));
    let dry = world(&mut tiny(layout));
    for part in [
        "one training step on the dry device, 4 of 512 ranks run, 2 micro-batches each",
        "collectives of all 512 ranks fit together",
        "pipeline bubble: 33.33 % of the step's time (formula: 33.33 %), schedule 1f1b, 2 stages, 2 micro-batches",
        "can be trained",
    ] {
        assert!(dry.contains(part), "{part} in {dry}");
    }
    // A tokenizer that is elsewhere: the vocabulary's size is enough; without it, the bubble is told all the same.
    let elsewhere = format!("{layout} --tokenizer-type HuggingFaceTokenizer --tokenizer-model /nowhere");
    assert!(world(&mut tiny(&elsewhere)).contains("collectives of all 512 ranks fit together"));
    let words = common::TINY.replace("--vocab-size 61", "");
    let bare = world(program().args(words.split_whitespace()).args(elsewhere.split_whitespace()));
    assert!(bare.contains("no step on the dry device without a tokenizer") && bare.contains("/nowhere"), "{bare}");
    assert!(bare.contains("pipeline bubble: 33.33 %") && bare.contains("can be trained"), "{bare}");
}

#[test]
fn a_dry_run_and_a_printed_configuration() {
    let dry = succeed(&mut tiny("--dry-run"));
    assert!(dry.contains("can be trained"), "{dry}");
    assert!(dry.contains("one training step on the dry device, 1 of 1 ranks run"), "{dry}");
    assert!(!dry.contains("pipeline bubble"), "one stage has none: {dry}");
    let json = succeed(&mut tiny("--print-config json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["config"]["model"]["num_layers"], 2);
}

/// A whole log, read by expressions written from Megatron's formats: each finds as many lines as the run must print, and no
/// line with a number of training is left over.
#[test]
fn a_log_is_read_by_expressions_written_for_megatron() {
    let t = Temp::new("formats");
    let words = "--log-throughput --log-params-norm --log-num-zeros-in-grad --timing-log-level 1 --save-interval 6 \
        --thread-ranks 2 --micro-batch-size 1 --save";
    let log = succeed(tiny(words).arg(t.path("ckpt")));
    let time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?";
    let e = r"\d\.\d{6}E[+-]\d\d";
    let expressions = [
        (1, r"^using world size: 2, data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: None, tensor-model-parallel size: 1, pipeline-model-parallel size: 1$".to_string()),
        (1, r"^-{24} arguments -{24}$".into()),
        (1, r"^  global_batch_size \.+ 4$".into()),
        (1, r"^-{20} end of arguments -{21}$".into()),
        (1, r"^ > number of parameters on \(tensor, gtp_weight_remat, pipeline\) model parallel rank \(0, 0, 0\): \d+$".into()),
        (1, format!(r"^\[before the start of training step\] datetime: {time} $")),
        (1, format!(r"^\[after training is done\] datetime: {time} $")),
        (12, format!(r"^ \[{time}\] iteration [ \d]{{8}}/      12 \| consumed samples: [ \d]{{12}} \| elapsed time per iteration \(ms\): \d+\.\d \| throughput per GPU \(TFLOP/s/GPU\): \d+\.\d \| learning rate: {e} \| global batch size:     4 \| lm loss: {e} \| loss scale: 1\.0 \| grad norm: \d+\.\d{{3}} \| num zeros: \d+(?:\.\d)? \| params norm: \d+\.\d{{3}} \| number of skipped iterations:   0 \| number of nan iterations:   0 \|$")),
        (2, format!(r"^ validation loss at iteration \d+ \| lm loss value: {e} \| lm loss PPL: {e} \| $")),
        (2, format!(r"^ validation loss at iteration 12 on (?:validation|test) set \| lm loss value: {e} \| lm loss PPL: {e} \| $")),
        (12, r"^\(min, max\) time across ranks \(ms\):$".into()),
        (12, r"^    forward-backward \.+: \(\d+\.\d\d, \d+\.\d\d\)$".into()),
        (1, r"^\[Rank 1\] \(after 1 iterations\) memory \(MB\) \| allocated: \d+\.\d+ \| max allocated: \d+\.\d+ \| reserved: \d+\.\d+ \| max reserved: \d+\.\d+$".into()),
        (2, format!(r"^\[{time}\] saving checkpoint at iteration +(?:6|12) to \S+ in \w+ format$")),
        (2, format!(r"^  \[{time}\] successfully saved checkpoint from iteration +(?:6|12) to \S+ \[ t 1/1, gtp_remat 1/1, p 1/1 \]$")),
    ];
    let mut read = vec![];
    for (count, expression) in expressions {
        let expression = Regex::new(&expression).unwrap();
        let found: Vec<&str> = log.lines().filter(|l| expression.is_match(l)).collect();
        assert_eq!(found.len(), count, "{expression} in {log}");
        read.extend(found);
    }
    let left = |l: &&str| (l.contains("loss") || l.contains("checkpoint at")) && l.contains(": ") && !read.contains(l);
    assert_eq!(log.lines().filter(left).collect::<Vec<_>>(), Vec::<&str>::new());
}
