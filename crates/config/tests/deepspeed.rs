//! `--deepspeed --deepspeed_config FILE`: what a file does to the arguments, and what it is refused for.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use std::time::Instant;

use common::{TINY, words};
use ferrotron_base::mt19937::Mt19937;
use ferrotron_config::settings::{LossScale, LrDecayStyle, Optimizer, ParamDtype};
use ferrotron_config::show::{notices_text, print_text};
use ferrotron_config::{Environment, Refused, Resolved, Table, parse, report, validate};

/// TINY without batch sizes and rate.
const OPEN: &str = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 \
    --train-iters 10 --lr-decay-style constant --split 90,10,0 --eval-iters 1 --eval-interval 5 --mock-data \
    --tokenizer-type NullTokenizer --vocab-size 100 --deepspeed --deepspeed_config ds.json";

fn run(table: &Table, file: &str, flags: &str, ranks: usize) -> Result<Resolved, Box<Refused>> {
    let parsed = parse(table, &words(flags), &|_| Ok(file.to_string()));
    validate(table, parsed.args, &Environment { world_size: ranks, ..Environment::default() }, parsed.violations)
}

fn taken(file: &str, more: &str, ranks: usize) -> Resolved {
    match run(&Table::pretrain(), file, &format!("{OPEN} {more}"), ranks) {
        Ok(resolved) => resolved,
        Err(refused) => panic!("{file}: {}", report("test", &refused.violations)),
    }
}

