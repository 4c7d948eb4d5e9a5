//! The section `optimizer` (deepspeed/runtime/engine.py, `_configure_basic_optimizer`).

use super::keys::{self, Section};
use super::merge::Merge;
use super::node::{Data, Node};
use super::stated::{FLAG, Stated};
use crate::validate::checker::Checker;
use crate::value::Value;

/// Names that DeepSpeed lower-cases, with error feedback over one bit.
const ONE_BIT: &[&str] = &["onebitadam", "zerooneadam", "onebitlamb"];
/// Its µP optimizers.
const MU: &[&str] = &["muadam", "muadamw", "musgd"];

/// Judges type and parameters. Parameters of a type that is not there are not looked at: the type stops the run.
pub(super) fn look(
    s: &mut Stated,
    c: &mut Checker,
    root: &Node,
    section: &'static Section,
    members: &[(String, Node)],
) {
    let name = members.iter().find(|(n, _)| n == "type").and_then(|(_, node)| Some((node.text()?, node)));
    if let Some((name, node)) = name.filter(|(name, _)| *name != "auto") {
        let key = format!("optimizer.type: {} ({})", node.shown(), s.place(node));
        let known = name.to_ascii_lowercase();
        let instead = "optimizer.type Adam, AdamW or SGD";
        let ours = matches!(known.as_str(), "adam" | "adamw" | "sgd");
        if !ours {
            c.args.mark_broken("lr"); // written in parameters that are not looked at: not missing
        }
        if ONE_BIT.contains(&known.as_str()) || MU.contains(&known.as_str()) {
            return s.stop(false, "1-bit and mu optimizers are not supported", instead, key);
        }
        if !ours {
            return s.stop(true, "this optimizer is not there yet; Adam, AdamW and SGD are", instead, key);
        }
    }
    let (params, own): (Vec<_>, Vec<_>) = members.iter().cloned().partition(|(n, _)| n == "params");
    s.walk(c, root, section, &own);
    let inner = keys::section("optimizer.params");
    match (params.first().map(|(_, node)| node), inner) {
        (Some(Node { data: Data::Object(params), .. }), Some(inner)) => s.walk(c, root, inner, params),
        (Some(node), _) if node.data != Data::Null => s.fault(c, "optimizer.params", node, "no section", "{ ... }"),
        _ => {}
    }
}

/// Puts type and parameters into the arguments. What neither the file nor the command line states is DeepSpeed's default.
pub(super) fn merge(m: &mut Merge, c: &mut Checker) {
    let Some(name) = m.text("optimizer.type").map(|t| t.to_ascii_lowercase()) else {
        // Without a type DeepSpeed passes over the parameters.
        return;
    };
    let sgd = name == "sgd";
    m.put(c, "optimizer.type", "optimizer", Value::Str(if sgd { "sgd" } else { "adam" }.into()));
    let real = |m: &mut Merge, c: &mut Checker, key: &str, dest: &str, default: f64| match m.number(key) {
        Some(x) => m.put(c, key, dest, Value::Float(x)),
        None => m.default(c, key, dest, Value::Float(default)),
    };
    // A scheduler sets the rate before the first update.
    if !m.states("scheduler.params.warmup_max_lr") {
        real(m, c, "optimizer.params.lr", "lr", 1e-3);
    }
    real(m, c, "optimizer.params.weight_decay", "weight_decay", 0.0);
    if sgd {
        real(m, c, "optimizer.params.momentum", "sgd_momentum", 0.0);
    } else {
        real(m, c, "optimizer.params.eps", "adam_eps", 1e-8);
        betas(m, c);
    }
    if let Some(norm) = m.number("optimizer.params.max_grad_norm").filter(|_| !m.states("gradient_clipping")) {
        m.put(c, "optimizer.params.max_grad_norm", "clip_grad", Value::Float(norm));
    }
    let coupled = name == "adam" && m.truth("optimizer.params.adam_w_mode") == Some(false);
    if coupled && c.args.float("weight_decay") != Some(0.0) {
        let place = m.place("optimizer.params.adam_w_mode");
        let what = format!(
            "optimizer.params.adam_w_mode: false ({place}): a weight decay within Adam's gradient is not there yet"
        );
        c.planned(&[FLAG], what).legal =
            Some("adam_w_mode: true, or weight_decay: 0, with which both are the same".into());
    }
}

fn betas(m: &mut Merge, c: &mut Checker) {
    const KEY: &str = "optimizer.params.betas";
    let both = match m.node(KEY) {
        None => None,
        Some(node) => match &node.data {
            Data::List(items) if items.len() == 2 => Some([items[0].number(), items[1].number()]),
            _ => Some([None, None]),
        },
    };
    let dests = ["adam_beta1", "adam_beta2"];
    match both {
        Some([Some(first), Some(second)]) => {
            for (dest, beta) in dests.into_iter().zip([first, second]) {
                m.put(c, KEY, dest, Value::Float(beta));
            }
        }
        Some(_) => m.fault(c, KEY, "no pair of numbers", "[0.9, 0.999]"),
        None => {
            for (dest, beta) in dests.into_iter().zip([0.9, 0.999]) {
                m.default(c, KEY, dest, Value::Float(beta));
            }
        }
    }
}
