//! The division of layers over stages and chunks, and the order of the work.

use ferrotron_schedule::{Kind, LayerSplit, LayoutError, VirtualStages, Way, parse_layout};

use super::checker::{Checker, divisors, list, plural};
use crate::settings::{ModelConfig, ParallelConfig};
use crate::value::Value;

const PP: &str = "--pipeline-model-parallel-size";
const CHUNK: &str = "--num-layers-per-virtual-pipeline-stage";
const CHUNKS: &str = "--num-virtual-stages-per-pipeline-rank";
const LAYOUT: &str = "--pipeline-model-parallel-layout";
const FIRST: &str = "--decoder-first-pipeline-num-layers";
const LAST: &str = "--decoder-last-pipeline-num-layers";
const LIST: &str = "--num-layer-list";
const METHOD: &str = "--pp-partition-method";
const GROUP: &str = "--microbatch-group-size-per-virtual-pipeline-stage";
const SCHEDULE: &str = "--pipeline-schedule";

/// Fills in the layers of every virtual stage and the schedule (Megatron: `get_num_layers_to_build`, `validate_args`).
pub(super) fn check(c: &mut Checker, p: &mut ParallelConfig, model: &ModelConfig) {
    p.microbatch_group = c.size("microbatch_group_size_per_vp_stage").unwrap_or(p.pp);
    let Some(layers) = c.args.int("num_layers").and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0) else {
        return;
    };
    let Some((way, flags)) = division(c, layers, p, model) else { return };
    match (LayerSplit { layers, stages: p.pp, way }).counts() {
        Ok(counts) => {
            p.virtual_stages = counts.len() / p.pp;
            p.stage_layers = counts;
        }
        Err(e) => {
            c.invalid(&flags, e.to_string());
            return;
        }
    }
    if p.virtual_stages > 1 {
        interleaving(c, p, &flags);
    }
    p.schedule = kind(c, p.virtual_stages);
}