/// The violations of a file as one text; empty if it is taken.
fn faults(file: &str, more: &str, ranks: usize) -> String {
    let run = run(&Table::pretrain(), file, &format!("{OPEN} {more}"), ranks);
    run.err().map_or_else(String::new, |r| report("test", &r.violations))
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

fn row(id: usize) -> serde_json::Value {
    let line = include_str!("golden/ds_configs.jsonl").lines().nth(id).unwrap();
    serde_json::from_str::<serde_json::Value>(line).unwrap()["config"].take()
}

/// The file of the article's section 3.4: legal but for two sections that DeepSpeed does not have.
#[test]
fn the_first_file_of_the_article() {
    let mut config = row(0);
    has(&faults(&config.to_string(), "--lr 1e-3", 8), &["offload_param.device: \"cpu\"", "is not there yet"]);
    let zero = config["zero_optimization"].as_object_mut().unwrap();
    zero.retain(|name, _| !name.starts_with("offload"));
    let r = taken(&config.to_string(), "--lr 1e-3", 8);
    let c = &r.config;
    assert_eq!((c.train.micro_batch_size, c.train.global_batch_size), (4, 256));
    assert_eq!((c.train.params_dtype, c.parallel.zero_stage), (ParamDtype::Fp16, Some(3)));
    assert!(c.parallel.grad_reduce_in_bf16 && c.parallel.overlap_grad_reduce);
    assert_eq!(c.parallel.ddp_bucket_size, Some(500_000_000));
    let LossScale::Dynamic { initial, window, hysteresis, .. } = c.optim.loss_scale else { panic!("{:?}", c.optim) };
    assert_eq!((initial, window, hysteresis), (65536.0, 1000, 2));
    let notices = notices_text(&r.notices);
    has(
        &notices,
        &["tensor_parallel.enabled", "pipeline_parallel.enabled", "WARNING", "--pipeline-model-parallel-size"],
    );
}

/// The file of section 7.2: its batch sizes hold on one rank only.
#[test]
fn the_second_file_of_the_article() {
    let text = row(1).to_string();
    let fixes = ["train_batch_size 128; or gradient_accumulation_steps 2; or no train_batch_size"];
    // On eight ranks the micro-batch is 16 // 8 // 16 = 0; stated as 1, the product is 128.
    let alone = faults(&text, "--lr 1e-3", 8);
    has(&alone, &["world_size 16 != 0 * 16 * 8", "8 data-parallel ranks"]);
    has(&alone, &fixes);
    let stated = faults(&text, "--lr 1e-3 --micro-batch-size 1", 8);
    has(
        &stated,
        &["train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 16 != 1 * 16 * 8"],
    );
    has(&stated, &fixes);
    let mut config = row(1);
    config["zero_optimization"].as_object_mut().unwrap().retain(|name, _| !name.starts_with("offload"));
    let r = taken(&config.to_string(), "--lr 1e-3", 1);
    assert_eq!((r.config.train.micro_batch_size, r.config.train.global_batch_size), (1, 16));
    let notices = notices_text(&r.notices);
    has(
        &notices,
        &["comms_logger.profiler (not a key", "zero_optimization.sub_group_size", "auto is the command line's"],
    );
    has(&notices, &["activation_checkpointing.cpu_checkpointing", "recomputes nothing by itself"]);
}

#[test]
fn what_both_state_must_be_the_same() {
    let file = r#"{ // a comment
        "train_batch_size": 8, train_micro_batch_size_per_gpu: 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": true},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    }"#;
    let same = "--global-batch-size 8 --micro-batch-size 2 --clip-grad 1 --bf16 --zero-stage 1 --lr 3e-4 --adam-beta1 0.9 \
        --adam-beta2 0.95 --weight-decay 0.1 --optimizer adam";
    taken(file, same, 2);
    let text =
        faults(file, "--global-batch-size 16 --clip-grad 0.5 --fp16 --zero-stage 3 --lr 1e-4 --adam-beta2 0.999", 2);
    has(&text, &["has 1 mistake", "the command line and ds.json disagree"]);
    for (key, theirs) in [
        ("train_batch_size: 8 (ds.json:2)", "--global-batch-size 16"),
        ("gradient_clipping: 1.0 (ds.json:3)", "--clip-grad 0.5"),
        ("bf16.enabled: true (ds.json:4)", "--fp16"),
        ("zero_optimization.stage: 1 (ds.json:5)", "--zero-stage 3"),
        ("optimizer.params.lr: 0.0003 (ds.json:6)", "--lr 0.0001"),
        ("optimizer.params.betas: [0.9, 0.95] (ds.json:6)", "--adam-beta2 0.999"),
    ] {
        assert!(text.lines().any(|l| l.contains(key) && l.ends_with(theirs)), "{key} {theirs}\n{text}");
    }
    has(
        &faults("{zero_optimization: {stage: 0}}", "--micro-batch-size 1 --lr 1 --use-distributed-optimizer", 2),
        &["--use-distributed-optimizer, which is stage 1"],
    );
    has(
        &faults("{fp16: {enabled: true, loss_scale: 0}}", "--micro-batch-size 1 --lr 1 --loss-scale 128", 1),
        &["fp16.loss_scale: 0 (ds.json:1)", "--loss-scale 128.0"],
    );
}

/// What Megatron-DeepSpeed's and BigScience's scripts write into the file beside their flags.
#[test]
fn scripts_that_write_their_file_are_quiet() {
    let file = |precision: &str| {
        format!(
            "{{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"steps_per_print\": 10, \
             \"zero_optimization\": {{\"stage\": 1}}, \"gradient_clipping\": 1.0, \"prescale_gradients\": false, \
             \"wall_clock_breakdown\": false, \"curriculum_learning\": {{\"enabled\": false, \"params\": {{\"a\": 1}}}}, {precision}}}"
        )
    };
    let flags =
        "--global-batch-size 64 --micro-batch-size 2 --log-interval 10 --zero-stage 1 --clip-grad 1.0 --lr 1e-4";
    let fp16 = "\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"loss_scale_window\": 500, \"hysteresis\": 2, \
        \"min_loss_scale\": 1, \"initial_scale_power\": 11}";
    let r = taken(&file(fp16), &format!("{flags} --fp16"), 8);
    assert_eq!(r.config.optim.loss_scale, LossScale::Dynamic { initial: 2048.0, min: 1.0, window: 500, hysteresis: 2 });
    let bf16 = "\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": false}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}";
    let r = taken(&file(bf16), &format!("{flags} --bf16"), 8);
    assert_eq!(notices_text(&r.notices), "");
}

