//! What is completed, adjusted or noticed, and what the configuration then holds.

mod common;

use common::{TINY, tiny, words};
use ferrotron_config::settings::*;
use ferrotron_config::show::{arguments_dump, help, notices_text, print_json, print_text, startup_lines};
use ferrotron_config::{Origin, Table, exit_code, parse};

#[test]
fn defaults_follow_megatron() {
    let r = tiny("");
    let m = &r.config.model;
    assert_eq!((m.ffn_hidden_size, m.kv_channels, m.num_query_groups, m.max_position_embeddings), (256, 16, 4, 32));
    assert_eq!((m.norm.kind, m.norm.epsilon, m.position), (NormKind::LayerNorm, 1e-5, PositionKind::LearnedAbsolute));
    assert_eq!(
        (m.activation, m.add_bias_linear, m.add_qkv_bias, m.tie_embeddings),
        (Activation::GeluTanh, true, true, true)
    );
    assert_eq!((m.hidden_dropout, m.attention_dropout, m.softmax_scale), (0.1, 0.1, 0.25));
    assert!(!m.embedding_layernorm && tiny("--embed-layernorm").config.model.embedding_layernorm);
    assert!((m.output_init_method_std - 0.02 / 8f64.sqrt()).abs() < 1e-18);
    let o = &r.config.optim;
    assert_eq!(o.optimizer, Optimizer::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 });
    assert_eq!(
        (o.weight_decay.start, o.weight_decay.end, o.clip_grad, o.loss_scale),
        (0.01, 0.01, 1.0, LossScale::None)
    );
    assert_eq!((o.lr.decay, o.lr.warmup, o.lr.decay_style), (10, Warmup::Count(0), LrDecayStyle::Constant));
    let t = &r.config.train;
    assert_eq!(
        (t.seed, t.params_dtype, &t.recompute, t.check_for_nan),
        (1234, ParamDtype::Fp32, &Recompute::None, true)
    );
    assert_eq!((t.length, &t.batch_plan), (RunLength::Iterations(10), &BatchPlan::Constant));
    assert_eq!(r.config.data.dataloader, DataloaderKind::Single);
    assert_eq!((r.config.parallel.dp, r.config.parallel.virtual_stages), (1, 1));
    assert_eq!((r.config.eval.iters, r.config.eval.interval, r.config.eval.global_batch_size), (1, Some(5), 4));
    assert_eq!(notices_text(&r.notices), "");
}

#[test]
fn activations() {
    for (flags, want) in [
        ("--no-bias-gelu-fusion", Activation::Gelu),
        ("--disable-bias-linear", Activation::Gelu),
        ("--openai-gelu --disable-bias-linear", Activation::GeluTanh),
        ("--gelu-tanh --disable-bias-linear", Activation::GeluTanh),
        ("--swiglu", Activation::Swiglu),
        ("--squared-relu", Activation::SquaredRelu),
        ("--geglu", Activation::Geglu),
        ("--geglu --gelu-tanh", Activation::GegluTanh),
    ] {
        assert_eq!(tiny(flags).config.model.activation, want, "{flags}");
    }
    let swiglu = tiny("--swiglu --hidden-size 4096 --num-attention-heads 32");
    assert_eq!(swiglu.config.model.ffn_hidden_size, 10880, "int(8 x 4096 / 3 / 64) x 64");
}

#[test]
fn positions_and_rope_scaling() {
    let rope = |flags: &str| tiny(&format!("--position-embedding-type rope {flags}")).config.model.rope.unwrap();
    assert_eq!(
        rope(""),
        RopeConfig {
            base: 10000.0,
            percent: 1.0,
            interleaved: false,
            seq_len_interpolation_factor: None,
            scaling: RopeScaling::None
        }
    );
    let r = rope("--rotary-base 1e6 --rotary-percent 0.5 --rotary-interleaved --rotary-seq-len-interpolation-factor 2");
    assert_eq!((r.base, r.percent, r.interleaved, r.seq_len_interpolation_factor), (1e6, 0.5, true, Some(2.0)));
    assert_eq!(
        rope("--use-rope-scaling").scaling,
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 8192.0 }
    );
    let yarn = tiny(
        "--position-embedding-type yarn --rotary-scaling-factor 4 --yarn-original-max-position-embeddings 16 --mscale 0.5",
    );
    assert_eq!(
        yarn.config.model.rope.unwrap().scaling,
        RopeScaling::Yarn {
            factor: 4.0,
            original_max_position: 16,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 0.5,
            mscale_all_dim: 0.0,
            round_correction_range: true
        }
    );
    assert_eq!(tiny("--use-rotary-position-embeddings").config.model.position, PositionKind::Rope);
    assert_eq!(rope("--rotary-position-embeddings-theta 500").base, 500.0);
    assert_eq!(tiny("--position-embedding-type none").config.model.position, PositionKind::None);
}