/// How the layers are divided, and the flags that say so; `None` when they contradict each other.
fn division(
    c: &mut Checker,
    layers: usize,
    p: &ParallelConfig,
    model: &ModelConfig,
) -> Option<(Way, Vec<&'static str>)> {
    let pp = p.pp;
    let chunk = c.size("num_layers_per_virtual_pipeline_stage");
    let chunks = c.size("num_virtual_stages_per_pipeline_rank");
    let first = c.size("decoder_first_pipeline_num_layers");
    let last = c.size("decoder_last_pipeline_num_layers");
    let layout = c.args.text("pipeline_model_parallel_layout").map(str::to_string);
    let stages = c.args.text("num_layer_list").map(str::to_string);
    let embedding = c.args.flag("account_for_embedding_in_pipeline_split");
    let loss = c.args.flag("account_for_loss_in_pipeline_split");
    let ways = [chunk.is_some(), chunks.is_some(), layout.is_some()].iter().filter(|b| **b).count();
    if ways > 1 {
        c.invalid(&[CHUNK, CHUNKS, LAYOUT], format!("at most one of {CHUNK}, {CHUNKS}, {LAYOUT} may be given"));
        return None;
    }
    if let Some(text) = layout {
        let others = [
            (first.is_some() || last.is_some(), format!("{FIRST} / {LAST}")),
            (stages.is_some(), LIST.to_string()),
            (embedding || loss, "--account-for-embedding/-loss-in-pipeline-split".to_string()),
        ];
        if let Some((_, other)) = others.iter().find(|o| o.0) {
            let what = format!("{LAYOUT} already says how many layers the first and last stage have: not with {other}");
            c.invalid(&[LAYOUT, FIRST, LAST], what);
            return None;
        }
        return match parse_layout(&text) {
            Ok(counts) => Some((Way::Virtual(counts), vec![LAYOUT, PP, "--num-layers"])),
            // Legal upstream.
            Err(e @ LayoutError::Prediction) => {
                c.planned(&[LAYOUT], e.to_string());
                None
            }
            Err(e) => {
                c.invalid(&[LAYOUT], e.to_string());
                None
            }
        };
    }
    // MindSpeed states the layers of every stage; Megatron-DeepSpeed balances stages by a method or by itself.
    if let Some(text) = stages {
        if ways > 0 {
            c.invalid(&[LIST, CHUNK, CHUNKS], format!("{LIST} states whole stages: not with virtual stages"));
            return None;
        }
        return layer_list(c, &text, layers, pp).map(|way| (way, vec![LIST, PP, "--num-layers"]));
    }
    if let Some(text) = c.args.text("pp_partition_method").map(str::to_string) {
        if ways > 0 || first.is_some() || last.is_some() || embedding || loss {
            let flags = [METHOD, CHUNK, CHUNKS, FIRST, LAST];
            c.invalid(&flags, format!("{METHOD} divides all layers by itself: not with other flags that divide them"));
            return None;
        }
        return super::partition::way(c, &text, model, p.tp).map(|way| (way, vec![METHOD, PP, "--num-layers"]));
    }
    if c.args.flag("deepspeed") && !c.args.flag("no_pipeline_parallel") {
        // An even division with chunks is asked for in words of its own.
        if ways == 0 && first.is_none() && last.is_none() && !embedding && !loss {
            return Some((Way::Balanced, vec!["--num-layers", PP]));
        }
    }
    let extra = usize::from(embedding) + usize::from(loss);
    if first.is_some() || last.is_some() {
        let fits = uneven(c, layers, pp, [(FIRST, first), (LAST, last)], extra);
        if chunk.is_some() {
            c.invalid(
                &[CHUNK, FIRST, LAST],
                format!("{CHUNK} needs equal stages; use {CHUNKS} with {FIRST} or {LAST}"),
            );
            return None;
        }
        let way = Way::Ends { chunks: chunks.unwrap_or(1), first, last };
        return fits.then(|| (way, vec![FIRST, LAST, CHUNKS]));
    }
    let total = layers.saturating_add(extra);
    if !total.is_multiple_of(pp) {
        let v = c.invalid(&["--num-layers", PP], "the layers do not divide into equal stages");
        let plus = if extra > 0 { format!(" + {extra} for embedding and loss") } else { String::new() };
        v.arithmetic = Some(format!("{layers} layers{plus} % {pp} stages = {}", total % pp));
        v.legal = Some(format!("{PP} {}; or {FIRST} / {LAST} for uneven stages", list(&divisors(total))));
        v.why = Some("each stage holds the same number of layers; none may vanish".into());
        return None;
    }
    let per_stage = total / pp;
    if let Some((flag, n)) = chunk.map(|n| (CHUNK, n)).or(chunks.map(|n| (CHUNKS, n)))
        && !per_stage.is_multiple_of(n)
    {
        let v = c.invalid(&["--num-layers", PP, flag], "the layers of a stage do not divide into chunks");
        v.arithmetic =
            Some(format!("{total} layers / {pp} stages = {per_stage} a stage; {per_stage} % {n} = {}", per_stage % n));
        v.legal = Some(format!("{flag} {}", list(&divisors(per_stage))));
        return None;
    }
    let flag = if chunk.is_some() { CHUNK } else { CHUNKS };
    let chunks = match chunk {
        Some(n) => VirtualStages::OfLayers(n),
        None => VirtualStages::Count(chunks.unwrap_or(1)),
    };
    Some((Way::Even { chunks, embedding, loss }, vec![flag, PP]))
}