#[test]
fn a_silent_command_line_takes_the_file_and_says_so() {
    let file = "{\n \"train_micro_batch_size_per_gpu\": 2,\n \"gradient_accumulation_steps\": 3,\n \"gradient_clipping\": 0.5,\n \
        \"steps_per_print\": 7, \"wall_clock_breakdown\": true,\n \"tensorboard\": {\"enabled\": true, \"output_path\": \"o\", \"job_name\": \"j\"},\n \
        \"wandb\": {\"enabled\": true, \"project\": \"p\", \"team\": \"t\"},\n \
        \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.002}}\n}";
    let r = taken(file, "", 2);
    let c = &r.config;
    assert_eq!((c.train.micro_batch_size, c.train.global_batch_size), (2, 12));
    assert_eq!((c.optim.clip_grad, c.optim.lr.lr), (0.5, 0.002));
    assert_eq!((c.log.interval, c.log.timing_level), (7, 1));
    assert_eq!(c.log.tensorboard_dir.as_deref(), Some(std::path::Path::new("o/j")));
    assert_eq!(c.log.wandb.as_ref().map(|w| (w.project.as_str(), w.entity.as_str())), Some(("p", "t")));
    // What the section leaves open is DeepSpeed's default, not Megatron's.
    assert_eq!(c.optim.optimizer, Optimizer::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 });
    assert_eq!(c.optim.weight_decay.start, 0.0);
    let text = print_text(&r.args);
    has(
        &text,
        &[
            "clip_grad = 0.5  (ds.json:4, gradient_clipping)",
            "micro_batch_size = 2  (ds.json:2, train_micro_batch_size_per_gpu)",
            "global_batch_size = 12  (derived: batch sizes of ds.json)",
            "weight_decay = 0.0  (derived: DeepSpeed's default of optimizer.params.weight_decay)",
        ],
    );
    // The command line's own logs hold.
    let r = taken(file, "--log-interval 1 --timing-log-level 0 --tensorboard-dir mine --weight-decay 0.3", 2);
    assert_eq!((r.config.log.interval, r.config.log.timing_level), (1, 0));
    assert_eq!(r.config.optim.weight_decay.start, 0.3);
}

#[test]
fn auto_is_the_command_lines() {
    let file = r#"{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "fp16": {"enabled": "auto", "initial_scale_power": 12}, "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "eps": "auto", "betas": "auto"}},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"}}"#;
    let r =
        taken(file, "--micro-batch-size 3 --global-batch-size 12 --clip-grad 2 --lr 0.25 --fp16 --weight-decay 0.2", 2);
    let c = &r.config;
    assert_eq!((c.train.micro_batch_size, c.train.global_batch_size), (3, 12));
    assert_eq!((c.optim.clip_grad, c.optim.lr.lr, c.optim.weight_decay.start), (2.0, 0.25, 0.2));
    assert_eq!((c.train.params_dtype, c.parallel.ddp_bucket_size), (ParamDtype::Fp16, None));
    assert!(matches!(c.optim.loss_scale, LossScale::Dynamic { initial: 4096.0, .. }), "{:?}", c.optim.loss_scale);
    has(&faults(file, "--micro-batch-size 3", 2), &["required, but not given", "--lr"]);
}

/// deepspeed/runtime/lr_schedules.py in f64: the rate of update k, whose step is k - 1.
fn warmup_lr(low: f64, high: f64, n: i64, linear: bool, k: i64) -> f64 {
    let (t, n) = (k - 1, n.max(2));
    let g = match t {
        t if t < 0 => 0.0,
        t if t >= n => 1.0,
        t if linear => t as f64 / n as f64,
        t => (1.0 / (n as f64).ln()) * ((t + 1) as f64).ln(),
    };
    low + (high - low) * g
}

