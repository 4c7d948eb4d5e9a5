//! Every row of the table of DeepSpeed's keys does what it says: keys that act change the arguments, the others are named with
//! their reason, or stop the run, and a key at DeepSpeed's default is silent.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use std::collections::BTreeSet;

use common::words;
use ferrotron_config::deepspeed::keys::{Fate, Key, Shape, sections};
use ferrotron_config::show::notices_text;
use ferrotron_config::{Environment, Origin, RawArgs, Severity, Table, Violation, parse, validate};
use serde_json::{Value, json};

const LINE: &str = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 \
    --train-iters 10 --lr-decay-style constant --split 90,10,0 --mock-data --tokenizer-type NullTokenizer --vocab-size 100 \
    --deepspeed --deepspeed_config ds.json";

struct Outcome {
    args: RawArgs,
    violations: Vec<Violation>,
    notices: String,
}

fn judge(table: &Table, file: &Value, more: &str) -> Outcome {
    let text = file.to_string();
    let parsed = parse(table, &words(&format!("{LINE} {more}")), &|_| Ok(text.clone()));
    let env = Environment { world_size: 4, ..Environment::default() };
    match validate(table, parsed.args, &env, parsed.violations) {
        Ok(r) => Outcome { args: r.args, violations: vec![], notices: notices_text(&r.notices) },
        Err(r) => Outcome { args: r.args, violations: r.violations, notices: notices_text(&r.notices) },
    }
}

/// A file with one key, and what makes its section look at it.
fn file(path: &str, value: Value) -> Value {
    let mut root = json!({"train_micro_batch_size_per_gpu": 1});
    if path.starts_with("optimizer.params") {
        root["optimizer"] =
            json!({"type": if path.ends_with("momentum") { "SGD" } else { "AdamW" }, "params": {"lr": 1e-3}});
    } else if path.starts_with("scheduler.params") {
        root["scheduler"] = json!({"type": "WarmupLR"});
    } else if path.starts_with("zero_optimization.offload") {
        root["zero_optimization"] = json!({"stage": 3});
    } else if path.starts_with("fp16.") {
        root["fp16"] = json!({"enabled": true});
    }
    let mut at = &mut root;
    for name in path.split('.') {
        at = &mut at[name];
    }
    *at = value;
    root
}

/// A value that asks for something.
fn asking(key: &Key) -> Value {
    match key.shape {
        Shape::Bool => json!(key.default != "true"),
        Shape::Int(least) => json!(least.max(7)),
        Shape::Real => json!(0.5),
        Shape::Text => json!("x"),
        Shape::Word(words) => json!(words.iter().find(|w| **w != key.default && **w != "none").unwrap()),
        Shape::Any => json!({"x": 1}),
        Shape::Feature => json!({"enabled": true}),
    }
}

fn rows() -> impl Iterator<Item = (String, &'static Key)> {
    sections().flat_map(|s| {
        s.keys.iter().flat_map(move |key| {
            key.names
                .split(' ')
                .map(move |n| (if s.path.is_empty() { n.into() } else { format!("{}.{n}", s.path) }, key))
        })
    })
}

#[test]
fn keys_that_do_not_act_say_so() {
    let table = Table::pretrain();
    let base = "--lr 1e-3 --global-batch-size 4";
    let mut seen = 0;
    for (path, key) in rows().filter(|(_, key)| !matches!(key.fate, Fate::Acts(_))) {
        // DeepSpeed's schedules are judged by their type, before their parameters.
        let named = if path.starts_with("scheduler.params") { "scheduler.type" } else { &path };
        let more = if path.starts_with("optimizer.params") { "--global-batch-size 4" } else { base };
        let value = if path == "bfloat16" { json!({"enabled": true}) } else { asking(key) };
        let out = judge(&table, &file(&path, value), more);
        let context = format!("{path}: {:?}\n{}", out.violations, out.notices);
        let stopped = |severity| out.violations.iter().any(|v| v.severity == severity && v.what.contains(named));
        match key.fate {
            _ if named == "scheduler.type" => assert!(stopped(Severity::Planned), "{context}"),
            Fate::NoEffect(why) => {
                assert!(out.notices.lines().any(|l| l.contains(named) && l.contains(why)), "{context}");
                assert_eq!(out.violations, [], "{context}");
            }
            Fate::Ignored(why) => {
                assert!(out.notices.lines().any(|l| l.starts_with("WARNING") && l.contains(why)), "{context}");
            }
            Fate::Planned(..) => assert!(stopped(Severity::Planned), "{context}"),
            Fate::Refused(..) => assert!(stopped(Severity::Invalid), "{context}"),
            Fate::Old(_) | Fate::Acts(_) => assert!(out.notices.contains(&format!("{path} is")), "{context}"),
        }
        if !key.default.is_empty() && key.default != "null" {
            let default = serde_json::from_str(key.default).unwrap_or_else(|_| json!(key.default));
            let out = judge(&table, &file(&path, default), more);
            let text = format!("{:?}{}", out.violations, out.notices);
            assert!(
                !text.contains(&path) || named == "scheduler.type" || matches!(key.fate, Fate::Old(_)),
                "{path}: {text}"
            );
        }
        seen += 1;
    }
    assert!(seen > 230, "{seen}");
}