#[test]
fn heads_and_groups() {
    let shape = |flags: &str| {
        let m = tiny(flags).config.model;
        (m.num_query_groups, m.kv_channels)
    };
    assert_eq!(shape("--group-query-attention --num-query-groups 2"), (2, 16));
    assert_eq!(shape("--group-query-attention"), (1, 16));
    assert_eq!(shape("--num-key-value-heads 2"), (2, 16));
    assert_eq!(shape("--kv-channels 24 --hidden-size 70"), (4, 24), "a free head size lifts hidden % heads");
    let ignored = tiny("--num-query-groups 2");
    assert_eq!(ignored.config.model.num_query_groups, 4);
    assert!(
        notices_text(&ignored.notices)
            .contains("WARNING: --num-query-groups is ignored without --group-query-attention")
    );
    assert!(notices_text(&tiny("--num-attention-heads 64").notices).contains("head size 1 is unusual"));
    let window = tiny("--window-size 127,0").config.model.sliding_window;
    assert_eq!(window, Some(SlidingWindow { left: Some(127), right: Some(0) }));
}

#[test]
fn padded_vocabulary() {
    let v = |flags: &str| tiny(flags).config.model.vocab;
    assert_eq!(v("").padded(50257, 1), Ok(50304));
    assert_eq!(v("").padded(50257, 8), Ok(51200));
    assert_eq!(v("").padded(32000, 1), Ok(32000));
    assert_eq!(v("").padded(151_669, 4), Ok(152_064));
    assert_eq!(v("").padded(0, 2), Ok(0));
    assert_eq!(v("--make-vocab-size-divisible-by 1").padded(50257, 2), Ok(50258));
    assert_eq!(v("--no-pad-vocab-size").padded(50257, 1), Ok(50257));
    assert_eq!(v("--padded-vocab-size 60000").padded(50257, 2), Ok(60000));
    assert_eq!(v("--pad-vocab-size-to 60000").padded(50257, 2), Ok(60000));
    assert!(v("--padded-vocab-size 100").padded(101, 1).unwrap_err().contains("100 is below"));
    assert!(v("--no-pad-vocab-size").padded(50257, 2).unwrap_err().contains("do not divide"));
    assert!(v("").padded(usize::MAX, 1).is_err());
}

#[test]
fn batches_and_lengths() {
    let none = common::run(&words(&TINY.replace("--global-batch-size 4", "--micro-batch-size 3")), 1).unwrap();
    assert_eq!((none.config.train.micro_batch_size, none.config.train.global_batch_size), (3, 3));
    let samples = TINY.replace("--train-iters 10", "--train-samples 100");
    let ramp = common::run(&words(&format!("{samples} --global-batch-size 8 --rampup-batch-size 2 2 60")), 1).unwrap();
    assert_eq!(ramp.config.train.batch_plan, BatchPlan::Rampup { start: 2, increment: 2, samples: 60 });
    assert_eq!((ramp.config.train.length, ramp.config.optim.lr.decay), (RunLength::Samples(100), 100));
    let iterations = tiny("--rampup-batch-size 2 2 60");
    assert!(notices_text(&iterations.notices).contains("the run sees fewer samples"));
    let constant = common::run(&words(&samples), 1).unwrap();
    assert_eq!(constant.args.int("train_iters"), Some(25));
    let steps = words(&TINY.replace("--global-batch-size 4", "--step-batch-size-schedule")).into_iter().flat_map(|w| {
        let schedule = (w == "--step-batch-size-schedule").then(|| "0:4 1K:8".to_string());
        std::iter::once(w).chain(schedule)
    });
    let steps = common::run(&steps.collect::<Vec<_>>(), 1).unwrap();
    assert_eq!(steps.config.train.global_batch_size, 8);
    let at = |from_samples, global_batch_size| BatchStep { from_samples, global_batch_size };
    assert_eq!(steps.config.train.batch_plan, BatchPlan::Steps(vec![at(0, 4), at(31, 8)]), "1000 tokens / 32");
    assert!(tiny("--micro-batch-size 3 --decrease-batch-size-if-needed").config.train.decrease_batch_size_if_needed);
}

