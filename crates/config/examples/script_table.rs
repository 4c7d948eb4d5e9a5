//! Judges launch scripts and prints the table of `docs/scripts.md`:
//! `cargo run -p ferrotron-config --example script_table -- SCRIPTS.jsonl > docs/scripts.md`
//!
//! Input: one JSON object a line with `source`, `family`, `launcher_args`, `env`, `argv` and `upstream_ok` (does
//! Megatron main's own parser and validation take it).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ferrotron_config::{Environment, Severity, Table, Violation, parse, split_launcher, validate};
use serde_json::Value;

/// What becomes of a script.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Trains,
    Planned,
    /// Only things are absent that the collector of the scripts could not know.
    Incomplete,
    Refused,
}

impl Verdict {
    const ALL: [(Verdict, &str); 4] = [
        (Verdict::Trains, "trainable now"),
        (Verdict::Planned, "accepted, needs a planned feature"),
        (Verdict::Incomplete, "asks for what the script omits"),
        (Verdict::Refused, "refused"),
    ];

    fn words(self) -> &'static str {
        Verdict::ALL.iter().find(|(v, _)| *v == self).map_or("", |(_, words)| words)
    }
}

struct Judged {
    source: String,
    ranks: usize,
    upstream: &'static str,
    verdict: Verdict,
    reasons: Vec<String>,
    syntax: Vec<String>,
}

fn main() {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: script_table SCRIPTS.jsonl");
        std::process::exit(2);
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) => {
            eprintln!("script_table: {path}: {e}");
            std::process::exit(1);
        }
    };
    let table = Table::pretrain();
    let scripts: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let judged: Vec<Judged> = scripts.iter().map(|script| judge(&table, script)).collect();
    print!("{}", page(&judged));
}

fn words(json: &Value) -> Vec<String> {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_string);
    json.as_array().into_iter().flatten().map(text).collect()
}

/// Ranks: what the launcher's words or the environment say; else what one model and its experts need.
fn ranks(table: &Table, script: &Value, argv: &[String]) -> usize {
    let mut line = words(&script["launcher_args"]);
    line.push("pretrain_gpt.py".to_string());
    if let Some(n) = split_launcher(&line).0.world_size() {
        return n;
    }
    if let Some(n) = script["env"]["WORLD_SIZE"].as_str().and_then(|n| n.parse().ok()) {
        return n;
    }
    let args = parse(table, argv, &|_| Err(std::io::Error::other("no files here"))).args;
    let size = |dest| args.int(dest).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(1);
    let model = size("tensor_model_parallel_size")
        * size("pipeline_model_parallel_size")
        * size("context_parallel_size")
        * size("ds_sequence_parallel_size");
    let etp =
        args.int("expert_tensor_parallel_size").map_or("tensor_model_parallel_size", |_| "expert_tensor_parallel_size");
    let experts = size(etp) * size("expert_model_parallel_size") * size("pipeline_model_parallel_size");
    ferrotron_base::lcm(model, experts)
}

fn judge(table: &Table, script: &Value) -> Judged {
    let argv = words(&script["argv"]);
    let ranks = ranks(table, script, &argv);
    let parsed = parse(table, &argv, &|_| Err(std::io::Error::other("no files here")));
    // The launcher sets ranks and rendezvous itself; the script's own variables are read as a run would.
    let own = |name: &str| script["env"][name].as_str().map(str::to_string);
    let launcher = ["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
    let (mut env, env_faults) = Environment::from_vars(|name| own(name).filter(|_| !launcher.contains(&name)));
    env.world_size = ranks;
    let mut parsed = parsed;
    parsed.violations.extend(env_faults);
    let mut violations = match validate(table, parsed.args, &env, parsed.violations) {
        Ok(_) => Vec::new(),
        Err(refused) => refused.violations,
    };
    // Files that a script names did not come with it.
    for v in violations.iter_mut().filter(|v| v.what.contains("no files here")) {
        v.severity = Severity::Missing;
        v.flags = vec![v.what.split(": ").next().unwrap_or_default().to_string()];
    }
    let has = |s: Severity| violations.iter().any(|v| v.severity == s);
    let verdict = if has(Severity::Syntax) || has(Severity::Invalid) {
        Verdict::Refused
    } else if has(Severity::Planned) {
        Verdict::Planned
    } else if has(Severity::Missing) {
        Verdict::Incomplete
    } else {
        Verdict::Trains
    };
    let wanted: &[Severity] = match verdict {
        Verdict::Refused => &[Severity::Syntax, Severity::Invalid],
        Verdict::Incomplete => &[Severity::Missing],
        _ => &[Severity::Planned],
    };
    let main_parses = script["upstream_ok"].as_bool() == Some(true);
    let upstream = match (verdict, main_parses) {
        // Every flag and value of the four parsers is in the tables: what is unknown here is unknown to them.
        (Verdict::Refused, _) if has(Severity::Syntax) => "no parser takes it",
        (Verdict::Refused, _) => "same rule",
        (_, true) => "Megatron main parses it",
        (_, false) => "a fork parses it",
    };
    let reasons = violations.iter().filter(|v| wanted.contains(&v.severity)).map(reason).collect();
    let syntax = violations.iter().filter(|v| v.severity == Severity::Syntax).map(reason).collect();
    Judged { source: script["source"].as_str().unwrap_or("?").to_string(), ranks, upstream, verdict, reasons, syntax }
}

/// One line: the sentence and its numbers.
fn reason(v: &Violation) -> String {
    let what = if v.severity == Severity::Missing { format!("missing {}", v.flags.join(" ")) } else { v.what.clone() };
    let numbers = v.arithmetic.as_ref().map_or(String::new(), |a| format!(": {a}"));
    format!("{what}{numbers}").replace('\n', " ").replace('|', "\\|")
}

fn page(judged: &[Judged]) -> String {
    let mut out = String::from(
        "# Launch scripts of public repositories\n\n\
         What `pretrain_gpt` says to each of these command lines with its own number of ranks: the launcher's, else \
         `WORLD_SIZE`, else what one model needs. Written by `cargo run -p ferrotron-config --example script_table`.\n\n\
         | verdict | scripts |\n|---|---|\n",
    );
    for (verdict, words) in Verdict::ALL {
        let _ = writeln!(out, "| {words} | {} |", judged.iter().filter(|j| j.verdict == verdict).count());
    }
    let _ = writeln!(out, "| all | {} |\n", judged.len());
    let parsed = judged.iter().filter(|j| j.syntax.is_empty()).count();
    let _ =
        writeln!(out, "{parsed} of {} parse. What the others carry that no upstream parser defines:\n", judged.len());
    let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in judged.iter().flat_map(|j| &j.syntax) {
        *faults.entry(fault.split("; did you mean").next().unwrap_or(fault)).or_default() += 1;
    }
    let _ = writeln!(out, "| mistake | scripts |\n|---|---|");
    let mut faults: Vec<(&str, usize)> = faults.into_iter().collect();
    faults.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    for (fault, count) in faults {
        let _ = writeln!(out, "| {fault} | {count} |");
    }
    let _ = writeln!(out, "\n| script | ranks | verdict | upstream | why |\n|---|---|---|---|---|");
    for j in judged {
        let why = j.reasons.join("; ");
        let _ = writeln!(out, "| {} | {} | {} | {} | {why} |", j.source, j.ranks, j.verdict.words(), j.upstream);
    }
    out
}
