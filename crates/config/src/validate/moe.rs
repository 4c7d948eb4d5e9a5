//! Rules of mixture-of-experts flags (Megatron: `TransformerConfig.__post_init__`, `validate_args`), and what they come
//! to. None of them speaks for a dense model, save that expert sizes need experts and that other flags have no effect.

mod layers;

use super::NoticeKind;
use super::checker::Checker;
use crate::flags::Source;
use crate::settings::{ModelConfig, MoeConfig, ParallelConfig};
use crate::value::Value;

const DISPATCHER: &str = "--moe-token-dispatcher-type";
const SCORE: &str = "--moe-router-score-function";
const BALANCING: &str = "--moe-router-load-balancing-type";
const CAPACITY: &str = "--moe-expert-capacity-factor";
const EP: &str = "--expert-model-parallel-size";
const ETP: &str = "--expert-tensor-parallel-size";
const ETP_DEST: &str = "expert_tensor_parallel_size";

/// Flags that act here, but not for a dense model, which scripts often give them all the same.
const ONLY_WITH_EXPERTS: [&str; 14] = [
    "moe_layer_freq",
    "first_k_dense_replace",
    "moe_shared_expert_intermediate_size",
    "n_shared_experts",
    "moe_router_topk",
    "moe_token_dispatcher_type",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "moe_router_pre_softmax",
    "norm_topk_prob",
    "moe_router_dtype",
    "moe_router_score_function",
    "moe_z_loss_coeff",
    ETP_DEST,
];

/// The experts of the layers of model `m`; `None` for a dense one.
pub(super) fn check(c: &mut Checker, p: &mut ParallelConfig, m: &ModelConfig) -> Option<MoeConfig> {
    if !has_experts(c) {
        dense(c);
        return None;
    }
    router(c);
    capacity(c);
    dispatch(c);
    let etp = c.size(ETP_DEST).unwrap_or(p.tp);
    // MindSpeed and ModelLink split experts by a code path of their own.
    if etp > 1 && c.args.flag("add_bias_linear") && !c.speaks(Source::MindSpeed) {
        let flags = ["--num-experts", ETP, "--disable-bias-linear"];
        let v = c.invalid(&flags, "experts with biases cannot be split over tensor-parallel ranks");
        v.arithmetic = Some(format!("expert tensor parallel size {etp}"));
        v.legal = Some(format!("--disable-bias-linear, or {ETP} 1"));
    }
    if c.args.flag("moe_use_upcycling") && c.path("save").is_none() {
        c.invalid(
            &["--moe-use-upcycling", "--save"],
            "--moe-use-upcycling needs --save, where it writes the new model",
        );
    }
    not_there_yet(c);
    expert_ranks(c, p, etp);
    shape(c, p, m)
}

/// Flags that act only with experts.
fn dense(c: &mut Checker) {
    if c.given_any(&["moe_ffn_hidden_size"]) {
        let flags = ["--moe-ffn-hidden-size", "--num-experts"];
        c.invalid(&flags, "--moe-ffn-hidden-size without --num-experts").why =
            Some("it is the width of an expert, and a dense model has none".into());
    }
    let idle: Vec<String> =
        ONLY_WITH_EXPERTS.iter().filter(|d| c.given_any(&[d])).map(|d| c.args.spelling(d)).collect();
    if !idle.is_empty() {
        let flags = idle.join(" ");
        let text = format!("no effect: {flags} (concerns mixture-of-experts layers, and acts only with --num-experts)");
        c.notice(NoticeKind::NoEffect, text);
    }
}

