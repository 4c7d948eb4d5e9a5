//! `cargo xtask flags`: the four upstream flag lists merged into the committed tables of `crates/config`.
//!
//! Input: a folder with `megatron_flags.json`, `megatron_deepspeed_flags.json`, `mindspeed_flags.json` and
//! `legacy_flags.json` (arrays of `{flag, aliases, dest, type, nargs, default, choices, group, help_summary}`).
//! The first definition of a flag wins (Megatron main's, so its defaults stand); later ones add their choices, and an
//! int that another parser reads as float becomes a `Number`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

/// Choices that a parser or its documentation accepts but the lists do not carry.
const EXTRA_CHOICES: &[(&str, &[&str])] = &[
    ("--position-embedding-type", &["alibi", "deepseek4"]),
    ("--normalization", &["layernorm", "rmsnorm"]),
    ("--fp8-format", &["hif8"]),
    ("--fp8-recipe", &["mxfp8-32x32", "groupwise"]),
    ("--moe-router-dtype", &["fp8"]),
    ("--moe-router-load-balancing-type", &["pai_megatron_aux_loss", "sparsemixer_topk"]),
    ("--context-parallel-algo", &["kvallgather_cp_algo", "mamba_cp_algo"]),
    ("--rope-scaling-type", &["llama3", "longrope", "plm"]),
    ("--ckpt-format", &["native"]),
    ("--moe-token-dispatcher-type", &["alltoall_seq"]),
    ("--shape-order", &["BNSD"]),
    ("--tokenizer-type", TOKENIZER_NAMES),
];

/// Names by which forks and users call tokenizers that this program reads; most are `tokenizer.json` folders.
const TOKENIZER_NAMES: &[&str] = &[
    "ByteLevelTokenizer",
    "ByteLevel",
    "HFTokenizer",
    "AutoTokenizer",
    "PreTrainedTokenizerFast",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "Llama3Tokenizer",
    "MistralTokenizer",
    "MixtralTokenizer",
    "MagistralTokenizer",
    "QwenTokenizer",
    "Qwen2Tokenizer",
    "Qwen2TokenizerFast",
    "Qwen2VLTokenizer",
    "Qwen3Tokenizer",
    "DeepSeekTokenizer",
    "DeepSeekV2Tokenizer",
    "DeepSeekV3Tokenizer",
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
    "GPTNeoXTokenizer",
    "GPTNeoXTokenizerFast",
    "BaichuanTokenizer",
    "ChatGLM4Tokenizer",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "InternLM2Tokenizer",
    "PhiTokenizer",
    "YiTokenizer",
];

/// Flags that one parser reads as a value and another as a list.
const ONE_UP: &[&str] = &["--num-experts"];

/// Groups with fewer flags than this share one file.
const SMALL_GROUP: usize = 12;

struct Row {
    name: String,
    aliases: Vec<String>,
    dest: String,
    kind: &'static str,
    nargs: String,
    default: Value,
    choices: Vec<String>,
    help: String,
}

struct Group {
    name: String,
    source: &'static str,
    rows: Vec<Row>,
}

#[derive(Default)]
struct Tables {
    groups: Vec<Group>,
    /// spelling -> (group, row)
    index: HashMap<String, (usize, usize)>,
}

/// Reads the lists in `facts_dir` and rewrites the table files in `out_dir` (`crates/config/src/flags/tables`).
///
/// # Errors
/// A message that names the file and row at fault.
pub fn run(facts_dir: &Path, out_dir: &Path) -> Result<(), String> {
    let read = |name: &str| -> Result<Value, String> {
        let path = facts_dir.join(name);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    };
    let mut tables = Tables::default();
    tables.add_all("Megatron", rows_of(&read("megatron_flags.json")?)?)?;
    tables.add_all("MegatronDeepSpeed", rows_of(&read("megatron_deepspeed_flags.json")?["extra_flags"])?)?;
    let mindspeed = read("mindspeed_flags.json")?;
    tables.add_all("MindSpeed", rows_of(&mindspeed["extra_flags"])?)?;
    tables.add_all("MindSpeed", rows_of(&mindspeed["redefined_megatron_flags"])?)?;
    tables.add_all("Legacy", rows_of(&read("legacy_flags.json")?)?)?;
    for (flag, choices) in EXTRA_CHOICES {
        let &(g, r) =
            tables.index.get(*flag).ok_or_else(|| format!("EXTRA_CHOICES names {flag}, which no list has"))?;
        union(&mut tables.groups[g].rows[r].choices, choices.iter().map(|c| c.to_string()));
    }
    write_files(&tables, out_dir)
}

fn rows_of(list: &Value) -> Result<&Vec<Value>, String> {
    list.as_array().ok_or_else(|| "expected an array of flags".to_string())
}

impl Tables {
    fn add_all(&mut self, source: &'static str, rows: &[Value]) -> Result<(), String> {
        for json in rows {
            self.add(source, json)?;
        }
        Ok(())
    }