#[test]
fn a_schedule_acts_where_it_equals_megatrons() {
    let base = "\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.5}}";
    for kind in ["WarmupLR", "WarmupDecayLR"] {
        let file = format!(
            "{{{base}, \"scheduler\": {{\"type\": \"{kind}\", \"params\": {{\"warmup_min_lr\": 0.003, \"warmup_max_lr\": 3e-3, \
             \"warmup_num_steps\": 5, \"total_num_steps\": 9}}}}}}"
        );
        let r = taken(&file, "", 1);
        let lr = &r.config.optim.lr;
        assert_eq!((lr.decay_style, lr.lr), (LrDecayStyle::Constant, 0.003));
        for (k, linear) in (0..20).flat_map(|k| [(k, false), (k, true)]) {
            assert_eq!(warmup_lr(0.003, 0.003, 5, linear, k), lr.lr);
        }
        // Megatron's own warm-up over n steps, init + (lr - init) k / n, meets neither shape.
        for linear in [false, true] {
            assert_eq!((warmup_lr(0.0, 1.0, 5, linear, 0), warmup_lr(0.0, 1.0, 5, linear, 1)), (0.0, 0.0));
        }
        let rises = faults(&file.replace("0.003", "0"), "", 1);
        has(&rises, &["scheduler.type", "two updates at the lowest rate", "--lr-warmup-iters"]);
    }
    let cosine = format!("{{{base}, scheduler: {{type: \"WarmupCosineLR\", params: {{total_num_steps: 9}}}}}}");
    has(&faults(&cosine, "", 1), &["WarmupCosineLR", "not there yet"]);
}

#[test]
fn optimizers() {
    let file = |text: &str| format!("{{train_micro_batch_size_per_gpu: 1, optimizer: {text}}}");
    let sgd = taken(&file("{type: \"SGD\", params: {lr: 0.1}}"), "", 1);
    assert_eq!(sgd.config.optim.optimizer, Optimizer::Sgd { momentum: 0.0 });
    for (text, parts) in [
        ("{type: \"OneBitAdam\", params: {lr: 0.1, freeze_step: 4}}", &["1-bit"][..]),
        ("{type: \"Lion\", params: {lr: 0.1}}", &["optimizer.type: \"Lion\"", "not there yet"]),
        ("{type: \"Adam\", params: {lr: 0.1, adam_w_mode: false, weight_decay: 0.1}}", &["adam_w_mode: false"]),
        (
            "{type: \"Adam\", params: {lr: 0.1, weigth_decay: 0.1}}",
            &["unknown key optimizer.params.weigth_decay", "did you mean weight_decay?"],
        ),
        ("{type: \"Adam\", params: {lr: 0.1, betas: [0.9]}}", &["optimizer.params.betas is [0.9]"]),
        ("{type: \"SGD\", params: {lr: 0.1, nesterov: true}}", &["nesterov: true", "is not supported"]),
    ] {
        has(&faults(&file(text), "", 1), parts);
    }
    // Without a weight decay both modes of Adam are the same.
    taken(&file("{type: \"Adam\", params: {lr: 0.1, adam_w_mode: false}}"), "", 1);
    let clipped = taken(&file("{type: \"Adam\", params: {lr: 0.1, max_grad_norm: 0.25}}"), "", 1);
    assert_eq!(clipped.config.optim.clip_grad, 0.25);
}

