//! YAML files (`--yaml-cfg FILE`, `--config FILE ...`): Megatron's `yaml_arguments` structure, or flags as keys.
//!
//! A key is a flag without its dashes (`num-layers`), or the name of its value (`num_layers`). Mappings are sections
//! (`language_model:`, `model_parallel:`) whose names mean nothing. Megatron's file also uses the field names of its
//! configuration classes where they differ from the flags; [`RENAMED`] and [`no_flag`] know them. The command line wins over
//! every file, a later file over an earlier one.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::{ReadFile, convert, suggest};
use crate::flags::{Flag, Kind, Nargs, Row, Table};
use crate::raw::Origin;
use crate::value::Value;
use crate::violation::{Severity, Violation};

use super::Parsed;

/// Sections may nest this deep; Megatron's file has one level.
const MAX_DEPTH: usize = 4;

/// Field names of `TransformerConfig` and `ModelParallelConfig`, and the dests of the same settings.
const RENAMED: &[(&str, &str)] = &[
    ("num_moe_experts", "num_experts"),
    ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
    ("bias_activation_fusion", "bias_gelu_fusion"),
];

/// Fields that no flag sets: how upstream runs, not what it computes.
fn no_flag(key: &str) -> bool {
    const FIELDS: &[&str] = &[
        "perform_initialization",
        "params_dtype",
        "timers",
        "batch_p2p_comm",
        "batch_p2p_sync",
        "variable_seq_lengths",
        "deallocate_pipeline_outputs",
        "num_microbatches_with_partial_activation_checkpoints",
        "pipeline_dtype",
        "autocast_dtype",
        "enable_autocast",
        "async_tensor_model_parallel_allreduce",
        "gradient_accumulation_fusion",
        "memory_efficient_layer_norm",
        "persist_layer_norm",
        "fp32_residual_connection_dtype",
        "tp_comm_split_ag",
        "tp_comm_split_rs",
        "tp_comm_bulk_wgrad",
        "tp_comm_bulk_dgrad",
        "tp_comm_atomic_ag",
        "tp_comm_atomic_rs",
        "tp_comm_overlap_ag",
        "tp_comm_overlap_rs",
        "moe_extended_tp",
        "cpu_offloading",
        "cpu_offloading_num_layers",
        "cpu_offloading_activations",
        "cpu_offloading_weights",
        "test_mode",
        "disable_parameter_transpose_cache",
        "attention_dropout_seed",
        "finalize_model_grads_func",
        "grad_scale_func",
        "no_sync_func",
        "grad_sync_func",
        "param_sync_func",
        "init_method",
        "output_layer_init_method",
        "apply_residual_connection_post_layernorm_dtype",
        "tp_only_amax_red",
        "window_attn_skip_freq",
        "clone_scatter_output_in_embedding",
        "softmax_scale",
        "layernorm_zero_centered_gamma_dtype",
        "pipeline_model_parallel_split_rank",
    ];
    FIELDS.contains(&key)
}

/// A YAML value. Scalars keep YAML's type.
enum Node {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(String, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a mapping")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(v)))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Int(v)))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Node, E> {
        // Beyond i64 no flag can hold it: as text it fails with the flag's own message.
        Ok(Node::Scalar(i64::try_from(v).map_or_else(|_| Value::Str(v.to_string()), Value::Int)))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Float(v)))
    }

    fn visit_str<E>(self, v: &str) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Str(v.to_string())))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::None))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::None))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry::<String, Spanned<Node>>()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}

/// Reads the files that the arguments name and fills in what the command line leaves open.
pub(super) fn apply(table: &Table, parsed: &mut Parsed, read: &ReadFile) {
    let mut files: Vec<String> = parsed.args.text("yaml_cfg").map(str::to_string).into_iter().collect();
    files.extend(parsed.args.texts("config"));
    for file in files {
        let fault = |parsed: &mut Parsed, why: String| {
            parsed.violations.push(Violation::new(Severity::Syntax, &[], format!("YAML file {file}: {why}")));
        };
        let text = match read(Path::new(&file)) {
            Ok(text) => text,
            Err(e) => {
                fault(parsed, e.to_string());
                continue;
            }
        };
        match serde_saphyr::from_str::<Node>(&text) {
            Ok(Node::Map(entries)) => section(table, parsed, &file, entries, 0),
            Ok(Node::Scalar(Value::None)) => {}
            Ok(_) => fault(parsed, "expected flags and values, like `num-layers: 2`".to_string()),
            Err(e) => fault(parsed, e.to_string().lines().next().unwrap_or("cannot be read").to_string()),
        }
    }
}

fn section(table: &Table, parsed: &mut Parsed, file: &str, entries: Vec<(String, Spanned<Node>)>, depth: usize) {
    for (key, node) in entries {
        let line = usize::try_from(node.referenced.line()).unwrap_or(0);
        let place = format!("{file}:{line}");
        match node.value {
            Node::Map(entries) if depth < MAX_DEPTH => section(table, parsed, file, entries, depth + 1),
            Node::Map(_) => {
                let what = format!("{key}: sections are nested more than {MAX_DEPTH} deep ({place})");
                parsed.violations.push(Violation::new(Severity::Syntax, &[], what));
            }
            value => {
                let origin = Origin::Yaml { path: file.to_string(), line };
                if let Some(mut violation) = setting(table, parsed, &key, value, origin) {
                    violation.why = Some(format!("written in {place}"));
                    parsed.violations.push(violation);
                }
            }
        }
    }
}