    fn add(&mut self, source: &'static str, json: &Value) -> Result<(), String> {
        let name = json["flag"].as_str().ok_or_else(|| format!("a row without flag: {json}"))?.to_string();
        // Rows without a type only annotate flags that another list defines.
        let Some(type_name) = json["type"].as_str() else { return Ok(()) };
        let kind = kind_of(type_name).ok_or_else(|| format!("{name}: unknown type {type_name}"))?;
        let choices: Vec<String> = match json["choices"].as_array() {
            Some(list) => list
                .iter()
                .filter_map(|c| c.as_str().map(str::to_string).or(c.as_i64().map(|i| i.to_string())))
                .collect(),
            None => Vec::new(),
        };
        if let Some(&(g, r)) = self.index.get(&name) {
            let row = &mut self.groups[g].rows[r];
            if !row.choices.is_empty() {
                union(&mut row.choices, choices.into_iter());
            }
            if matches!((row.kind, kind), ("Int", "Float") | ("Float", "Int")) && row.kind != "Number" {
                row.kind = if row.kind == "Int" { "Number" } else { "Float" };
            }
            return Ok(());
        }
        let nargs = match &json["nargs"] {
            _ if ONE_UP.contains(&name.as_str()) => "OneUp".to_string(),
            Value::Null => "One".to_string(),
            Value::String(s) if s == "*" => "Any".to_string(),
            Value::String(s) if s == "+" => "Some".to_string(),
            Value::Number(n) => format!("Exactly({n})"),
            other => return Err(format!("{name}: unknown nargs {other}")),
        };
        let row = Row {
            aliases: json["aliases"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_string)
                .collect(),
            dest: self.dest_of(&name, kind, json),
            help: help_of(&name, json),
            default: default_of(kind, &json["default"]),
            kind,
            nargs,
            choices,
            name,
        };
        let group = group_name(source, json);
        let g = match self.groups.iter().position(|g| g.name == group && g.source == source) {
            Some(g) => g,
            None => {
                self.groups.push(Group { name: group, source, rows: Vec::new() });
                self.groups.len() - 1
            }
        };
        let r = self.groups[g].rows.len();
        for spelling in std::iter::once(&row.name).chain(&row.aliases) {
            self.index.insert(spelling.clone(), (g, r));
        }
        self.groups[g].rows.push(row);
        Ok(())
    }

    /// A removed flag whose successor has the same type stores into the successor's dest.
    fn dest_of(&self, name: &str, kind: &str, json: &Value) -> String {
        if let Some(dest) = json["dest"].as_str() {
            return dest.to_string();
        }
        let successor = json["suggested_handling"].as_str().and_then(|s| s.split_whitespace().next());
        if let Some(&(g, r)) = successor.and_then(|s| self.index.get(s)) {
            let row = &self.groups[g].rows[r];
            if row.kind == kind {
                return row.dest.clone();
            }
        }
        name.trim_start_matches('-').replace('-', "_")
    }
}

fn union(have: &mut Vec<String>, more: impl Iterator<Item = String>) {
    for choice in more {
        if !have.contains(&choice) {
            have.push(choice);
        }
    }
}

fn kind_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "int" => "Int",
        "float" => "Float",
        "str" | "custom:enum" | "json.loads" | "parse_list_for_virtual_optimizer" => "Str",
        "custom:parse_data_paths" | "custom:parse_data_paths_path" => "Str",
        "store_true" => "StoreTrue",
        "store_false" => "StoreFalse",
        "bool_optional" | "custom:argparse.BooleanOptionalAction" => "BooleanOptional",
        "bool" | "custom:bool() (any non-empty string is True)" => "Truthy",
        "custom:comma ints -> tuple" => "CommaInts",
        "custom:int or python-list expr" => "IntOrList",
        lambda if lambda.starts_with("lambda x:") => "BoolWord",
        _ => return None,
    })
}

/// Defaults keep their JSON type, save where a parser states a float for an int flag or an expression for a number.
fn default_of(kind: &str, json: &Value) -> Value {
    match (kind, json) {
        ("Int", Value::Number(n)) => n.as_f64().map_or(Value::Null, |f| Value::from(f as i64)),
        ("Int", Value::String(s)) => s
            .split('*')
            .map(|part| part.trim().parse::<i64>().ok())
            .product::<Option<i64>>()
            .map_or(Value::Null, Value::from),
        _ => json.clone(),
    }
}

fn help_of(name: &str, json: &Value) -> String {
    match (json["help_summary"].as_str(), json["suggested_handling"].as_str()) {
        (Some(help), _) => help.to_string(),
        (None, Some(handling)) if handling.starts_with("--") => format!("Removed upstream; use {handling}"),
        _ => format!("Removed upstream: {}", name.trim_start_matches('-').replace(['-', '_'], " ")),
    }
}