#[test]
fn mistakes_say_where_and_what_to_do() {
    for (file, parts) in [
        (
            "{\n  fp16: {enabled: true,\n    loss_scael: 0}\n}",
            &["unknown key fp16.loss_scael (ds.json:3); did you mean loss_scale?"][..],
        ),
        ("{\"train_batch_size\": 4,\n\"train_batch_size\": 8}", &["ds.json, line 2, column 1", "stated twice"]),
        ("{train_batch_size: 0.5}", &["train_batch_size is 0.5 (ds.json:1, column 20)", "a whole number"]),
        ("{fp16: {enabled: true, loss_scale: -1}}", &["fp16.loss_scale is -1"]),
        ("{fp16: {enabled: true, initial_scale_power: 400}}", &["no power of two"]),
        ("{fp16: 3}", &["fp16 is 3 (ds.json:1, column 8): no section"]),
        ("{fp16: {enabled: true}, bf16: {enabled: true}}", &["exclude each other"]),
        ("{zero_optimization: {stage: 4}}", &["--zero-stage 4 does not exist", "zero_optimization.stage of ds.json:1"]),
        ("{prescale_gradients: true, zero_optimization: {stage: 1}}", &["does not go with ZeRO stage 1"]),
        ("{gradient_allreduce_op: \"sum\", zero_optimization: {stage: 3}}", &["does not go with ZeRO stage 3"]),
        ("{gradient_allreduce_op: \"sum\"}", &["are not there yet"]),
        ("{zero_optimization: {stage: 2, offload_param: {device: \"cpu\"}}}", &["needs ZeRO stage 3, not 2"]),
        ("{zero_optimization: {stage: 3, offload_param: {device: \"nvme\"}}}", &["nvme_path is not stated"]),
        (
            "{zero_optimization: {cpu_offload: true, offload_optimizer: {device: \"cpu\"}}}",
            &["the old name of zero_optimization.offload_optimizer.device"],
        ),
        ("{elasticity: {enabled: true}}", &["elastic batch sizes"]),
        (
            "{zero_optimization: {stage: 3, zero_hpz_partition_size: 8}}",
            &["zero_hpz_partition_size: 8", "not there yet"],
        ),
        ("{amp: {enabled: true}}", &["Apex AMP"]),
    ] {
        has(&faults(file, "--micro-batch-size 1 --lr 1e-3", 2), parts);
    }
    has(
        &faults("{gradient_accumulation_steps: 4}", "--lr 1e-3", 2),
        &["either train_batch_size or train_micro_batch_size_per_gpu needs"],
    );
    // The command line's batch sizes complete the triangle.
    let r = taken("{gradient_accumulation_steps: 4}", "--lr 1e-3 --micro-batch-size 2", 2);
    assert_eq!(r.config.train.global_batch_size, 16);
    has(
        &faults("{gradient_accumulation_steps: 4}", "--lr 1e-3 --micro-batch-size 2 --global-batch-size 8", 2),
        &["8 != 2 * 4 * 2"],
    );
}

#[test]
fn what_is_off_is_silent_and_what_is_unknown_is_told() {
    let quiet = "{train_micro_batch_size_per_gpu: 1, elasticity: {enabled: false}, autotuning: {enabled: false}, \
        compression_training: {weight_quantization: {shared_parameters: {enabled: false}, different_groups: {a: {params: {bits: 8}}}}}, \
        curriculum_learning: {enabled: false}, zero_optimization: {stage: 0, contiguous_gradients: true, reduce_scatter: true}, \
        flops_profiler: {enabled: false}, data_efficiency: {enabled: false, data_routing: {enabled: true}}}";
    let r = taken(quiet, "--lr 1e-3", 2);
    assert_eq!(notices_text(&r.notices), "");
    let r = taken(
        "{train_micro_batch_size_per_gpu: 1, gradient_cliping: 1, hidden-size: 4, autotuning: {enabled: true}}",
        "--lr 1",
        1,
    );
    has(
        &notices_text(&r.notices),
        &["unknown keys", "gradient_cliping (did you mean gradient_clipping?), hidden-size", "autotuning (there is no"],
    );
    let old =
        taken("{train_micro_batch_size_per_gpu: 1, bfloat16: {enabled: true}, zero_optimization: true}", "--lr 1", 2);
    assert_eq!((old.config.train.params_dtype, old.config.parallel.zero_stage), (ParamDtype::Bf16, Some(1)));
    has(&notices_text(&old.notices), &["bfloat16 is bf16 today", "zero_optimization.stage: 1"]);
}