/// Values and flags of other parsers that ask for what no layer here does.
fn not_there_yet(c: &mut Checker) {
    if matches!(c.args.value("num_experts"), Value::List(_)) {
        c.planned(&["--num-experts"], "--num-experts with a number for each layer is not there yet").legal =
            Some("one number".into());
    }
    let balancing = balancing(c);
    if balancing.len() > 1 || !matches!(balancing.first().map(String::as_str), None | Some("aux_loss" | "none")) {
        c.planned(&[BALANCING], format!("{BALANCING} {} is not there yet", balancing.join(" "))).legal =
            Some("aux_loss or none".into());
    }
    for (dest, flag, legal) in
        [("moe_router_score_function", SCORE, "softmax"), ("moe_router_dtype", "--moe-router-dtype", "fp32")]
    {
        if let Some(other) = c.args.text(dest).filter(|value| *value != legal).map(str::to_string) {
            c.planned(&[flag], format!("{flag} {other} is not there yet")).legal = Some(legal.into());
        }
    }
    let deepspeed = ["moe_loss_coeff", "moe_train_capacity_factor", "moe_eval_capacity_factor", "moe_min_capacity"];
    let given: Vec<String> = deepspeed.iter().filter(|d| c.given_any(&[d])).map(|d| c.args.spelling(d)).collect();
    if !given.is_empty() {
        let names: Vec<&str> = given.iter().map(String::as_str).collect();
        c.planned(&names, format!("{}: DeepSpeed's experts are not there yet", names.join(" "))).legal =
            Some("--moe-aux-loss-coeff; no token is dropped".into());
    }
}

/// The mesh of experts.
fn expert_ranks(c: &mut Checker, p: &mut ParallelConfig, etp: usize) {
    const TP: &str = "--tensor-model-parallel-size";
    p.etp = etp;
    if etp != p.tp && etp != 1 {
        c.planned(&[ETP, TP], format!("{ETP} {etp} with {TP} {} is not there yet", p.tp)).legal =
            Some(format!("1 or {}", p.tp));
    } else if etp != p.tp && !p.sequence_parallel {
        c.planned(&[ETP, "--sequence-parallel"], format!("{ETP} 1 with {TP} {} needs --sequence-parallel", p.tp)).why =
            Some("tensor-parallel ranks with whole experts must have rows of their own".into());
    }
    let product = etp.saturating_mul(p.ep).saturating_mul(p.pp);
    if !p.world_size.is_multiple_of(product) {
        let flags = [EP, ETP, "--pipeline-model-parallel-size"];
        let v = c.invalid(&flags, "the ranks do not divide into groups that hold all experts");
        v.arithmetic = Some(format!(
            "{} ranks % (expert {} x expert tensor {etp} x pipeline {} = {product}) = {}",
            p.world_size,
            p.ep,
            p.pp,
            p.world_size % product
        ));
        v.legal = Some(format!("a multiple of {product} ranks, or a smaller {EP}"));
    } else if !(p.world_size / product).is_multiple_of(p.optimizer_instances) {
        let flags = ["--num-distributed-optimizer-instances", EP];
        let v = c.invalid(&flags, "the optimizer instances do not divide the replicas of an expert");
        v.arithmetic = Some(format!("{} replicas, {} instances", p.world_size / product, p.optimizer_instances));
    }
}

fn shape(c: &mut Checker, p: &ParallelConfig, m: &ModelConfig) -> Option<MoeConfig> {
    let ffn = m.ffn_hidden_size;
    let num_experts = c.args.int("num_experts").and_then(|n| usize::try_from(n).ok())?;
    let given = c.size("moe_ffn_hidden_size");
    if given.is_none() && !c.args.is_broken("moe_ffn_hidden_size") {
        c.derive_size("moe_ffn_hidden_size", ffn, "--ffn-hidden-size");
    }
    let width = given.unwrap_or(ffn);
    if !width.is_multiple_of(p.etp) {
        let flags = ["--moe-ffn-hidden-size", ETP];
        let v = c.invalid(&flags, "the width of an expert does not divide over the ranks that share it");
        v.arithmetic = Some(format!("{width} % {} = {}", p.etp, width % p.etp));
    }
    let balanced = balancing(c).iter().all(|b| b == "aux_loss");
    let coefficient = match c.args.list("moe_aux_loss_coeff").first() {
        Some(Value::Float(f)) => Some(*f),
        Some(Value::Int(n)) => Some(*n as f64),
        _ => c.args.float("moe_aux_loss_coeff"),
    };
    let aux_loss_coeff = coefficient.unwrap_or(0.0);
    if !(aux_loss_coeff.is_finite() && aux_loss_coeff >= 0.0) {
        c.invalid(&["--moe-aux-loss-coeff"], format!("--moe-aux-loss-coeff {aux_loss_coeff} is out of range")).legal =
            Some("a finite number of at least 0".into());
    }
    Some(MoeConfig {
        num_experts,
        dense_layers: layers::dense(c, m.num_layers),
        router_topk: c.size("moe_router_topk").unwrap_or(2),
        ffn_hidden_size: width,
        shared_ffn_hidden_size: layers::shared(c, p, m, width),
        // Scores of all experts, of the chosen divided by their sum (--norm-topk-prob), are a softmax over the chosen.
        router_pre_softmax: c.args.flag("moe_router_pre_softmax") && !c.args.flag("norm_topk_prob"),
        aux_loss_coeff: if balanced { aux_loss_coeff } else { 0.0 },
        z_loss_coeff: c.real_from("moe_z_loss_coeff", 0.0).unwrap_or(0.0),
    })
}