fn group_name(source: &str, json: &Value) -> String {
    let group = json["group"].as_str().unwrap_or("other");
    // MindSpeed builds some group names at run time; its feature modules are named by their file.
    let group = match group {
        "self.feature_name" => match json["file"].as_str().and_then(|f| f.split('/').rev().nth(1)) {
            Some(folder) => folder.replace('_', " "),
            None => "other".to_string(),
        },
        "modelopt (registered only when nvidia-modelopt is importable)" => "modelopt".to_string(),
        other => other.to_string(),
    };
    match source {
        "Megatron" => group,
        "MegatronDeepSpeed" => format!("Megatron-DeepSpeed: {group}"),
        "MindSpeed" => format!("MindSpeed: {group}"),
        _ => "removed from Megatron".to_string(),
    }
}

fn write_files(tables: &Tables, out_dir: &Path) -> Result<(), String> {
    let mut files: Vec<(String, Vec<&Group>)> = Vec::new();
    for group in &tables.groups {
        let file = match group.source {
            "Megatron" if group.rows.len() >= SMALL_GROUP => format!("megatron_{}", slug(&group.name)),
            "Megatron" => "megatron_small_groups".to_string(),
            "MegatronDeepSpeed" => "megatron_deepspeed".to_string(),
            "MindSpeed" => "mindspeed".to_string(),
            _ => "legacy".to_string(),
        };
        match files.iter_mut().find(|(name, _)| *name == file) {
            Some((_, groups)) => groups.push(group),
            None => files.push((file, vec![group])),
        }
    }
    let banner = "// Generated by `cargo xtask flags`: change the generator or `status.rs`, not this file.\n\n";
    let mut index = String::from("//! Every flag of the upstream parsers, one file for each large group.\n");
    index.push_str(banner);
    index.push_str("use super::spec::Group;\n\n");
    for (file, groups) in &files {
        let mut body = String::new();
        for group in groups {
            let _ = writeln!(body, "    Group {{ name: {:?}, source: Source::{}, flags: &[", group.name, group.source);
            for row in &group.rows {
                let _ = writeln!(body, "        {},", row_text(row));
            }
            body.push_str("    ] },\n");
        }
        let imports = [
            ("D::", "Fallback as D"),
            ("", "Flag"),
            ("", "Group"),
            ("K::", "Kind as K"),
            ("Nargs::", "Nargs"),
            ("", "Source"),
        ];
        let used: Vec<&str> =
            imports.iter().filter(|(mark, _)| body.contains(mark)).map(|(_, import)| *import).collect();
        let title = match groups.as_slice() {
            [one] => format!("Flags: {}.", one.name),
            many => format!("Flags of {} groups.", many.len()),
        };
        let text = format!(
            "//! {title}\n{banner}use crate::flags::spec::{{{}}};\n\n/// The groups of this file.\n#[rustfmt::skip]\npub static GROUPS: &[Group] = &[\n{body}];\n",
            used.join(", ")
        );
        let path = out_dir.join(format!("{file}.rs"));
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let mut modules: Vec<&str> = files.iter().map(|(file, _)| file.as_str()).collect();
    modules.sort_unstable();
    for module in modules {
        let _ = writeln!(index, "mod {module};");
    }
    index.push_str(
        "\n/// Groups of all files, Megatron main first.\n#[rustfmt::skip]\npub static ALL: &[&[Group]] = &[\n",
    );
    for (file, _) in &files {
        let _ = writeln!(index, "    {file}::GROUPS,");
    }
    index.push_str("];\n");
    let path = out_dir.join("mod.rs");
    std::fs::write(&path, index).map_err(|e| format!("{}: {e}", path.display()))
}

fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("_")
}

fn row_text(row: &Row) -> String {
    let mut text = format!("Flag::new({:?}, {:?}, K::{}, {:?})", row.name, row.dest, row.kind, row.help);
    if row.nargs != "One" {
        let _ = write!(text, ".takes(Nargs::{})", row.nargs);
    }
    if !row.choices.is_empty() {
        let _ = write!(text, ".of(&{:?})", row.choices);
    }
    let implied = match row.kind {
        "StoreTrue" | "BooleanOptional" => Value::Bool(false),
        "StoreFalse" => Value::Bool(true),
        _ => Value::Null,
    };
    if row.default != implied {
        let _ = write!(text, ".or({})", default_text(&row.default));
    }
    if !row.aliases.is_empty() {
        let _ = write!(text, ".alias(&{:?})", row.aliases);
    }
    text
}

fn default_text(default: &Value) -> String {
    match default {
        Value::Null | Value::Object(_) => "D::None".to_string(),
        Value::Bool(b) => format!("D::Bool({b})"),
        Value::Number(n) => match n.as_i64() {
            Some(i) => format!("D::Int({i})"),
            None => format!("D::Float({:?})", n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => format!("D::Str({s:?})"),
        Value::Array(items) => format!("D::List(&[{}])", items.iter().map(default_text).collect::<Vec<_>>().join(", ")),
    }
}