#[test]
fn precision_and_loss_scale() {
    let fp16 = tiny("--fp16");
    assert_eq!(fp16.config.train.params_dtype, ParamDtype::Fp16);
    assert!(!fp16.config.train.check_for_nan);
    assert_eq!(
        fp16.config.optim.loss_scale,
        LossScale::Dynamic { initial: 4294967296.0, min: 1.0, window: 1000, hysteresis: 2 }
    );
    assert_eq!(tiny("--fp16 --loss-scale 128").config.optim.loss_scale, LossScale::Constant(128.0));
    let bf16 = tiny("--bf16");
    assert_eq!(
        (bf16.config.train.params_dtype.torch_name(), bf16.config.optim.loss_scale),
        ("torch.bfloat16", LossScale::None)
    );
}

#[test]
fn recomputation() {
    let r = |flags: &str| tiny(flags).config.train.recompute;
    assert_eq!(r("--recompute-activations"), Recompute::Selective(vec![RecomputeModule::CoreAttn]));
    assert_eq!(
        r("--recompute-granularity selective --recompute-modules mlp layernorm mlp"),
        Recompute::Selective(vec![RecomputeModule::Mlp, RecomputeModule::Layernorm])
    );
    let full = |method, num_layers| Recompute::Full { method, num_layers };
    assert_eq!(
        r("--recompute-granularity full --recompute-method block --recompute-num-layers 2"),
        full(RecomputeMethod::Block, 2)
    );
    assert_eq!(r("--recompute-granularity full --recompute-method block --recompute-num-layers 0"), Recompute::None);
    assert_eq!(r("--activations-checkpoint-method uniform"), full(RecomputeMethod::Uniform, 1));
}

/// Scores of all experts divided by the sum of the chosen ones are a softmax over the chosen: Megatron's without the flag.
#[test]
fn weights_of_experts_that_sum_to_one() {
    let pre_softmax = |flags: &str| {
        let flags = format!("--num-experts 4 --disable-bias-linear {flags}");
        tiny(&flags).config.model.moe.map(|e| e.router_pre_softmax)
    };
    assert_eq!(pre_softmax("--norm-topk-prob"), Some(false));
    assert_eq!(pre_softmax("--moe-router-pre-softmax"), Some(true));
    assert_eq!(pre_softmax("--moe-router-pre-softmax --norm-topk-prob"), Some(false));
}

#[test]
fn checkpoints_evaluation_and_schedules() {
    let c = tiny("--save s --load s --finetune --no-save-rng").config.checkpoint;
    assert_eq!(
        (c.save_interval, c.load_optim, c.load_rng, c.save_optim, c.save_rng),
        (None, false, false, true, false)
    );
    assert!(notices_text(&tiny("--save s").notices).contains("saved at its end only"));
    let e = tiny("--eval-interval 0 --eval-iters 0").config.eval;
    assert_eq!((e.interval, e.iters), (None, 0));
    let lr = tiny("--lr-decay-style WSD --lr-wsd-decay-iters 4 --lr-warmup-iters 7 --lr-wsd-decay-style minus_sqrt");
    assert_eq!(lr.config.optim.lr.wsd, Some(WsdDecay { length: 4, style: WsdDecayStyle::MinusSqrt }));
    assert!(notices_text(&lr.notices).contains("annealing begins at 6"));
    let exit = tiny("--exit-interval 0 --exit-duration-in-mins 5 --exit-signal-handler --exit-signal SIGUSR1")
        .config
        .train
        .exit;
    assert_eq!(
        (exit.interval, exit.duration_in_mins, exit.signal_handler, exit.signal),
        (None, Some(5), true, ExitSignal::Usr1)
    );
    let wd = tiny("--weight-decay-incr-style cosine --start-weight-decay 0.1 --end-weight-decay 0.2")
        .config
        .optim
        .weight_decay;
    assert_eq!((wd.start, wd.end, wd.incr_style), (0.1, 0.2, WdIncrStyle::Cosine));
    assert_eq!(tiny("--override-lr-scheduler").config.optim.scheduler_on_load, SchedulerOnLoad::CommandLine);
    let skip = common::run(&words(&TINY.replace("--train-iters 10 --lr 1e-3", "--skip-train")), 1).unwrap();
    assert!(skip.config.train.skip_train && !skip.config.checkpoint.load_optim);
}