/// The order of forwards and backwards.
fn kind(c: &mut Checker, virtual_stages: usize) -> Kind {
    const ZERO_BUBBLE: &str = "--enable-zbh1-pipeline";
    let asked = match c.args.text("pipeline_schedule") {
        Some("gpipe") => Some(Kind::GPipe),
        Some("zb-h1") => Some(Kind::ZbH1),
        Some("interleaved") => Some(Kind::Interleaved),
        Some(_) => Some(Kind::OneFOneB),
        None => None,
    };
    let (kind, flag) = match (asked, c.args.flag("enable_zbh1_pipeline")) {
        (None, false) => return if virtual_stages > 1 { Kind::Interleaved } else { Kind::OneFOneB },
        (None, true) => (Kind::ZbH1, ZERO_BUBBLE),
        (Some(kind), zero_bubble) => {
            if zero_bubble && kind != Kind::ZbH1 {
                c.invalid(&[SCHEDULE, ZERO_BUBBLE], format!("{SCHEDULE} {kind} contradicts {ZERO_BUBBLE}"));
            }
            (kind, SCHEDULE)
        }
    };
    match (kind, virtual_stages > 1) {
        (Kind::Interleaved, false) => {
            c.invalid(&[SCHEDULE], format!("{SCHEDULE} interleaved needs virtual stages")).legal =
                Some(format!("{CHUNK} or {CHUNKS}; or {SCHEDULE} 1f1b"));
        }
        (Kind::OneFOneB | Kind::ZbH1, true) => {
            c.invalid(&[flag, CHUNK, CHUNKS], format!("schedule {kind} runs one chunk a stage")).legal =
                Some(format!("{SCHEDULE} interleaved or gpipe; or no virtual stages"));
        }
        _ => {}
    }
    kind
}

/// `--num-layer-list 5,6,5`: one count a stage, all layers in sum.
fn layer_list(c: &mut Checker, text: &str, layers: usize, pp: usize) -> Option<Way> {
    let counts: Option<Vec<usize>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
    let Some(counts) = counts else {
        c.invalid(&[LIST], format!("{LIST} '{text}' is no list of whole numbers")).legal =
            Some("one count for each stage, joined by commas".into());
        return None;
    };
    let sum = counts.iter().fold(0usize, |a, b| a.saturating_add(*b));
    if counts.len() != pp || sum != layers {
        let v = c.invalid(&[LIST, PP, "--num-layers"], "the layers of the stages do not add up");
        v.arithmetic = Some(format!("{} counts for {}, {sum} layers of {layers}", counts.len(), plural(pp, "stage")));
        return None;
    }
    Some(Way::Stages(counts))
}

fn interleaving(c: &mut Checker, p: &ParallelConfig, flags: &[&str]) {
    let overlap = !matches!(c.args.value("overlap_p2p_comm"), Value::Bool(false));
    let least = if overlap { 2 } else { 3 };
    if p.pp < least {
        let v = c.invalid(flags, "the interleaved schedule needs more pipeline stages");
        v.arithmetic = Some(format!("{}, at least {least} needed", plural(p.pp, "stage")));
        v.legal = Some(format!("{PP} {least} or more, or no virtual stages"));
    } else {
        groups(c, p);
    }
}

/// Micro-batches pass the chunks of a stage in groups; a last group smaller than the pipeline would leave stages waiting for
/// each other (Megatron: `get_schedule_table`).
fn groups(c: &mut Checker, p: &ParallelConfig) {
    if p.microbatch_group < p.pp {
        let v = c.invalid(&[GROUP, PP], "a group of micro-batches is smaller than the pipeline");
        v.arithmetic = Some(format!("groups of {}, {}", p.microbatch_group, plural(p.pp, "stage")));
        v.legal = Some(format!("{GROUP} {} or more", p.pp));
        return;
    }
    let size = |dest| c.args.int(dest).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let (Some(global), Some(micro)) = (size("global_batch_size"), size("micro_batch_size")) else { return };
    let group = p.microbatch_group;
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

fn uneven(c: &mut Checker, layers: usize, pp: usize, ends: [(&str, Option<usize>); 2], extra: usize) -> bool {
    let flags: Vec<&str> = ends.iter().filter(|(_, n)| n.is_some()).map(|(f, _)| *f).collect();
    if extra > 0 {
        c.invalid(&flags, "uneven stages do not combine with --account-for-embedding/-loss-in-pipeline-split");
        return false;
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
    fits
}
