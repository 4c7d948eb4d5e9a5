//! Precision, recomputation, exits.

use super::NoticeKind;
use super::batch::Batch;
use super::checker::Checker;
use crate::settings::{
    BatchPlan, ExitConfig, ExitSignal, ParallelConfig, ParamDtype, Recompute, RecomputeMethod, RecomputeModule,
    RunLength, TrainConfig,
};
use crate::value::Value;

pub(super) fn check(c: &mut Checker, p: &ParallelConfig, batch: Batch, length: RunLength) -> TrainConfig {
    let params_dtype = match (c.args.flag("fp16"), c.args.flag("bf16")) {
        (true, true) => {
            c.invalid(&["--fp16", "--bf16"], "--fp16 and --bf16 exclude each other");
            ParamDtype::Bf16
        }
        (true, false) => ParamDtype::Fp16,
        (false, true) => ParamDtype::Bf16,
        (false, false) => ParamDtype::Fp32,
    };
    if params_dtype == ParamDtype::Fp32 && c.args.flag("fp32_residual_connection") {
        c.invalid(&["--fp32-residual-connection"], "--fp32-residual-connection needs --fp16 or --bf16").why =
            Some("without them everything is fp32 already".into());
    }
    if c.args.flag("fp16_lm_cross_entropy") && params_dtype != ParamDtype::Fp16 {
        c.invalid(&["--fp16-lm-cross-entropy"], "--fp16-lm-cross-entropy needs --fp16");
    }
    if c.args.flag("fp8_param_gather") {
        let sharded = ["use_distributed_optimizer", "use_torch_fsdp2", "use_megatron_fsdp"];
        if c.args.value("fp8").is_none() || !sharded.iter().any(|dest| c.args.flag(dest)) {
            let what = "--fp8-param-gather needs --fp8-format and --use-distributed-optimizer or FSDP";
            c.invalid(&["--fp8-param-gather"], what);
        }
    }
    if c.args.flag("first_last_layers_bf16") && c.args.text("fp8_recipe") == Some("delayed") {
        let flags = ["--first-last-layers-bf16", "--fp8-recipe"];
        c.invalid(&flags, "--first-last-layers-bf16 does not go with --fp8-recipe delayed").legal =
            Some("--fp8-recipe tensorwise, blockwise or mxfp8".into());
    }
    if !c.args.value("fp8").is_none() && !c.args.value("fp4").is_none() {
        c.invalid(&["--fp8-format", "--fp4-format"], "--fp8-format and --fp4-format exclude each other");
    }
    let mut check_for_nan = c.args.flag("check_for_nan_in_loss_and_grad");
    if params_dtype == ParamDtype::Fp16 && c.args.value("loss_scale").is_none() && check_for_nan {
        check_for_nan = false;
        c.derive("check_for_nan_in_loss_and_grad", Value::Bool(false), "dynamic loss scaling skips such steps");
        c.notice(
            NoticeKind::Adjusted,
            "fp16 with dynamic loss scaling: steps with non-finite gradients are skipped, not fatal",
        );
    }
    if let (RunLength::Samples(samples), BatchPlan::Constant) = (length, &batch.plan)
        && batch.global > 0
    {
        let iters = i64::try_from(samples / batch.global as u64).unwrap_or(i64::MAX);
        c.derive("train_iters", Value::Int(iters), "train samples / global batch size");
        if iters == 0 {
            let v = c.invalid(&["--train-samples", "--global-batch-size"], "the run is shorter than one batch");
            v.arithmetic = Some(format!("{samples} samples / batch {} = 0 iterations", batch.global));
        }
    }
    let positive = |c: &mut Checker, dest| c.real(dest, "above 0", |x| x > 0.0);
    TrainConfig {
        micro_batch_size: batch.micro,
        global_batch_size: batch.global,
        batch_plan: batch.plan,
        decrease_batch_size_if_needed: batch.decrease,
        length,
        iterations_to_skip: to_skip(c),
        skip_train: c.args.flag("skip_train"),
        seed: c.long_from("seed", 0).unwrap_or(1234),
        deterministic: ["deterministic_mode", "npu_deterministic", "deprecated_use_deter_comp"]
            .iter()
            .any(|dest| c.args.flag(dest)),
        params_dtype,
        check_for_nan,
        loss_spike_threshold: positive(c, "loss_spike_threshold"),
        grad_norm_skip_threshold: positive(c, "grad_norm_skip_threshold"),
        recompute: recompute(c, p),
        steps_before_graphs: None,
        exit: exit(c),
    }
}