#[test]
fn data_sources() {
    let real = TINY.replace("--mock-data", "").replace("--split 90,10,0", "");
    let source = |flags: &str| common::run(&words(&format!("{real} {flags}")), 1).map(|r| r.config.data);
    let item = |prefix: &str, weight| BlendItem { prefix: prefix.into(), weight };
    assert_eq!(source("--data-path a b").unwrap().source, DataSource::Blend(vec![item("a", None), item("b", None)]));
    let weighted = source("--data-path 0.3 a 0.7 b").unwrap();
    assert_eq!(weighted.source, DataSource::Blend(vec![item("a", Some(0.3)), item("b", Some(0.7))]));
    assert_eq!(weighted.split, Split { text: "969, 30, 1".into(), weights: [969.0, 30.0, 1.0] });
    for (flags, part) in [
        ("--data-path a 1 b", "expected a weight at position 1, got a"),
        ("--data-path 1 a b", "expected a weight at position 3, got b"),
        ("--data-path 1 a 2", "expected a path at position 4, got the end"),
        ("--data-path -1 a 1 b", "weight -1 at position 1"),
        ("--data-path 1 a nan b", "weight NaN at position 3"),
        ("--data-path 0 a 0 b", "all weights are 0"),
    ] {
        let text = ferrotron_config::report("test", &source(flags).unwrap_err().violations);
        assert!(text.contains(part), "{flags}: {text}");
    }
    let per_split = source("--train-data-path 1 a --valid-data-path b").unwrap().source;
    assert_eq!(
        per_split,
        DataSource::PerSplit { train: vec![item("a", Some(1.0))], valid: vec![item("b", None)], test: vec![] }
    );
    assert_eq!(source("--data-args-path f").unwrap().source, DataSource::BlendFile("f".into()));
    let files = TINY.replace("--tokenizer-type NullTokenizer --vocab-size 100", "--vocab-file v --merge-file m");
    assert_eq!(common::run(&words(&files), 1).unwrap().config.data.tokenizer.kind, TokenizerKind::Gpt2Bpe);
    let qwen = tiny("--tokenizer-type Qwen3Tokenizer --tokenizer-model /data/qwen3");
    assert_eq!(qwen.config.data.tokenizer.kind, TokenizerKind::HuggingFace);
}

#[test]
fn flags_without_effect_are_listed_once_by_reason() {
    let text = notices_text(
        &tiny(
            "--use-flash-attn --transformer-impl local --sequence-parallel --use-distributed-optimizer --num-workers 8",
        )
        .notices,
    );
    assert!(text.contains("no effect: --transformer-impl --use-flash-attn (chooses a kernel"), "{text}");
    assert!(text.contains("--sequence-parallel has no effect at tensor parallel size 1: disabled"), "{text}");
    assert!(text.contains("--use-distributed-optimizer (one data-parallel rank"), "{text}");
    assert!(!tiny("--sequence-parallel").args.flag("sequence_parallel"));
}