pub(super) fn has_experts(c: &Checker) -> bool {
    match c.args.value("num_experts") {
        Value::Int(n) => *n > 0,
        Value::List(items) => items.iter().any(|v| matches!(v, Value::Int(n) if *n > 0)),
        _ => false,
    }
}

/// Balancing losses, as a list or alone; upstream's default when unset.
fn balancing(c: &Checker) -> Vec<String> {
    let dest = "moe_router_load_balancing_type";
    c.args.text(dest).map_or_else(|| c.args.texts(dest), |one| vec![one.to_string()])
}

fn router(c: &mut Checker) {
    let score = c.args.text("moe_router_score_function").unwrap_or("softmax").to_string();
    let balancing = balancing(c);
    let sinkhorn = balancing.iter().any(|b| b == "sinkhorn");
    let topk = c.args.int("moe_router_topk").unwrap_or(2);
    if topk == 1
        && score == "softmax"
        && !sinkhorn
        && (!c.args.flag("moe_router_pre_softmax") || c.args.flag("norm_topk_prob"))
    {
        let flags = ["--moe-router-topk", SCORE, "--moe-router-pre-softmax"];
        let v = c.invalid(&flags, "the softmax over one chosen expert is always 1, so the router would not learn");
        v.legal = Some("--moe-router-pre-softmax, or --moe-router-topk 2".into());
    }
    if let Value::Int(experts) = *c.args.value("num_experts")
        && topk > experts
    {
        let v = c.invalid(&["--moe-router-topk", "--num-experts"], "more experts are chosen than there are");
        v.arithmetic = Some(format!("--moe-router-topk {topk} > {experts} experts"));
    }
    let coefficients = c.args.list("moe_aux_loss_coeff").len();
    if balancing.len() > 1 && coefficients != balancing.len() {
        let v = c.invalid(&[BALANCING, "--moe-aux-loss-coeff"], "each balancing loss needs its coefficient");
        v.arithmetic = Some(format!("{} losses, {coefficients} coefficients", balancing.len()));
    }
    let normalised = !matches!(score.as_str(), "sigmoid" | "sqrtsoftplus");
    // MindSpeed's LongCat and MiniMax recipes add the bias to softmax scores.
    if c.args.flag("moe_router_enable_expert_bias") && normalised && !c.speaks(Source::MindSpeed) {
        let v = c.invalid(
            &["--moe-router-enable-expert-bias", SCORE],
            "the expert bias needs a score that is not normalised",
        );
        v.arithmetic = Some(format!("{SCORE} {score}"));
        v.legal = Some(format!("{SCORE} sigmoid or sqrtsoftplus"));
    }
    if let Some(group_topk) = c.args.int("moe_router_group_topk") {
        const GROUPS: &str = "--moe-router-num-groups";
        const GROUP_TOPK: &str = "--moe-router-group-topk";
        match (c.args.int("moe_router_num_groups"), c.args.int("num_experts")) {
            (None, _) => {
                c.invalid(&[GROUP_TOPK, GROUPS], format!("{GROUP_TOPK} needs {GROUPS}"));
            }
            (Some(groups), _) if group_topk > groups => {
                c.invalid(&[GROUP_TOPK, GROUPS], "more groups are chosen than there are").arithmetic =
                    Some(format!("{group_topk} > {groups} groups"));
            }
            (Some(groups), Some(experts)) if groups > 0 && experts % groups != 0 => {
                c.invalid(&[GROUPS, "--num-experts"], "the experts do not divide over the groups").arithmetic =
                    Some(format!("{experts} experts % {groups} groups = {}", experts % groups));
            }
            _ => {}
        }
    }
}