#[test]
fn the_file_counts_with_deepspeed_only_and_may_be_base64() {
    let table = Table::pretrain();
    let none = |_: &std::path::Path| Err(std::io::Error::other("no such file"));
    let line = |more: &str| words(&format!("{TINY} {more}"));
    let run = |more: &str| {
        let parsed = parse(&table, &line(more), &none);
        validate(&table, parsed.args, &Environment::default(), parsed.violations)
    };
    let r = run("--deepspeed_config ds.json").unwrap();
    has(&notices_text(&r.notices), &["--deepspeed_config ds.json is not read: without --deepspeed"]);
    let refused = run("--deepspeed --deepspeed-config ds.json").unwrap_err();
    has(&report("test", &refused.violations), &["--deepspeed-config ds.json: no such file"]);
    // What only the file states is not called missing when it cannot be read.
    let open = parse(&table, &words(OPEN), &none);
    let refused = validate(&table, open.args, &Environment::default(), open.violations).unwrap_err();
    assert_eq!(refused.violations.len(), 1, "{:?}", refused.violations);
    let refused = run("--deepspeed ds.json").unwrap_err();
    has(&report("test", &refused.violations), &["--deepspeed takes no value; its file is named by --deepspeed_config"]);
    // {"gradient_clipping": 0.25}
    for word in ["eyJncmFkaWVudF9jbGlwcGluZyI6IDAuMjV9", "eyJncmFkaWVudF9jbGlwcGluZyI6IDAuMjV9Cg=="] {
        let r = run(&format!("--deepspeed --deepspeed_config {word}")).unwrap();
        assert_eq!(r.config.optim.clip_grad, 0.25);
    }
    let both = run("--deepspeed --deepspeed_config a --deepscale_config b").unwrap_err();
    has(&report("test", &both.violations), &["both name the file"]);
}

/// Two thousand files cut and shuffled: an answer each time, and soon.
#[test]
fn broken_files_never_panic() {
    let table = Table::pretrain();
    let texts: Vec<Vec<u8>> = include_str!("golden/ds_configs.jsonl").lines().map(|l| l.as_bytes().to_vec()).collect();
    let mut random = Mt19937::new(11);
    let began = Instant::now();
    let mut refused = 0;
    for round in 0..2000 {
        let mut below = |n: usize| random.interval(n as u64 - 1) as usize;
        let mut bytes = texts[below(texts.len())].clone();
        let start = String::from_utf8_lossy(&bytes).find("\"config\": ").unwrap() + 10;
        bytes = bytes[start..bytes.len() - 1].to_vec();
        for _ in 0..1 + below(4) {
            let (a, b) = (below(bytes.len()), below(bytes.len()));
            match round % 4 {
                0 => bytes.swap(a, b),
                1 => bytes[a] = b"{}[]:,\"'#/\\\n0-e\xc3"[below(16)],
                2 => bytes.truncate(a.max(1)),
                _ => {
                    let piece = bytes[a.min(b)..a.max(b).min(a.min(b) + 40)].to_vec();
                    bytes.splice(a..a, piece);
                }
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        refused += usize::from(is_refused(&table, &text));
    }
    assert!(refused > 1000, "{refused}");
    assert!(began.elapsed().as_secs() < 8, "{:?}", began.elapsed());
}

/// A file is refused with words, or its values can be told.
fn is_refused(table: &Table, text: &str) -> bool {
    match run(table, text, &format!("{OPEN} --lr 1e-3"), 2) {
        Ok(r) => print_text(&r.args).is_empty(),
        Err(r) => !report("test", &r.violations).is_empty(),
    }
}