#[test]
fn the_arguments_dump_is_megatrons() {
    let table = Table::pretrain();
    let dump = arguments_dump(&table, &tiny("--bf16 --adam-eps 1e-5").args);
    let lines: Vec<&str> = dump.lines().collect();
    assert_eq!(lines[0], "------------------------ arguments ------------------------");
    assert_eq!(*lines.last().unwrap(), "-------------------- end of arguments ---------------------");
    for want in [
        "  adam_eps ........................................ 1e-05",
        "  bf16 ............................................ True",
        "  cp_comm_type .................................... ['p2p']",
        "  global_batch_size ............................... 4",
        "  initial_loss_scale .............................. 4294967296",
        "  params_dtype .................................... torch.bfloat16",
        "  save ............................................ None",
    ] {
        assert!(lines.contains(&want), "{want:?} is not in:\n{dump}");
    }
    let body = &lines[1..lines.len() - 1];
    assert!(body.len() > 850 && body.iter().all(|l| l.starts_with("  ")));
    assert!(body.is_sorted_by_key(|l| l.to_lowercase()));
}

#[test]
fn origins_are_shown() {
    let r = tiny("@configs/gpt2-124m.args --seq-length 32");
    assert_eq!(
        r.args.entry("num_layers").unwrap().origin,
        Origin::File { path: "configs/gpt2-124m.args".into(), line: 2 }
    );
    let json: serde_json::Value = serde_json::from_str(&print_json(&r.args, &r.notices, Some(&r.config))).unwrap();
    assert_eq!(json["args"]["num_layers"]["value"], 12);
    assert_eq!(json["args"]["num_layers"]["origin"]["file"]["line"], 2);
    assert_eq!(json["args"]["ffn_hidden_size"]["origin"]["derived"], "4 x hidden");
    assert_eq!(json["args"]["seq_length"]["origin"], "flag");
    assert_eq!(json["args"]["adam_beta1"]["origin"], "default");
    assert_eq!(json["config"]["model"]["norm"]["kind"], "layer_norm");
    let text = print_text(&r.args);
    assert!(text.contains("hidden_size = 768  (configs/gpt2-124m.args:3)") && !text.contains("adam_beta1"), "{text}");
}