fn capacity(c: &mut Checker) {
    let sinkhorn = balancing(c).iter().any(|b| b == "sinkhorn");
    if c.args.float("moe_expert_capacity_factor").is_some_and(|f| f < 0.0) {
        c.derive("moe_expert_capacity_factor", Value::None, "a factor below 0 is none");
    }
    match c.args.float("moe_expert_capacity_factor") {
        Some(_) if sinkhorn => {
            c.invalid(&[CAPACITY, BALANCING], format!("{CAPACITY} does not go with {BALANCING} sinkhorn")).legal =
                Some(format!("{BALANCING} aux_loss, seq_aux_loss or none"));
        }
        None if c.args.flag("moe_pad_expert_input_to_capacity") => {
            let flags = ["--moe-pad-expert-input-to-capacity", CAPACITY];
            c.invalid(&flags, format!("--moe-pad-expert-input-to-capacity needs {CAPACITY}"));
        }
        _ => {}
    }
}

fn dispatch(c: &mut Checker) {
    let dispatcher = c.args.text("moe_token_dispatcher_type").unwrap_or("allgather").to_string();
    let all_to_all = matches!(dispatcher.as_str(), "alltoall" | "flex" | "alltoall_seq");
    let legal = || Some(format!("{DISPATCHER} alltoall"));
    if c.given_any(&["moe_token_dispatcher_type"]) && dispatcher != "alltoall" {
        let text = "tokens go by all-to-all here; the numbers do not change";
        c.notice(NoticeKind::NoEffect, format!("no effect: {DISPATCHER} {dispatcher} ({text})"));
    }
    if c.args.flag("moe_shared_expert_overlap") && !all_to_all {
        let flags = ["--moe-shared-expert-overlap", DISPATCHER];
        c.invalid(&flags, "--moe-shared-expert-overlap needs an all-to-all to hide behind").legal = legal();
    }
    if c.args.flag("variable_seq_lengths") && dispatcher == "allgather" {
        let flags = ["--variable-seq-lengths", DISPATCHER];
        c.invalid(&flags, "sequences of different lengths cannot be gathered").legal = legal();
    }
    if c.args.flag("moe_enable_deepep") && dispatcher != "flex" {
        c.warn(format!(
            "--moe-enable-deepep goes with {DISPATCHER} flex upstream; here the transport does not depend on it"
        ));
    }
    if !c.args.flag("overlap_moe_expert_parallel_comm") {
        return;
    }
    let wants: Vec<&str> = [
        (c.args.int("expert_model_parallel_size").unwrap_or(1) < 2, "an expert parallel size above 1"),
        (!all_to_all, "the alltoall or flex dispatcher"),
        (!c.args.flag("bf16") && !c.args.flag("fp16"), "--bf16 or --fp16"),
        (c.args.text("recompute_granularity") == Some("full"), "no full recomputation"),
        (c.args.flag("moe_shared_expert_overlap"), "no --moe-shared-expert-overlap"),
        (
            c.args.int("pipeline_model_parallel_size").unwrap_or(1) > 1
                && c.args.value("num_layers_per_virtual_pipeline_stage").is_none()
                && c.args.value("num_virtual_stages_per_pipeline_rank").is_none()
                && c.args.value("pipeline_model_parallel_layout").is_none(),
            "virtual stages when there are several stages",
        ),
        (c.args.int("mtp_num_layers").unwrap_or(0) > 1, "at most one layer of multi-token prediction"),
    ]
    .into_iter()
    .filter_map(|(missing, what)| missing.then_some(what))
    .collect();
    if !wants.is_empty() {
        let flag = "--overlap-moe-expert-parallel-comm";
        c.invalid(&[flag], format!("{flag} needs {}", wants.join(", ")));
    }
}
