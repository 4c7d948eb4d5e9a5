//! Parallel sizes and the division of layers over stages.

use super::NoticeKind;
use super::checker::{Checker, divisors, list, plural};
use crate::settings::ParallelConfig;
use crate::value::Value;

const TP: &str = "--tensor-model-parallel-size";
const PP: &str = "--pipeline-model-parallel-size";
const CP: &str = "--context-parallel-size";
const EP: &str = "--expert-model-parallel-size";

/// Sizes of the mesh. `dp` is 0 when the world size does not divide; rules that need it stay silent then.
pub(super) fn check(c: &mut Checker) -> ParallelConfig {
    let world_size = c.env.world_size;
    let tp = c.size("tensor_model_parallel_size").unwrap_or(1);
    let pp = c.size("pipeline_model_parallel_size").unwrap_or(1);
    let cp = c.size("context_parallel_size").unwrap_or(1);
    let ep = c.size("expert_model_parallel_size").unwrap_or(1);
    // Megatron-DeepSpeed's sequence parallelism (Ulysses) is an axis of the mesh as well.
    let sp = c.size("ds_sequence_parallel_size").unwrap_or(1);
    let model = tp.saturating_mul(pp).saturating_mul(cp).saturating_mul(sp);
    let dp = if world_size.is_multiple_of(model) { world_size / model } else { 0 };
    if dp == 0 {
        let next = world_size.div_ceil(model).saturating_mul(model);
        let v = c.invalid(&[TP, PP, CP], "the ranks do not divide into model-parallel groups");
        v.arithmetic = Some(format!(
            "{} % (tensor {tp} x pipeline {pp} x context {cp}{} = {model}) = {}",
            plural(world_size, "rank"),
            if sp > 1 { format!(" x sequence {sp}") } else { String::new() },
            world_size % model
        ));
        v.legal = Some(format!(
            "a multiple of {model} ranks ({next} are the next), or sizes whose product divides {world_size}"
        ));
        v.why = Some("data parallel size = ranks / (tensor x pipeline x context); ranks come from WORLD_SIZE, which the launcher sets".into());
    }
    if cp > 1 {
        context(c, cp);
    }
    let groups = c.args.int("num_query_groups").filter(|_| c.args.flag("group_query_attention"));
    if let Some(groups) = groups.filter(|g| *g > 0 && g % tp as i64 != 0 && tp as i64 % g != 0) {
        let v = c.invalid(
            &["--num-query-groups", TP],
            "the query groups neither divide over the tensor-parallel ranks nor the ranks over the groups",
        );
        v.arithmetic = Some(format!("{groups} groups, {tp} ranks"));
        v.legal = Some(format!("{TP} {}, or a multiple of {groups}", list(&divisors(groups as usize))));
        v.why = Some("a rank holds whole groups, or ranks share one: each then holds its key and value heads".into());
    }
    let thread_ranks = c.count_from("thread_ranks", 0).unwrap_or(0) as usize;
    if thread_ranks > 0 && thread_ranks != world_size {
        let v =
            c.invalid(&["--thread-ranks", "WORLD_SIZE"], "--thread-ranks contradicts the launcher's number of ranks");
        v.arithmetic = Some(format!("{thread_ranks} threads, {world_size} ranks"));
        v.legal = Some("--thread-ranks without a launcher, or a launcher without --thread-ranks".into());
    }
    if sp > 1 {
        c.planned(&["--ds-sequence-parallel-size"], "--ds-sequence-parallel-size above 1 is not there yet");
        if pp > 1 {
            c.invalid(
                &["--ds-sequence-parallel-size", PP],
                "--ds-sequence-parallel-size above 1 needs one pipeline stage",
            );
        }
    }
    let levels: Vec<usize> =
        c.args.list("hierarchical_context_parallel_sizes").iter().filter_map(|v| v.to_string().parse().ok()).collect();
    let product = levels.iter().fold(1usize, |a, b| a.saturating_mul(*b));
    if !levels.is_empty() && product != cp {
        let flags = ["--hierarchical-context-parallel-sizes", CP];
        c.invalid(&flags, "the levels of context parallelism do not multiply to its size").arithmetic =
            Some(format!("product of {} = {product}, not {cp}", list(&levels)));
    }
    if levels.is_empty() && cp > 1 && c.args.texts("cp_comm_type").iter().any(|t| t == "a2a+p2p") {
        let flags = ["--cp-comm-type", "--hierarchical-context-parallel-sizes"];
        c.invalid(&flags, "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes").legal =
            Some(format!("two levels whose product is {cp}"));
    }
    experts(c, ep);

    let mut sequence_parallel = c.args.flag("sequence_parallel");
    if sequence_parallel && tp == 1 {
        sequence_parallel = false;
        c.derive("sequence_parallel", Value::Bool(false), "no effect at tensor parallel size 1");
        c.notice(
            NoticeKind::Adjusted,
            "--sequence-parallel has no effect at tensor parallel size 1: disabled (numbers do not change)",
        );
    }
    let tokens = c.args.int("seq_length").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    if sequence_parallel && tokens.is_multiple_of(cp) && !(tokens / cp).is_multiple_of(tp) {
        let v = c.invalid(
            &["--seq-length", "--sequence-parallel", TP],
            "the tokens of a sample do not divide over the ranks of sequence parallelism",
        );
        v.arithmetic = Some(match cp {
            1 => format!("{tokens} % tensor {tp} = {}", tokens % tp),
            _ => format!(
                "{tokens} / context {cp} = {}; {} % tensor {tp} = {}",
                tokens / cp,
                tokens / cp,
                tokens / cp % tp
            ),
        });
        v.legal = Some(format!("--seq-length a multiple of {}", tp.saturating_mul(cp)));
    }
    if c.args.flag("tp_comm_overlap") && !sequence_parallel {
        c.invalid(
            &["--tp-comm-overlap"],
            "--tp-comm-overlap needs --sequence-parallel and a tensor parallel size above 1",
        );
    }
    // Ranks with the same parameters.
    let replicas = dp.saturating_mul(cp);
    let zero_stage = if c.args.is_set("zero_stage") { c.count_from("zero_stage", 0) } else { None };
    let distributed_optimizer = c.args.flag("use_distributed_optimizer") || matches!(zero_stage, Some(1..=3));
    if c.args.flag("overlap_param_gather") {
        if !distributed_optimizer {
            c.invalid(&["--overlap-param-gather"], "--overlap-param-gather needs --use-distributed-optimizer").why =
                Some("only a distributed optimizer gathers parameters".into());
        }
        if !c.args.flag("overlap_grad_reduce") {
            c.invalid(&["--overlap-param-gather"], "--overlap-param-gather needs --overlap-grad-reduce");
        }
    }
    if c.args.flag("overlap_param_gather_with_optimizer_step") {
        let wants = [
            (!c.args.flag("overlap_param_gather"), "--overlap-param-gather"),
            (
                c.args.value("num_layers_per_virtual_pipeline_stage").is_none()
                    && c.args.value("num_virtual_stages_per_pipeline_rank").is_none(),
                "virtual stages",
            ),
        ];
        let wants: Vec<&str> = wants.into_iter().filter_map(|(lacks, what)| lacks.then_some(what)).collect();
        if !wants.is_empty() {
            let flag = "--overlap-param-gather-with-optimizer-step";
            c.invalid(&[flag], format!("{flag} needs {}", wants.join(" and ")));
        }
    }
    if let Some(stage) = zero_stage {
        if stage > 3 {
            c.invalid(&["--zero-stage"], format!("--zero-stage {stage} does not exist")).legal =
                Some("0, 1, 2, 3".into());
        } else if stage == 2 && replicas > 1 {
            c.notice(
                NoticeKind::Adjusted,
                "--zero-stage 2: gradients are whole on every rank here, as with 1: 4 bytes a parameter where upstream keeps a \
                 share; the numbers are the same",
            );
        } else if stage == 3 && replicas > 1 && pp > 1 {
            let flags = ["--zero-stage", PP];
            let v = c.invalid(&flags, "--zero-stage 3 does not go with pipeline stages");
            v.legal = Some("--zero-stage 1 with pipeline stages, or one stage".into());
            v.why = Some("each micro-batch gathers every block twice: the pipeline would wait for that".into());
        } else if stage > 0 && replicas == 1 {
            c.notice(
                NoticeKind::NoEffect,
                format!("no effect: --zero-stage {stage} (one data-parallel rank has nothing to shard)"),
            );
        }
    }
    if c.args.flag("use_distributed_optimizer") && replicas == 1 {
        c.notice(
            NoticeKind::NoEffect,
            "no effect: --use-distributed-optimizer (one data-parallel rank has nothing to shard)",
        );
    }
    let optimizer_instances = instances(c, distributed_optimizer, replicas);
    c.derive_size("world_size", world_size, "WORLD_SIZE");
    c.derive_size("data_parallel_size", dp, "world size / (tp x pp x cp)");
    let rank = c.env.rank;
    c.derive_size("rank", rank, "RANK");
    let minutes = c.count_from("distributed_timeout_minutes", 1).unwrap_or(10);
    let timeout_seconds = c.count_from("timeout_seconds", 1).unwrap_or(minutes.saturating_mul(60));
    ParallelConfig {
        world_size,
        tp,
        pp,
        cp,
        ep,
        etp: tp,
        dp,
        virtual_stages: 1,
        stage_layers: vec![],
        schedule: ferrotron_schedule::Kind::OneFOneB,
        microbatch_group: pp,
        sequence_parallel,
        distributed_optimizer,
        optimizer_instances,
        zero_stage: zero_stage.and_then(|s| u8::try_from(s).ok()),
        overlap_grad_reduce: c.args.flag("overlap_grad_reduce"),
        overlap_param_gather: c.args.flag("overlap_param_gather"),
        grad_reduce_in_bf16: c.args.flag("grad_reduce_in_bf16"),
        ddp_bucket_size: c.size("ddp_bucket_size"),
        per_token_loss: c.args.flag("calculate_per_token_loss"),
        timeout_seconds,
        timeout_seconds_after_init: c
            .count_from("distributed_timeout_seconds_after_init", 1)
            .unwrap_or(timeout_seconds),
        thread_ranks,
        interface: c.args.text("interface").map(str::to_string),
    }
}