fn to_skip(c: &mut Checker) -> Vec<u64> {
    let items: Option<Vec<u64>> =
        c.args.list("iterations_to_skip").iter().map(|v| v.to_string().parse().ok()).collect();
    items.unwrap_or_else(|| {
        c.invalid(&["--iterations-to-skip"], "--iterations-to-skip takes whole numbers from 0");
        Vec::new()
    })
}

fn recompute(c: &mut Checker, p: &ParallelConfig) -> Recompute {
    const GRANULARITY: &str = "--recompute-granularity";
    if c.args.flag("recompute_activations") {
        c.derive("recompute_granularity", Value::Str("selective".into()), "--recompute-activations");
    }
    // Megatron-DeepSpeed, and Megatron before 2022: every layer is computed again.
    if c.args.flag("checkpoint_activations") && c.args.value("recompute_granularity").is_none() {
        let rule = "--checkpoint-activations";
        c.derive("recompute_granularity", Value::Str("full".into()), rule);
        if c.args.value("recompute_method").is_none() {
            c.derive("recompute_method", Value::Str("uniform".into()), rule);
        }
        if c.args.value("recompute_num_layers").is_none() {
            let layers = c.args.int("checkpoint_num_layers").unwrap_or(1);
            c.derive("recompute_num_layers", Value::Int(layers), rule);
        }
        c.notice(
            NoticeKind::Adjusted,
            "--checkpoint-activations is the old spelling: every layer is recomputed, as by --recompute-granularity full \
             --recompute-method uniform --recompute-num-layers 1 (--recompute-activations repeats the attention core only)",
        );
    }
    // Before 2023 a method alone meant full recomputation of single layers.
    if c.args.spelling("recompute_method") == "--activations-checkpoint-method"
        && c.args.value("recompute_granularity").is_none()
    {
        c.derive("recompute_granularity", Value::Str("full".into()), "--activations-checkpoint-method");
        if c.args.value("recompute_num_layers").is_none() {
            c.derive("recompute_num_layers", Value::Int(1), "--activations-checkpoint-method");
        }
    }
    if c.args.flag("distribute_saved_activations") {
        let full = c.args.text("recompute_granularity") == Some("full");
        if p.tp < 2 || !full || p.sequence_parallel {
            let flag = "--distribute-saved-activations";
            c.invalid(
                &[flag],
                format!("{flag} needs tensor parallelism and {GRANULARITY} full, without --sequence-parallel"),
            )
            .why = Some("it splits over tensor-parallel ranks what full recomputation keeps, and sequence parallelism has split it already".into());
        }
    }
    let method = c.args.text("recompute_method").map(str::to_string);
    const OF_RANK: &str = "enable_recompute_layers_per_pp_rank";
    let block = c.args.text("recompute_granularity") == Some("full") && method.as_deref() == Some("block");
    if c.args.flag(OF_RANK) && !block {
        let what =
            "no effect: --enable-recompute-layers-per-pp-rank (it counts the layers of --recompute-method block)";
        c.notice(NoticeKind::NoEffect, what);
    }
    let num_layers = c.count_from("recompute_num_layers", 0).and_then(|n| usize::try_from(n).ok());
    let granularity = c.args.text("recompute_granularity").map(str::to_string);
    match granularity.as_deref() {
        Some("full") => {
            let has_layers = num_layers.is_some() || c.args.is_broken("recompute_num_layers");
            if method.is_none() || !has_layers {
                c.invalid(
                    &[GRANULARITY, "--recompute-method", "--recompute-num-layers"],
                    format!("{GRANULARITY} full needs --recompute-method and --recompute-num-layers"),
                )
                .legal = Some("--recompute-method uniform --recompute-num-layers 1 recomputes every layer".into());
            }
            let layers = c.args.int("num_layers").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let stage = layers / p.pp;
            if let Some(n) = num_layers
                && stage > 0
                && n > stage
            {
                c.warn(format!(
                    "--recompute-num-layers {n} is above the {stage} layers of a stage: all are recomputed"
                ));
            }
            let method = match (method.as_deref(), c.args.flag(OF_RANK)) {
                (Some("block"), true) => RecomputeMethod::BlockOfRank,
                (Some("block"), false) => RecomputeMethod::Block,
                _ => RecomputeMethod::Uniform,
            };
            match (method, num_layers) {
                (RecomputeMethod::Block | RecomputeMethod::BlockOfRank, Some(0)) => return Recompute::None,
                (RecomputeMethod::Uniform, Some(0)) => {
                    let flags = ["--recompute-method", "--recompute-num-layers"];
                    c.invalid(&flags, "--recompute-method uniform needs blocks of at least one layer");
                }
                _ => {}
            }
            Recompute::Full { method, num_layers: num_layers.unwrap_or(1) }
        }
        Some("selective") => {
            if method.is_some() || num_layers.is_some() {
                c.invalid(
                    &[GRANULARITY, "--recompute-method", "--recompute-num-layers"],
                    format!("--recompute-method and --recompute-num-layers belong to {GRANULARITY} full"),
                )
                .legal = Some("--recompute-modules chooses what selective recomputation repeats".into());
            }
            Recompute::Selective(modules(c))
        }
        _ => Recompute::None,
    }
}

