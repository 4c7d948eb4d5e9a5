//! Rules that upstream has for its back ends: CUDA streams and graphs, FSDP, offloading. Those that only protect
//! another vendor's software are warnings here.

use super::NoticeKind;
use super::checker::Checker;
use crate::settings::{DeviceKind, ParallelConfig};
use crate::value::Value;

pub(super) fn check(c: &mut Checker, p: &ParallelConfig, device: DeviceKind) {
    connections(c, p, device);
    offloading(c, p);
    fsdp(c, p);
    hybrid_context(c, p);
    if c.args.flag("defer_embedding_wgrad_compute") {
        let fused = !matches!(c.args.value("gradient_accumulation_fusion"), Value::Bool(false));
        if p.pp < 2 || !fused {
            let flag = "--defer-embedding-wgrad-compute";
            c.invalid(&[flag], format!("{flag} needs several pipeline stages and gradient accumulation fusion")).why =
                Some("the weight gradient of the head runs in the bubble of the last stage".into());
        }
    }
    if p.tp > 1 && p.ep > 1 && !p.sequence_parallel {
        c.warn(
            "expert and tensor parallelism without --sequence-parallel: Megatron does not train this way; here it works, with whole \
             activations on every tensor-parallel rank; slower, the numbers do not change",
        );
    }
    if c.args.text("cross_entropy_fusion_impl") == Some("te") && c.args.flag("cross_entropy_loss_fusion") {
        c.warn("--cross-entropy-fusion-impl te is refused by Megatron main; here it chooses nothing");
    }
    if c.args.text("attention_backend") == Some("local") && c.args.list("spec").is_empty() {
        c.warn("--attention-backend local needs --spec local upstream; here it chooses nothing");
    }
    let no_gloo = matches!(c.args.value("use_gloo_process_groups"), Value::Bool(false));
    if no_gloo && c.args.flag("use_distributed_optimizer") && c.args.text("ckpt_format") == Some("torch") {
        c.warn("without Gloo groups Megatron cannot save a distributed optimizer in the torch format; here it can");
    }
}

/// Upstream relies on one hardware queue for the order of communication and compute.
fn connections(c: &mut Checker, p: &ParallelConfig, device: DeviceKind) {
    const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    if !matches!(device, DeviceKind::Cuda | DeviceKind::Auto) {
        return;
    }
    let value = c.env.value(NAME).map(str::to_string);
    let fsdp = c.args.flag("use_torch_fsdp2") || c.args.flag("use_megatron_fsdp");
    let shown = value.clone().unwrap_or_else(|| "not set".to_string());
    if fsdp && value.as_deref() == Some("1") {
        c.warn(format!(
            "{NAME}=1 with FSDP: Megatron refuses it; here streams are ordered by events, and it may cost speed"
        ));
    } else if !fsdp && (p.tp > 1 || p.cp > 1) && value.as_deref() != Some("1") && device == DeviceKind::Cuda {
        c.warn(format!(
            "{NAME} is {shown}: Megatron asks for 1 with tensor or context parallelism; here streams are ordered by events"
        ));
    }
}