/// The row that a key means, and whether the key is the name of the value rather than a spelling of a flag: for
/// `bias_gelu_fusion: false` the value is meant, for `no-bias-gelu-fusion: true` the flag.
fn find<'t>(table: &'t Table, key: &str) -> Option<(&'t Row, bool)> {
    let dest = key.trim_start_matches('-').replace('-', "_");
    let dest = RENAMED.iter().find(|(field, _)| *field == dest).map_or(dest.as_str(), |(_, dest)| dest);
    if let Some(row) = table.rows().iter().find(|row| row.flag.dest == dest) {
        return Some((row, true));
    }
    let body = key.trim_start_matches('-');
    [format!("--{body}"), format!("--{}", body.replace('_', "-"))]
        .iter()
        .find_map(|s| table.find(s))
        .map(|(row, _)| (row, false))
}

/// What is wrong with a value, and what would be legal.
type Fault = (String, Option<String>);

/// Stores one key; returns the mistake, if it is one.
fn setting(table: &Table, parsed: &mut Parsed, key: &str, node: Node, origin: Origin) -> Option<Violation> {
    // Megatron's file names the activation as its class does.
    let (key, node) = if key == "activation_func" || key == "gated_linear_unit" {
        match activation(&node) {
            Ok(Some(flag)) => (flag, Node::Scalar(Value::Bool(true))),
            Ok(None) => return None,
            Err(fault) => return Some(syntax(key, fault)),
        }
    } else {
        (key, node)
    };
    let Some((row, is_dest)) = find(table, key) else { return unknown(table, parsed, key) };
    let flag = row.flag;
    let origin_now = parsed.args.entry(flag.dest).map(|e| &e.origin);
    let by_command_line = matches!(origin_now, Some(Origin::Flag | Origin::File { .. }));
    if by_command_line || matches!(node, Node::Scalar(Value::None)) {
        return None;
    }
    match value_of(flag, is_dest, node) {
        Ok(value) => {
            parsed.args.set(flag.dest, value, origin, flag.name);
            None
        }
        Err(fault) => {
            parsed.args.mark_broken(flag.dest);
            Some(syntax(key, fault))
        }
    }
}

fn syntax(key: &str, (what, legal): Fault) -> Violation {
    let mut violation = Violation::new(Severity::Syntax, &[], format!("{key}: {what}"));
    violation.legal = legal;
    violation
}

/// The flag of an activation function; none for GELU, the default.
fn activation(node: &Node) -> Result<Option<&'static str>, Fault> {
    let name = match node {
        Node::Scalar(Value::Str(name)) => name.to_ascii_lowercase(),
        Node::Scalar(Value::Bool(true)) => "swiglu".to_string(),
        _ => return Ok(None),
    };
    match name.as_str() {
        "swiglu" | "silu" => Ok(Some("swiglu")),
        "squaredrelu" | "squared_relu" => Ok(Some("squared_relu")),
        "gelu" => Ok(None),
        _ => Err((format!("'{name}' is no activation"), Some("swiglu, squaredrelu, gelu".to_string()))),
    }
}

fn unknown(table: &Table, parsed: &mut Parsed, key: &str) -> Option<Violation> {
    if no_flag(key) {
        parsed.args.pass_over(key.to_string());
        return None;
    }
    let near = suggest(table, &format!("--{}", key.trim_start_matches('-').replace('_', "-")));
    for (row, _) in near.iter().filter_map(|name| table.find(name)) {
        parsed.args.mark_broken(row.flag.dest);
    }
    let hint: Vec<&str> = near.iter().map(|n| n.trim_start_matches('-')).collect();
    let hint = if hint.is_empty() { String::new() } else { format!("; did you mean {}?", hint.join(" or ")) };
    Some(Violation::new(Severity::Syntax, &[], format!("unknown key {key}{hint}")))
}

fn value_of(flag: &Flag, is_dest: bool, node: Node) -> Result<Value, Fault> {
    let plain = |what: &str| Err((what.to_string(), None));
    if flag.kind.is_switch() {
        let on = match &node {
            Node::Scalar(Value::Bool(b)) => *b,
            // YAML 1.1, which PyYAML reads, has these words for booleans.
            Node::Scalar(Value::Str(s)) if matches!(s.to_ascii_lowercase().as_str(), "yes" | "on") => true,
            Node::Scalar(Value::Str(s)) if matches!(s.to_ascii_lowercase().as_str(), "no" | "off") => false,
            _ => return plain("expected true or false"),
        };
        return Ok(Value::Bool(if !is_dest && flag.kind == Kind::StoreFalse { !on } else { on }));
    }
    let (items, is_list) = match node {
        Node::List(items) => (items, true),
        scalar => (vec![scalar], false),
    };
    if is_list && flag.nargs == Nargs::One && !matches!(flag.kind, Kind::CommaInts | Kind::IntOrList) {
        return plain("expected one value, not a list");
    }
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        match item {
            // `data-path: 0.3 a 0.7 b`: words of one line, as on the command line.
            Node::Scalar(Value::Str(s)) if !is_list && !matches!(flag.nargs, Nargs::One) => {
                texts.extend(s.split_whitespace().map(str::to_string));
            }
            Node::Scalar(value) => texts.push(value.to_string()),
            _ => return plain("expected plain values in the list"),
        }
    }
    if let Nargs::Exactly(n) = flag.nargs
        && n != texts.len()
    {
        return plain(&format!("expected {n} values, got {}", texts.len()));
    }
    if is_list && flag.nargs == Nargs::One {
        texts = vec![if flag.kind == Kind::CommaInts { texts.join(",") } else { format!("[{}]", texts.join(",")) }];
    }
    let mut values = texts.iter().map(|text| convert::convert(flag, text)).collect::<Result<Vec<_>, _>>()?;
    Ok(match flag.nargs {
        Nargs::One => values.pop().unwrap_or(Value::None),
        Nargs::OneUp if values.len() == 1 => values.pop().unwrap_or(Value::None),
        _ => Value::List(values),
    })
}
