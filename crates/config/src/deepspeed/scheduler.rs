//! The section `scheduler` (deepspeed/runtime/lr_schedules.py).
//!
//! DeepSpeed's schedules make a step after each update, from step -1: update k (from 0) is at g(k - 1), with g(-1) = 0 and
//! g(t) = ln(t + 1)/ln N or t/N below N = max(2, `warmup_num_steps`), so that lr = min + (max - min)·g starts with two equal
//! rates. Megatron's warm-up is init + (lr - init)·k/W. They are equal for every k only where nothing rises: min = max, which
//! makes WarmupLR and WarmupDecayLR (whose tail is scaled by the same difference) the constant max. WarmupCosineLR is 0 at k = 0
//! whatever its ratios, so never equal.

use super::merge::Merge;
use super::node::{Data, Node};
use super::stated::Stated;
use crate::validate::checker::Checker;
use crate::value::Value;

const WHY: &str = "DeepSpeed's schedules are not there yet: their warm-up begins with two updates at the lowest rate, Megatron's \
    rises from the first on";
const INSTEAD: &str = "the file without scheduler, and --lr-warmup-iters, --lr-decay-style, --lr-decay-iters, --min-lr";
const RATE: &str = "scheduler.params.warmup_max_lr";

/// Keeps the rate of a constant schedule; any other stops the run.
pub(super) fn look(s: &mut Stated, c: &mut Checker, members: &[(String, Node)]) {
    let of = |name: &str| members.iter().find(|(n, _)| n == name).map(|(_, node)| node);
    let Some(kind) = of("type").filter(|node| node.data != Data::Null) else { return };
    let Some(name) = kind.text() else {
        return s.fault(c, "scheduler.type", kind, "no name", "WarmupLR, WarmupDecayLR, WarmupCosineLR");
    };
    let params = of("params").and_then(Node::members).unwrap_or_default();
    let rate = |name: &str| params.iter().find(|(n, _)| n == name).map(|(_, node)| node);
    match (rate("warmup_min_lr"), rate("warmup_max_lr")) {
        (Some(low), Some(high))
            if matches!(name, "WarmupLR" | "WarmupDecayLR")
                && low.number().is_some()
                && low.number() == high.number() =>
        {
            s.acting.insert(RATE.into(), high.clone());
        }
        _ => s.stop(true, WHY, INSTEAD, format!("scheduler.type: {} ({})", kind.shown(), s.place(kind))),
    }
}

/// The rate of a constant schedule and its shape.
pub(super) fn merge(m: &mut Merge, c: &mut Checker) {
    let Some(rate) = m.number(RATE) else { return };
    m.put(c, RATE, "lr", Value::Float(rate));
    m.put(c, RATE, "lr_decay_style", Value::Str("constant".into()));
    // A warm-up of the command line's contradicts a constant rate.
    for dest in ["lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction"] {
        if c.args.given(dest) {
            m.put(c, RATE, dest, Value::Int(0));
        }
    }
}