fn modules(c: &mut Checker) -> Vec<RecomputeModule> {
    let names = c.args.texts("recompute_modules");
    if names.is_empty() {
        return vec![RecomputeModule::CoreAttn];
    }
    let mut out = Vec::new();
    for name in names {
        let module = match name.as_str() {
            "core_attn" => RecomputeModule::CoreAttn,
            "mlp" => RecomputeModule::Mlp,
            "layernorm" => RecomputeModule::Layernorm,
            "moe_act" if !c.args.flag("moe_grouped_gemm") => {
                let flags = ["--recompute-modules", "--moe-grouped-gemm"];
                c.invalid(&flags, "--recompute-modules moe_act needs --moe-grouped-gemm");
                continue;
            }
            "mla_up_proj" if !c.args.flag("multi_latent_attention") => {
                let flags = ["--recompute-modules", "--multi-latent-attention"];
                c.invalid(&flags, "--recompute-modules mla_up_proj needs --multi-latent-attention");
                continue;
            }
            "shared_experts" if c.args.flag("moe_shared_expert_overlap") => {
                let flags = ["--recompute-modules", "--moe-shared-expert-overlap"];
                c.invalid(&flags, "--recompute-modules shared_experts excludes --moe-shared-expert-overlap");
                continue;
            }
            "moe" | "moe_act" | "shared_experts" | "mla_up_proj" => {
                c.planned(
                    &["--recompute-modules"],
                    format!("--recompute-modules {name}: recomputation of this module is not there yet"),
                );
                continue;
            }
            _ => {
                c.invalid(&["--recompute-modules"], format!("--recompute-modules: no module is called '{name}'"))
                    .legal = Some("core_attn, mlp, layernorm".into());
                continue;
            }
        };
        if !out.contains(&module) {
            out.push(module);
        }
    }
    out
}

fn exit(c: &mut Checker) -> ExitConfig {
    let signal = match c.args.text("exit_signal") {
        Some("SIGINT") => ExitSignal::Int,
        Some("SIGHUP") => ExitSignal::Hup,
        Some("SIGUSR1") => ExitSignal::Usr1,
        Some("SIGUSR2") => ExitSignal::Usr2,
        None | Some("SIGTERM") => ExitSignal::Term,
        Some(other) => {
            let what = format!("--exit-signal {other} cannot end a run cleanly");
            c.invalid(&["--exit-signal"], what).legal = Some("SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2".into());
            ExitSignal::Term
        }
    };
    ExitConfig {
        interval: c.long_from("exit_interval", 0).filter(|n| *n > 0),
        duration_in_mins: c.long_from("exit_duration_in_mins", 0).filter(|n| *n > 0),
        signal_handler: c.args.flag("exit_signal_handler"),
        signal,
    }
}
