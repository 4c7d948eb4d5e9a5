//! Rules of mixture-of-experts flags (Megatron: `TransformerConfig.__post_init__`, `validate_args`). None of them speaks
//! for a dense model, save that expert sizes need experts.

use super::checker::Checker;
use crate::flags::Source;
use crate::value::Value;

const DISPATCHER: &str = "--moe-token-dispatcher-type";
const SCORE: &str = "--moe-router-score-function";
const BALANCING: &str = "--moe-router-load-balancing-type";
const CAPACITY: &str = "--moe-expert-capacity-factor";

pub(super) fn check(c: &mut Checker, tp: usize) {
    if !has_experts(c) {
        if c.given_any(&["moe_ffn_hidden_size"]) {
            let flags = ["--moe-ffn-hidden-size", "--num-experts"];
            c.invalid(&flags, "--moe-ffn-hidden-size without --num-experts").why =
                Some("it is the width of an expert, and a dense model has none".into());
        }
        return;
    }
    router(c);
    capacity(c);
    dispatch(c);
    let etp = c.size("expert_tensor_parallel_size").unwrap_or(tp);
    // MindSpeed and ModelLink split experts by a code path of their own.
    if etp > 1 && c.args.flag("add_bias_linear") && !c.speaks(Source::MindSpeed) {
        let flags = ["--num-experts", "--expert-tensor-parallel-size", "--disable-bias-linear"];
        let v = c.invalid(&flags, "experts with biases cannot be split over tensor-parallel ranks");
        v.arithmetic = Some(format!("expert tensor parallel size {etp}"));
        v.legal = Some("--disable-bias-linear, or --expert-tensor-parallel-size 1".into());
    }
    if c.args.flag("moe_use_upcycling") && c.path("save").is_none() {
        c.invalid(
            &["--moe-use-upcycling", "--save"],
            "--moe-use-upcycling needs --save, where it writes the new model",
        );
    }
}

pub(super) fn has_experts(c: &Checker) -> bool {
    match c.args.value("num_experts") {
        Value::Int(n) => *n > 0,
        Value::List(items) => items.iter().any(|v| matches!(v, Value::Int(n) if *n > 0)),
        _ => false,
    }
}

fn router(c: &mut Checker) {
    let score = c.args.text("moe_router_score_function").unwrap_or("softmax").to_string();
    let balancing = c.args.texts("moe_router_load_balancing_type");
    let sinkhorn = balancing.iter().any(|b| b == "sinkhorn");
    let topk = c.args.int("moe_router_topk").unwrap_or(2);
    if topk == 1 && score == "softmax" && !c.args.flag("moe_router_pre_softmax") && !sinkhorn {
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
    let sinkhorn = c.args.texts("moe_router_load_balancing_type").iter().any(|b| b == "sinkhorn");
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
