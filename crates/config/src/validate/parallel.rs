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
        c.planned(&[CP], format!("{CP} {cp}: context parallelism is not there yet"));
    }
    let groups = c.args.int("num_query_groups").filter(|_| c.args.flag("group_query_attention"));
    if let Some(groups) = groups.filter(|g| *g > 0 && tp > 1 && g % tp as i64 != 0) {
        c.planned(
            &["--num-query-groups", TP],
            format!("{groups} query groups over {tp} tensor-parallel ranks: replicated groups are not there yet"),
        );
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
    if c.args.flag("tp_comm_overlap") && !sequence_parallel {
        c.invalid(
            &["--tp-comm-overlap"],
            "--tp-comm-overlap needs --sequence-parallel and a tensor parallel size above 1",
        );
    }
    if c.args.flag("overlap_param_gather") {
        if !c.args.flag("use_distributed_optimizer") {
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
    let zero_stage = if c.args.is_set("zero_stage") { c.count_from("zero_stage", 0) } else { None };
    if let Some(stage) = zero_stage {
        if stage > 3 {
            c.invalid(&["--zero-stage"], format!("--zero-stage {stage} does not exist")).legal =
                Some("0, 1, 2, 3".into());
        } else if stage > 1 && dp > 1 {
            c.planned(&["--zero-stage"], format!("--zero-stage {stage} is not there yet: 0 and 1 are"));
        } else if stage > 0 && dp == 1 {
            c.notice(
                NoticeKind::NoEffect,
                format!("no effect: --zero-stage {stage} (one data-parallel rank has nothing to shard)"),
            );
        }
    }
    if c.args.flag("use_distributed_optimizer") && dp == 1 {
        c.notice(
            NoticeKind::NoEffect,
            "no effect: --use-distributed-optimizer (one data-parallel rank has nothing to shard)",
        );
    }
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
        dp,
        virtual_stages: 1,
        sequence_parallel,
        distributed_optimizer: c.args.flag("use_distributed_optimizer") || zero_stage == Some(1),
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
    } else if ep > 1 {
        c.planned(&[EP], format!("{EP} {ep}: expert parallelism is not there yet"));
    }
}

/// Layers over stages and chunks (Megatron: `get_num_layers_to_build`, `validate_args`).
pub(super) fn check_layers(c: &mut Checker, p: &ParallelConfig) {
    let (Some(layers), pp) = (c.args.int("num_layers").and_then(|n| usize::try_from(n).ok()), p.pp) else { return };
    if layers == 0 {
        return;
    }
    let chunk = c.size("num_layers_per_virtual_pipeline_stage");
    let chunks = c.size("num_virtual_stages_per_pipeline_rank");
    let first = c.size("decoder_first_pipeline_num_layers");
    let last = c.size("decoder_last_pipeline_num_layers");
    let layout = c.args.text("pipeline_model_parallel_layout").is_some();
    let ways = [chunk.is_some(), chunks.is_some(), layout].iter().filter(|b| **b).count();
    const CHUNK: &str = "--num-layers-per-virtual-pipeline-stage";
    const CHUNKS: &str = "--num-virtual-stages-per-pipeline-rank";
    const LAYOUT: &str = "--pipeline-model-parallel-layout";
    const FIRST: &str = "--decoder-first-pipeline-num-layers";
    const LAST: &str = "--decoder-last-pipeline-num-layers";
    if ways > 1 {
        c.invalid(&[CHUNK, CHUNKS, LAYOUT], format!("at most one of {CHUNK}, {CHUNKS}, {LAYOUT} may be given"));
        return;
    }
    if layout {
        if first.is_some() || last.is_some() {
            c.invalid(
                &[LAYOUT, FIRST, LAST],
                format!("{LAYOUT} already says how many layers the first and last stage have"),
            );
        }
        c.planned(&[LAYOUT], format!("{LAYOUT} is not there yet"));
        return;
    }
    // MindSpeed states the layers of every stage; Megatron-DeepSpeed balances stages by a method or by itself.
    if let Some(text) = c.args.text("num_layer_list").map(str::to_string) {
        layer_list(c, &text, layers, pp);
        return;
    }
    if c.args.is_set("pp_partition_method") || (c.args.flag("deepspeed") && !c.args.flag("no_pipeline_parallel")) {
        return;
    }
    let extra = usize::from(c.args.flag("account_for_embedding_in_pipeline_split"))
        + usize::from(c.args.flag("account_for_loss_in_pipeline_split"));
    if first.is_some() || last.is_some() {
        uneven(c, layers, pp, [(FIRST, first), (LAST, last)], extra);
        if chunk.is_some() {
            c.invalid(
                &[CHUNK, FIRST, LAST],
                format!("{CHUNK} needs equal stages; use {CHUNKS} with {FIRST} or {LAST}"),
            );
        }
        return;
    }
    let total = layers + extra;
    if !total.is_multiple_of(pp) {
        let v = c.invalid(&["--num-layers", PP], "the layers do not divide into equal stages");
        let plus = if extra > 0 { format!(" + {extra} for embedding and loss") } else { String::new() };
        v.arithmetic = Some(format!("{layers} layers{plus} % {pp} stages = {}", total % pp));
        v.legal = Some(format!("{PP} {}; or {FIRST} / {LAST} for uneven stages", list(&divisors(total))));
        v.why = Some("each stage holds the same number of layers; none may vanish".into());
        return;
    }
    let per_stage = total / pp;
    if let Some(chunk) = chunk {
        if !per_stage.is_multiple_of(chunk) {
            let v = c.invalid(&["--num-layers", PP, CHUNK], "the layers of a stage do not divide into chunks");
            v.arithmetic = Some(format!(
                "{total} layers / {pp} stages = {per_stage} a stage; {per_stage} % {chunk} = {}",
                per_stage % chunk
            ));
            v.legal = Some(format!("{CHUNK} {}", list(&divisors(per_stage))));
        } else if per_stage / chunk > 1 {
            interleaving(c, p, &[CHUNK, PP]);
        }
    }
    if let Some(chunks) = chunks {
        if !per_stage.is_multiple_of(chunks) {
            let v = c.invalid(&["--num-layers", PP, CHUNKS], "the layers of a stage do not divide into chunks");
            v.arithmetic = Some(format!(
                "{total} layers / {pp} stages = {per_stage} a stage; {per_stage} % {chunks} = {}",
                per_stage % chunks
            ));
            v.legal = Some(format!("{CHUNKS} {}", list(&divisors(per_stage))));
        } else if chunks > 1 {
            interleaving(c, p, &[CHUNKS, PP]);
        }
    }
}

/// `--num-layer-list 5,6,5`: one count a stage, all layers in sum.
fn layer_list(c: &mut Checker, text: &str, layers: usize, pp: usize) {
    const LIST: &str = "--num-layer-list";
    let counts: Option<Vec<usize>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
    let Some(counts) = counts else {
        c.invalid(&[LIST], format!("{LIST} '{text}' is no list of whole numbers")).legal =
            Some("one count for each stage, joined by commas".into());
        return;
    };
    let sum = counts.iter().fold(0usize, |a, b| a.saturating_add(*b));
    if counts.len() != pp || sum != layers {
        let v = c.invalid(&[LIST, PP, "--num-layers"], "the layers of the stages do not add up");
        v.arithmetic = Some(format!("{} counts for {}, {sum} layers of {layers}", counts.len(), plural(pp, "stage")));
    }
}

fn interleaving(c: &mut Checker, p: &ParallelConfig, flags: &[&str]) {
    let overlap = !matches!(c.args.value("overlap_p2p_comm"), Value::Bool(false));
    let least = if overlap { 2 } else { 3 };
    if p.pp < least {
        let v = c.invalid(flags, "the interleaved schedule needs more pipeline stages");
        v.arithmetic = Some(format!("{}, at least {least} needed", plural(p.pp, "stage")));
        v.legal = Some(format!("{PP} {least} or more, or no virtual stages"));
    } else {
        c.planned(flags, "the interleaved schedule is not there yet");
        groups(c, p);
    }
}

/// Micro-batches pass the chunks of a stage in groups; a last group smaller than the pipeline would leave stages waiting for
/// each other (Megatron: `get_schedule_table`).
fn groups(c: &mut Checker, p: &ParallelConfig) {
    let size = |dest| c.args.int(dest).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let (Some(global), Some(micro)) = (size("global_batch_size"), size("micro_batch_size")) else { return };
    let group = size("microbatch_group_size_per_vp_stage").unwrap_or(p.pp);
    let unit = micro.saturating_mul(p.dp);
    let changes = !c.args.list("rampup_batch_size").is_empty() || c.args.is_set("step_batch_size_schedule");
    if unit == 0 || !global.is_multiple_of(unit) || changes {
        return;
    }
    let count = global / unit;
    let rest = count % group;
    if rest != 0 && rest < p.pp {
        let v = c.invalid(
            &["--global-batch-size", PP],
            "the micro-batches do not fill the groups of the interleaved schedule",
        );
        v.arithmetic = Some(format!("{count} micro-batches % {group} (pipeline size {}) = {rest}", p.pp));
        let (below, above) = (count / group * group * unit, (count / group + 1) * group * unit);
        let below = if below > 0 { format!("{below} or ") } else { String::new() };
        v.legal = Some(format!("--global-batch-size {below}{above}; or no virtual stages"));
    }
}

fn uneven(c: &mut Checker, layers: usize, pp: usize, ends: [(&str, Option<usize>); 2], extra: usize) {
    let flags: Vec<&str> = ends.iter().filter(|(_, n)| n.is_some()).map(|(f, _)| *f).collect();
    if extra > 0 {
        c.invalid(&flags, "uneven stages do not combine with --account-for-embedding/-loss-in-pipeline-split");
        return;
    }
    let taken: usize = ends.iter().filter_map(|(_, n)| *n).fold(0, usize::saturating_add);
    let stages = pp.saturating_sub(flags.len());
    let rest = layers.checked_sub(taken);
    let fits = match rest {
        Some(rest) if stages > 0 => rest > 0 && rest.is_multiple_of(stages),
        Some(rest) => rest == 0 && pp == flags.len(),
        None => false,
    };
    if !fits {
        let v = c.invalid(&flags, "the remaining layers do not divide over the remaining stages");
        v.arithmetic =
            Some(format!("{layers} layers - {taken} = {} for {stages} stages", layers as i128 - taken as i128));
        v.why = Some("the first and last stage take what is stated, the others share the rest equally".into());
    }
}