#[test]
fn old_activation_checkpointing_is_full_recomputation() {
    let full = |num_layers| Recompute::Full { method: RecomputeMethod::Uniform, num_layers };
    let r = tiny("--checkpoint-activations");
    assert_eq!(r.config.train.recompute, full(1));
    let notes = notices_text(&r.notices);
    assert!(
        notes.contains("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
        "{notes}"
    );
    assert_eq!(tiny("--checkpoint-activations --checkpoint-num-layers 2").config.train.recompute, full(2));
    let modern = tiny("--checkpoint-activations --recompute-granularity selective");
    assert_eq!(
        modern.config.train.recompute,
        Recompute::Selective(vec![RecomputeModule::CoreAttn]),
        "the modern flag wins"
    );
}

#[test]
fn stages_that_forks_state_are_not_refused() {
    for flags in [
        "--pipeline-model-parallel-size 4 --num-layer-list 1,1,2,0",
        "--num-layers 5 --pipeline-model-parallel-size 4 --deepspeed",
        "--num-layers 5 --pipeline-model-parallel-size 4 --pp-partition-method type:transformer",
        "--ds-sequence-parallel-size 2 --global-batch-size 2",
        "--num-experts 4 --multi-latent-attention --position-embedding-type rope --kv-channels 7",
        "--lr-decay-style WSD --lr-wsd-decay-iters 0",
    ] {
        let argv = words(&format!("{TINY} {flags}"));
        let found = common::severities(&argv, 4);
        assert!(
            found.iter().all(|s| *s == ferrotron_config::Severity::Planned),
            "{flags}: {}",
            common::faults(&argv, 4)
        );
    }
}

#[test]
fn shell_variables_that_were_not_expanded_are_named() {
    for (flags, part) in [
        ("--lr $LR", "$LR is a shell variable that was not expanded"),
        ("--train-iters=${ITERS:-5}", "${ITERS:-5} is a shell variable"),
        ("--bf16 $GPT_ARGS", "unrecognised: $GPT_ARGS"),
        ("--bf16 ${GPT_ARGS[@]}", "${GPT_ARGS[@]} is a shell variable"),
    ] {
        let text = common::faults(&words(&format!("{TINY} {flags}")), 1);
        assert!(text.contains(part), "{flags}: {text}");
    }
    let notes = notices_text(&tiny("--tensorboard-dir /logs/$NAME/tb").notices);
    assert!(
        notes.contains("--tensorboard-dir /logs/$NAME/tb: $NAME is a shell variable that was not expanded"),
        "{notes}"
    );
    assert_eq!(notices_text(&tiny("--tensorboard-dir /logs/us$").notices), "");
}

#[test]
fn where_metrics_go() {
    let log = |flags: &str| tiny(flags).config.log;
    let none = log("");
    assert_eq!(
        (&none.report, none.prometheus_port, none.console, &none.wandb, &none.profile),
        (&None, None, true, &None, &None)
    );
    assert_eq!(log("--tensorboard-dir tb").report, Some("tb/report.html".into()));
    assert_eq!(log("--tensorboard-dir tb --report none").report, None);
    assert_eq!(log("--report r.html --prometheus-port 9400 --console off").prometheus_port, Some(9400));
    let wandb = |flags: &str| log(&format!("--wandb-project p --wandb-exp-name n {flags}")).wandb.unwrap().folder;
    assert_eq!(wandb("--save s --save-interval 5"), std::path::Path::new("s/wandb"));
    assert_eq!(wandb("--wandb-save-dir w --save s --save-interval 5"), std::path::Path::new("w"));
    assert_eq!((wandb("--tensorboard-dir tb"), wandb("")), ("tb".into(), ".".into()));
    assert!(notices_text(&tiny("--wandb-project p").notices).contains("the server will name the run"));
    let profile = log("--profile --profile-step-end 14 --profile-ranks 0 3 --use-pytorch-profiler").profile.unwrap();
    assert_eq!((profile.start, profile.end, profile.ranks), (10, 14, vec![0, 3]));
    assert_eq!(log("--profile --tensorboard-dir tb").profile.unwrap().folder, std::path::Path::new("tb"));
    assert!(log("--nvtx-ranges").nvtx_ranges && !log("--profile").nvtx_ranges);
}

#[test]
fn help_is_grouped_and_searchable() {
    let table = Table::pretrain();
    let all = help("pretrain_gpt", &table, "");
    assert!(
        all.contains("\nlearning rate and weight decay:\n  --lr-decay-style {constant,linear,cosine"),
        "{}",
        &all[..400]
    );
    let some = help("pretrain_gpt", &table, "tensor size");
    assert!(
        some.contains("--tensor-model-parallel-size INT") && some.contains("default 1") && !some.contains("--lr "),
        "{some}"
    );
    assert!(help("pretrain_gpt", &table, "flash-attn").contains("no effect here"));
    assert!(help("pretrain_gpt", &table, "batch-size").contains("removed: use --micro-batch-size"));
    assert!(help("pretrain_gpt", &table, "zzz").contains("no flag matches: zzz"));
}

#[test]
fn exit_codes() {
    let code = |flags: &str, ranks| {
        let argv = words(&format!("{TINY} {flags}"));
        common::run(&argv, ranks).err().map_or(0, |r| exit_code(&r.violations))
    };
    assert_eq!(code("", 1), 0);
    assert_eq!(code("--num-experts 4", 1), 0);
    assert_eq!(code("--num-experts 4 --moe-layer-freq 2", 1), 3);
    assert_eq!(code("--num-experts 4 --min-lr 1", 1), 2);
    assert_eq!(code("--typo", 1), 2);
    let parsed = parse(&Table::pretrain(), &words("--lr 1 --lr 2"), &|_| Err(std::io::Error::other("")));
    assert_eq!(exit_code(&parsed.violations), 0);
}

#[test]
fn startup_lines_are_megatrons() {
    assert_eq!(
        startup_lines(&tiny("--bf16")),
        [
            "using world size: 1, data-parallel size: 1, context-parallel size: 1, hierarchical context-parallel sizes: None, \
             tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
            "accumulate and all-reduce gradients in fp32 for bfloat16 data type.",
            "using torch.bfloat16 for parameters ...",
        ]
    );
    let line = TINY.replace("--global-batch-size 4", "").replace("--train-iters", "--train-samples");
    let lines = startup_lines(&common::run(&words(&line), 1).unwrap());
    assert_eq!(lines[1..3], ["setting global batch size to 1", "setting training iterations to 10"]);
    assert_eq!(lines[3], "using torch.float32 for parameters ...");
}