/// Steps before those that are CUDA graphs, if any are. Call when experts are known.
pub(super) fn graphs(c: &mut Checker, experts: bool, device: DeviceKind) -> Option<u64> {
    let (local, external) = (c.args.flag("enable_cuda_graph"), c.args.flag("external_cuda_graph"));
    let chosen = c.args.text("cuda_graph_impl").is_some_and(|name| name != "none");
    let flags = ["--enable-cuda-graph", "--external-cuda-graph", "--cuda-graph-impl"];
    if (local && external) || (chosen && (local || external)) {
        c.invalid(&flags, "CUDA graphs are asked for in two ways").legal = Some("--cuda-graph-impl alone".into());
    } else if local || external {
        let name = if local { "local" } else { "transformer_engine" };
        c.derive("cuda_graph_impl", Value::Str(name.into()), if local { flags[0] } else { flags[1] });
    }
    if c.args.is_set("cuda_graph_scope_deprecated") && c.args.is_set("cuda_graph_modules") {
        let flags = ["--cuda-graph-scope", "--cuda-graph-modules"];
        c.invalid(&flags, "--cuda-graph-scope is the old name of --cuda-graph-modules; give one");
    }
    if c.args.text("cuda_graph_impl").is_none_or(|name| name == "none") {
        return None;
    }
    let why_not = match device {
        DeviceKind::Cpu | DeviceKind::Npu => Some("CUDA graphs are of CUDA devices"),
        // Upstream makes graphs of some parts of a layer then (--cuda-graph-modules).
        _ if experts => Some("with experts the sizes in a step depend on its tokens, and a graph has one size"),
        _ => None,
    };
    if let Some(why) = why_not {
        c.notice(NoticeKind::NoEffect, format!("no effect: --cuda-graph-impl ({why})"));
        return None;
    }
    const WARMUP: &str = "cuda_graph_warmup_steps";
    let steps = c.long_from(WARMUP, 0).unwrap_or(3);
    if steps == 0 {
        c.warn("--cuda-graph-warmup-steps 0: the first step of a run is never a graph, since it takes its memory");
    }
    Some(steps.max(1))
}

fn offloading(c: &mut Checker, p: &ParallelConfig) {
    if c.args.int("cpu_offloading_num_layers").unwrap_or(0) > 0 {
        let recompute = !c.args.value("recompute_granularity").is_none() || c.args.flag("recompute_activations");
        if p.pp > 1 || recompute {
            let flag = "--cpu-offloading-num-layers";
            c.invalid(&[flag], format!("{flag} does not go with pipeline stages or recomputation")).why =
                Some("an activation is either kept on the host or computed again".into());
        }
    }
    if c.args.flag("optimizer_cpu_offload") && !c.args.flag("use_precision_aware_optimizer") {
        let flags = ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"];
        c.invalid(&flags, "--optimizer-cpu-offload needs --use-precision-aware-optimizer, as in Megatron");
    }
}

fn fsdp(c: &mut Checker, p: &ParallelConfig) {
    if c.args.flag("use_torch_fsdp2") && (p.pp > 1 || p.ep > 1 || p.distributed_optimizer) {
        let flag = "--use-torch-fsdp2";
        c.invalid(
            &[flag],
            format!("{flag} excludes pipeline stages, expert parallelism and --use-distributed-optimizer"),
        )
        .legal = Some(
            "--zero-stage 1 with any of them; --zero-stage 3, which shards the same three things, with one stage"
                .into(),
        );
    }
    if c.args.text("ckpt_format") == Some("fsdp_dtensor") && !c.args.flag("use_megatron_fsdp") {
        let flags = ["--ckpt-format", "--use-megatron-fsdp"];
        c.invalid(&flags, "--ckpt-format fsdp_dtensor needs --use-megatron-fsdp");
    }
    let dcp = c.args.text("ckpt_format") == Some("torch_dcp");
    if dcp && (!c.args.flag("use_torch_fsdp2") || p.tp > 1 || p.pp > 1) {
        let flags = ["--ckpt-format", "--use-torch-fsdp2"];
        c.invalid(&flags, "--ckpt-format torch_dcp needs --use-torch-fsdp2 without tensor or pipeline parallelism");
    }
}

fn hybrid_context(c: &mut Checker, p: &ParallelConfig) {
    if !c.args.flag("hybrid_context_parallel") {
        return;
    }
    let wants: Vec<&str> = [
        (p.pp > 1, "one pipeline stage"),
        (c.args.text("cuda_graph_impl").is_some_and(|n| n != "none"), "no CUDA graphs"),
        (c.args.flag("use_megatron_fsdp"), "no --use-megatron-fsdp"),
        (c.args.text("dataloader_type").is_some_and(|n| n != "single"), "--dataloader-type single"),
        (!c.args.flag("calculate_per_token_loss"), "--calculate-per-token-loss"),
    ]
    .into_iter()
    .filter_map(|(missing, what)| missing.then_some(what))
    .collect();
    if !wants.is_empty() {
        let flag = "--hybrid-context-parallel";
        c.invalid(&[flag], format!("{flag} needs {}", wants.join(", ")));
    }
}