/// How context-parallel ranks exchange keys and values: by an all-gather, whatever the flags say. Megatron's ring (p2p) and
/// Ulysses (a2a), and MindSpeed's, give the same numbers but for rounding.
fn context(c: &mut Checker, cp: usize) {
    let (megatron, mindspeed) =
        (c.args.texts("cp_comm_type"), c.args.text("context_parallel_algo").map(str::to_string));
    let asked = match mindspeed.filter(|_| c.given_any(&["context_parallel_algo"])) {
        Some(algorithm) if algorithm == "kvallgather_cp_algo" => return,
        Some(algorithm) => format!("--context-parallel-algo {algorithm}"),
        None if megatron.iter().all(|t| t == "allgather") => return,
        None => format!("--cp-comm-type {}", megatron.join(" ")),
    };
    c.notice(
        NoticeKind::Adjusted,
        format!(
            "{asked}: the {cp} context-parallel ranks gather keys and values here, as --cp-comm-type allgather does; the \
             numbers are the same but for rounding, other exchanges are not there"
        ),
    );
}

/// Instances of the distributed optimizer, which divide the `replicas` (0: unknown) that sum their gradients.
fn instances(c: &mut Checker, distributed_optimizer: bool, replicas: usize) -> usize {
    const FLAG: &str = "--num-distributed-optimizer-instances";
    let n = c.size("num_distributed_optimizer_instances").unwrap_or(1);
    if n > 1 && !distributed_optimizer {
        c.invalid(&[FLAG], format!("{FLAG} {n} needs --use-distributed-optimizer")).why =
            Some("an instance is a set of ranks that shard one copy of the optimizer state".into());
    }
    if !replicas.is_multiple_of(n) {
        let v = c.invalid(&[FLAG], "the optimizer instances do not divide the data-parallel ranks");
        v.arithmetic =
            Some(format!("{} (with context) % {n} = {}", plural(replicas, "data-parallel rank"), replicas % n));
        v.legal = Some(format!("{FLAG} {}", list(&divisors(replicas))));
    }
    n
}

fn experts(c: &mut Checker, ep: usize) {
    // Megatron-DeepSpeed takes one number for each MoE layer; the rule must hold for the first as for all.
    let experts = match c.args.value("num_experts") {
        Value::Int(n) => *n,
        Value::List(layers) => {
            layers.iter().find_map(|v| if let Value::Int(n) = v { Some(*n) } else { None }).unwrap_or(0)
        }
        _ => 0,
    };
    let experts = experts.max(0);
    if ep > 1 && experts == 0 {
        let v = c.invalid(&[EP], format!("{EP} {ep} without --num-experts"));
        v.legal = Some(format!("--num-experts, a multiple of {ep}; or {EP} 1"));
        v.why = Some("expert parallelism divides experts over ranks".into());
    } else if ep > 1 && experts % (ep as i64) != 0 {
        let v = c.invalid(&[EP, "--num-experts"], "the experts do not divide over the expert-parallel ranks");
        v.arithmetic = Some(format!("{experts} experts % {ep} = {}", experts % ep as i64));
        v.legal = Some(format!("expert parallel size {}", list(&divisors(experts as usize))));
    }
}