/// Path, value, and what becomes of which dest.
#[rustfmt::skip]
fn acting() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    vec![
        ("train_batch_size", json!(8), "global_batch_size", "8"),
        ("train_micro_batch_size_per_gpu", json!(2), "micro_batch_size", "2"),
        ("sequence_parallel_size", json!(1), "ds_sequence_parallel_size", "1"),
        ("gradient_clipping", json!(0.5), "clip_grad", "0.5"),
        ("communication_data_type", json!("bf16"), "grad_reduce_in_bf16", "True"),
        ("communication_data_type", json!("float32"), "grad_reduce_in_bf16", "False"),
        ("steps_per_print", json!(3), "log_interval", "3"),
        ("wall_clock_breakdown", json!(true), "timing_log_level", "1"),
        ("fp16.enabled", json!(true), "fp16", "True"),
        ("fp16.loss_scale", json!(128), "loss_scale", "128.0"),
        ("fp16.initial_scale_power", json!(4), "initial_loss_scale", "16.0"),
        ("fp16.loss_scale_window", json!(50), "loss_scale_window", "50.0"),
        ("fp16.hysteresis", json!(4), "hysteresis", "4"),
        ("fp16.min_loss_scale", json!(8), "min_loss_scale", "8.0"),
        ("bf16.enabled", json!(true), "bf16", "True"),
        ("optimizer.type", json!("SGD"), "optimizer", "sgd"),
        ("optimizer.params.lr", json!(0.25), "lr", "0.25"),
        ("optimizer.params.betas", json!([0.5, 0.75]), "adam_beta2", "0.75"),
        ("optimizer.params.eps", json!(1e-4), "adam_eps", "0.0001"),
        ("optimizer.params.weight_decay", json!("0.2"), "weight_decay", "0.2"),
        ("optimizer.params.momentum", json!(0.5), "sgd_momentum", "0.5"),
        ("optimizer.params.max_grad_norm", json!(0.5), "clip_grad", "0.5"),
        ("zero_optimization.stage", json!(3), "zero_stage", "3"),
        ("zero_optimization.overlap_comm", json!(true), "overlap_grad_reduce", "True"),
        ("zero_optimization.reduce_bucket_size", json!(5e6), "ddp_bucket_size", "5000000"),
        ("tensor_parallel.autotp_size", json!(2), "tensor_model_parallel_size", "2"),
        ("tensor_parallel.tp.tp_size", json!(4), "tensor_model_parallel_size", "4"),
        ("pipeline.stages", json!(2), "pipeline_model_parallel_size", "2"),
    ]
}

/// Keys that act with others or by refusing: `deepspeed.rs` has their tests.
const ELSEWHERE: &str = "gradient_accumulation_steps prescale_gradients gradient_predivide_factor gradient_allreduce_op \
    optimizer.params.adam_w_mode scheduler.type scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr \
    expert_parallel.enabled expert_parallel.autoep_size tensorboard.enabled tensorboard.output_path tensorboard.job_name \
    wandb.enabled wandb.project wandb.team";

#[test]
fn keys_that_act_set_their_flags() {
    let table = Table::pretrain();
    let mut covered: BTreeSet<String> = words(ELSEWHERE).into_iter().collect();
    for (path, value, dest, want) in acting() {
        let mut config = file(path, value);
        if config["optimizer"].is_null() {
            config["optimizer"] = json!({"type": "AdamW", "params": {"lr": 1e-3}});
        }
        let out = judge(&table, &config, "");
        let context = format!("{path}: {:?}\n{}", out.violations, out.notices);
        assert_eq!(out.violations, [], "{context}");
        let entry = out.args.entry(dest).unwrap();
        assert_eq!(entry.value.to_string(), want, "{context}");
        let Origin::DeepSpeed { path: name, line: 1, key } = &entry.origin else { panic!("{entry:?}") };
        assert_eq!((name.as_str(), key.as_str()), ("ds.json", path));
        covered.insert(path.to_string());
    }
    let acts: BTreeSet<String> =
        rows().filter(|(_, key)| matches!(key.fate, Fate::Acts(_))).map(|(path, _)| path).collect();
    assert_eq!(acts, covered);
}

/// Experts over ranks, and only when the section is on.
#[test]
fn expert_parallel_acts_when_enabled() {
    let table = Table::pretrain();
    for (on, want) in [(true, "2"), (false, "1")] {
        let config = json!({"train_micro_batch_size_per_gpu": 1, "expert_parallel": {"enabled": on, "autoep_size": 2}});
        let out = judge(&table, &config, "--lr 1e-3 --num-experts 2 --disable-bias-linear");
        assert_eq!(out.args.value("expert_model_parallel_size").to_string(), want);
    }
}
