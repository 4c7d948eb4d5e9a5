//! From what was typed to what it means: completes values, checks every rule, and makes the [`Config`].
//!
//! The rules are Megatron's (`validate_args`, `TransformerConfig`, `OptimizerParamScheduler`,
//! `num_microbatches_calculator`), one file per topic. No rule stops at the first mistake; a rule whose inputs are absent
//! or unreadable stays silent, so that one mistake gives one message.

mod batch;
pub(crate) mod checker;
mod checkpoint;
mod data;
mod logging;
mod model;
mod moe;
mod optim;
mod parallel;
mod partition;
mod schedule;
mod stages;
mod train;
pub mod upstream;
mod vendor;

use serde::Serialize;

use crate::env::Environment;
use crate::flags::{Status, Table};
use crate::parser::shell_variable;
use crate::raw::{Entry, Origin, RawArgs};
use crate::settings::{Config, DeviceKind};
use crate::value::Value;
use crate::violation::{Severity, Violation};
use checker::Checker;

/// Something the user should know that does not stop the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// What sort.
    pub kind: NoticeKind,
    /// One line.
    pub text: String,
}

/// Sorts of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// A value was completed or changed, as upstream does.
    Adjusted,
    /// Accepted flags that change nothing here.
    NoEffect,
    /// Legal, but probably not meant.
    Warning,
}

/// A valid command line.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What it means.
    pub config: Config,
    /// All values after completion, with their origins: the arguments dump, and what checkpoints store.
    pub args: RawArgs,
    /// What the user should know.
    pub notices: Vec<Notice>,
}

/// A command line that cannot be trained (now).
#[derive(Clone, Debug)]
pub struct Refused {
    /// Every reason. If all are [`Severity::Planned`] the command line is valid.
    pub violations: Vec<Violation>,
    /// Notices collected on the way.
    pub notices: Vec<Notice>,
    /// Values as far as they could be completed.
    pub args: RawArgs,
}

/// Validates `args` for the ranks of `env`. `parse_faults` are the mistakes already found by parsing; they open the
/// list.
///
/// # Errors
/// Every violation.
pub fn validate(
    table: &Table,
    args: RawArgs,
    env: &Environment,
    parse_faults: Vec<Violation>,
) -> Result<Resolved, Box<Refused>> {
    let mut c = Checker::new(table, args, env, parse_faults);
    let strict = c.args.flag("strict");
    let deepspeed = crate::deepspeed::check(&mut c);
    model::before(&mut c);
    statuses(&mut c, table);
    unexpanded(&mut c);
    let mut parallel = parallel::check(&mut c);
    deepspeed.batch(&mut c, parallel.dp);
    let data = data::check(&mut c);
    let mut model = model::check(&mut c, &parallel);
    stages::check(&mut c, &mut parallel, &model);
    let batch = batch::check(&mut c, &parallel);
    schedule::tokens(&mut c, batch.global);
    let length = schedule::length(&mut c);
    let (lr, weight_decay) = schedule::check(&mut c, length);
    let mut train = train::check(&mut c, &parallel, batch, length);
    let optim = optim::check(&mut c, lr, weight_decay, train.params_dtype);
    let eval = batch::check_eval(&mut c, &parallel, &train);
    let checkpoint = checkpoint::check(&mut c);
    let log = logging::check(&mut c);
    let device = match c.args.text("device") {
        Some("cpu") => DeviceKind::Cpu,
        Some("npu") => DeviceKind::Npu,
        Some("cuda") => DeviceKind::Cuda,
        _ => DeviceKind::Auto,
    };
    model.moe = moe::check(&mut c, &mut parallel, model.ffn_hidden_size);
    train.steps_before_graphs = vendor::graphs(&mut c, model.moe.is_some(), device);
    vendor::check(&mut c, &parallel, device);
    c.report_missing();
    if strict {
        for notice in c.notices.iter().filter(|n| n.kind != NoticeKind::Adjusted) {
            c.violations
                .push(Violation::new(Severity::Invalid, &["--strict"], notice.text.clone()).why("--strict is on"));
        }
    }
    c.args.set("params_dtype", Value::Str(train.params_dtype.torch_name().to_string()), derived("precision flags"), "");
    let Checker { args, mut violations, notices, .. } = c;
    crate::deepspeed::name_places(&args, &mut violations);
    if !violations.is_empty() {
        return Err(Box::new(Refused { violations, notices, args }));
    }
    let config = Config { model, train, optim, data, checkpoint, eval, log, parallel, device };
    Ok(Resolved { config, args, notices })
}

fn derived(rule: &str) -> Origin {
    Origin::Derived(rule.to_string())
}

/// `--save $SAVE_DIR` taken literally makes a folder of that name: probably not meant.
fn unexpanded(c: &mut Checker) {
    let found: Vec<String> = c
        .args
        .iter()
        .filter(|(_, entry)| entry.origin != Origin::Default)
        .filter_map(|(_, entry)| {
            let text = entry.value.to_string();
            let name = shell_variable(&text)?.to_string();
            Some(format!("{} {text}: {name} is a shell variable that was not expanded", entry.spelling))
        })
        .collect();
    for text in found {
        c.warn(text);
    }
}

fn is_yaml_default(entry: &Entry, default: &Value) -> bool {
    matches!(entry.origin, Origin::Yaml { .. }) && entry.value == *default
}

/// True for a `--spec` that names Python code whose layers the other flags state already: MindSpeed-LLM's of Qwen 3.
fn is_known_spec(entry: &Entry) -> bool {
    const KNOWN: [&str; 1] = ["mindspeed_llm.tasks.models.spec.qwen3_spec"];
    entry.spelling == "--spec"
        && matches!(&entry.value, Value::List(words) if words.first().is_some_and(|w| KNOWN.contains(&w.to_string().as_str())))
}

/// Planned flags become violations, flags without effect become notices; one of each per reason.
fn statuses(c: &mut Checker, table: &Table) {
    let mut planned: Vec<(&str, Vec<String>)> = Vec::new();
    let mut idle: Vec<(&str, Vec<String>)> = Vec::new();
    for (_, entry) in c.args.iter() {
        if matches!(entry.origin, Origin::Default | Origin::Derived(_)) {
            continue;
        }
        let Some((row, _)) = table.find(&entry.spelling) else { continue };
        let (list, reason) = match row.status {
            // A YAML file that lists everything at its default asks for nothing.
            Status::NoEffect(_) if is_yaml_default(entry, &row.flag.default.value()) => continue,
            Status::NoEffect(reason) => (&mut idle, reason),
            Status::Planned(_) if is_known_spec(entry) => {
                (&mut idle, "the layers are those that the other flags state")
            }
            Status::Planned(reason) if entry.value != row.flag.default.value() => (&mut planned, reason),
            _ => continue,
        };
        match list.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, flags)) => flags.push(entry.spelling.clone()),
            None => list.push((reason, vec![entry.spelling.clone()])),
        }
    }
    if !c.args.passed_over().is_empty() {
        let keys = c.args.passed_over().join(" ");
        c.notice(NoticeKind::NoEffect, format!("no effect: {keys} (upstream settings that no flag has)"));
    }
    for (reason, flags) in idle {
        c.notice(NoticeKind::NoEffect, format!("no effect: {} ({reason})", flags.join(" ")));
    }
    for (reason, flags) in planned {
        let names: Vec<&str> = flags.iter().map(String::as_str).collect();
        let what = format!("{}: {reason}", names.join(" "));
        c.violations.push(Violation::new(Severity::Planned, &names, what));
    }
}
