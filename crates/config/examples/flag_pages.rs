//! Prints the reference pages of `docs`: `cargo run -p ferrotron-config --example flag_pages -- flags > docs/flags.md`,
//! and the same with `rules` (`docs/flags-rules.md`), `environment` (`docs/flags-environment.md`) and `deepspeed`
//! (`docs/deepspeed.md`).

use std::fmt::Write as _;

use ferrotron_config::deepspeed::keys::{Fate, Shape as Wants, sections};
use ferrotron_config::env::{Role, Shape, VARIABLES, Vendor};
use ferrotron_config::flags::{Kind, Nargs, Row, Source, Status};
use ferrotron_config::rules::{Outcome, RULES, Tag};
use ferrotron_config::{Table, Value};

fn main() {
    let page = match std::env::args().nth(1).as_deref() {
        Some("flags") => flags(),
        Some("rules") => rules(),
        Some("environment") => environment(),
        Some("deepspeed") => deepspeed(),
        _ => {
            eprintln!("usage: flag_pages flags|rules|environment|deepspeed");
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

/// What stands before the tables of `docs/deepspeed.md`.
const DEEPSPEED: &str = r#"# DeepSpeed's JSON file

```
deepspeed --num_gpus 8 pretrain_gpt.py ... --deepspeed --deepspeed_config ds.json
```

The file is read as DeepSpeed reads it: JSON, or Hjson with comments, trailing commas and names without quotes; a name that
stands twice is a mistake. In place of a path its text may stand in URL-safe base64. As in Megatron-DeepSpeed it counts only
with `--deepspeed`.

* **Both state a value:** it must be the same. All differences are one message with both values. DeepSpeed and Megatron each go by
  their own, so that one of the two would hold in silence.
* **Only the file states it:** it holds; `--print-config text` names file, line and key. Where the file turns a section on
  (`fp16`, `optimizer`) what neither states is DeepSpeed's default.
* **`"auto"`:** the command line's value, or the default.
* **Batch sizes:** train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks. Two of
  them, from the file or the command line, give the third; what does not multiply is refused with DeepSpeed's words, the numbers
  and what would fit.
* **Unknown names:** a warning at the top level and in sections that DeepSpeed passes over, a mistake in sections that it checks
  (marked *strict*).

Columns: what a key wants, DeepSpeed's default where it asks for nothing, and what happens. Written by `cargo run -p
ferrotron-config --example flag_pages -- deepspeed`.
"#;

fn deepspeed() -> String {
    let mut out = DEEPSPEED.to_string();
    for section in sections().filter(|s| !s.keys.is_empty()) {
        let name = if section.path.is_empty() { "Top level".to_string() } else { format!("`{}`", section.path) };
        let strict = if section.strict { " (strict)" } else { "" };
        let _ = writeln!(out, "\n## {name}{strict}\n\n| key | wants | default | here |\n|---|---|---|---|");
        for key in section.keys {
            let names: Vec<String> = key.names.split(' ').map(|n| format!("`{n}`")).collect();
            let wants = match key.shape {
                Wants::Bool => "true, false".to_string(),
                Wants::Int(least) => format!("int from {least}"),
                Wants::Real => "number from 0".to_string(),
                Wants::Text => "text".to_string(),
                Wants::Word(words) => words.join(", "),
                Wants::Any => String::new(),
                Wants::Feature => "section".to_string(),
            };
            let fate = match key.fate {
                Fate::Acts(what) => format!("acts: {what}"),
                Fate::NoEffect(why) => format!("no effect: {why}"),
                Fate::Ignored(why) => format!("passed over with a warning: {why}"),
                Fate::Planned(why, instead) => format!("planned: {why}. Today: {instead}"),
                Fate::Refused(why, instead) => format!("refused: {why}. Instead: {instead}"),
                Fate::Old(new) => format!("old name of `{new}`"),
            };
            let _ = writeln!(out, "| {} | {} | {} | {} |", names.join(" "), wants, key.default, cell(&fate));
        }
    }
    out
}
