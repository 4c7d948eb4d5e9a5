//! Prints the reference pages of `docs`: `cargo run -p ferrotron-config --example flag_pages -- flags > docs/flags.md`,
//! and the same with `rules` (`docs/flags-rules.md`) and `environment` (`docs/flags-environment.md`).

use std::fmt::Write as _;

use ferrotron_config::env::{Role, Shape, VARIABLES, Vendor};
use ferrotron_config::flags::{Kind, Nargs, Row, Source, Status};
use ferrotron_config::rules::{Outcome, RULES, Tag};
use ferrotron_config::{Table, Value};

fn main() {
    let page = match std::env::args().nth(1).as_deref() {
        Some("flags") => flags(),
        Some("rules") => rules(),
        Some("environment") => environment(),
        _ => {
            eprintln!("usage: flag_pages flags|rules|environment");
            std::process::exit(2);
        }
    };
    print!("{page}");
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn flags() -> String {
    let table = Table::pretrain();
    let count = |f: &dyn Fn(&Row) -> bool| table.rows().iter().filter(|r| f(r)).count();
    let mut out = String::from("# Flags of `pretrain_gpt`\n\n");
    let _ = writeln!(
        out,
        "{} flags, of Megatron-LM main, Megatron-DeepSpeed, MindSpeed, older Megatron releases, and ours. `--help WORD` \
         searches them. Written by `cargo run -p ferrotron-config --example flag_pages -- flags`.\n\n\
         | status | flags | meaning |\n|---|---|---|\n\
         | acts | {} | does what upstream does |\n\
         | no effect | {} | accepted; changes nothing here, for the reason that is listed at start |\n\
         | planned | {} | parsed; training refuses another value than the default, `--dry-run` lists it |\n\
         | removed | {} | refused, with its successor |\n",
        table.rows().len(),
        count(&|r| r.status == Status::Acts),
        count(&|r| matches!(r.status, Status::NoEffect(_))),
        count(&|r| matches!(r.status, Status::Planned(_))),
        count(&|r| matches!(r.status, Status::Removed(_))),
    );
    let mut heading = ("", Source::Ferrotron);
    for row in table.rows() {
        if (row.group, row.source) != heading {
            heading = (row.group, row.source);
            let _ = writeln!(
                out,
                "\n## {} ({:?})\n\n| flag | value | status | help |\n|---|---|---|---|",
                row.group, row.source
            );
        }
        let spellings: Vec<String> = row.flag.spellings().map(|s| format!("`{s}`")).collect();
        let status = match row.status {
            Status::Acts => "acts".to_string(),
            Status::NoEffect(why) => format!("no effect: {why}"),
            Status::Planned(why) => format!("planned: {why}"),
            Status::Removed(instead) => format!("removed: {instead}"),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            spellings.join(" "),
            cell(&value(row)),
            cell(&status),
            cell(row.flag.help)
        );
    }
    out
}

fn value(row: &Row) -> String {
    let flag = row.flag;
    if flag.kind.is_switch() {
        return if flag.kind == Kind::StoreFalse { "(on by default)".into() } else { String::new() };
    }
    let one = if flag.choices.is_empty() { flag.kind.word().to_string() } else { flag.choices.join(", ") };
    let many = match flag.nargs {
        Nargs::One => "",
        Nargs::Any | Nargs::Some | Nargs::OneUp => " ...",
        Nargs::Exactly(_) => " (several)",
    };
    match flag.default.value() {
        Value::None => format!("{one}{many}"),
        default => format!("{one}{many}; default {default}"),
    }
}

fn rules() -> String {
    let mut out = format!(
        "# Rules across flags\n\nUpstream's {} rules and what becomes of each here: it *applies*; it protects *another vendor's* \
         software and is at most a warning; or this program deliberately does *otherwise*. Each row is run by a test. In \
         examples, `-x` takes the flag `--x` out of the command line first. Written by `cargo run -p ferrotron-config \
         --example flag_pages -- rules`.\n",
        RULES.len()
    );
    let mut topic = "";
    for rule in RULES {
        if rule.topic != topic {
            topic = rule.topic;
            let _ = writeln!(out, "\n## {topic}\n\n| rule | here | example | outcome |\n|---|---|---|---|");
        }
        let tag = match rule.tag {
            Tag::Applies => "applies",
            Tag::VendorOnly => "another vendor's",
            Tag::Overridden => "otherwise",
        };
        let env: String = rule.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let ranks = if rule.ranks > 1 { format!(" ({} ranks)", rule.ranks) } else { String::new() };
        let outcome = match rule.outcome {
            Outcome::Refused(part) => format!("refused: {part}"),
            Outcome::Noticed(part) => format!("notice: {part}"),
            Outcome::Becomes(dest, value) => format!("{dest} = {value}"),
        };
        let _ = writeln!(
            out,
            "| {} | {tag} | `{env}{}`{ranks} | {} |",
            cell(rule.text),
            cell(rule.example),
            cell(&outcome)
        );
    }
    out
}

fn environment() -> String {
    let mut out = format!(
        "# Environment variables\n\n{} variables that training scripts set. A value that is not legal is a mistake like one on the \
         command line; those that are set are listed at start. Written by `cargo run -p ferrotron-config --example \
         flag_pages -- environment`.\n\n| variable | legal | here | meaning |\n|---|---|---|---|\n",
        VARIABLES.len()
    );
    for v in VARIABLES {
        let legal = match v.shape {
            Shape::Text => "text".to_string(),
            // No text of this shape: its message says what is legal.
            shape => shape.fault("\u{0}").unwrap_or_default(),
        };
        let role = match v.role {
            Role::Acts => "acts".to_string(),
            Role::Library(Vendor::Ascend) => "read by CANN on an NPU".to_string(),
            Role::Library(Vendor::Nvidia) => "read by CUDA or NCCL on a GPU".to_string(),
            Role::NoEffect(why) => format!("no effect: {why}"),
        };
        let _ = writeln!(out, "| `{}` | {} | {role} | {} |", v.name, cell(&legal), cell(v.help));
    }
    out
}
