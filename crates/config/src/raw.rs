//! What was typed: every dest with its value and where that value comes from. Nothing here knows what a value means.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::flags::Table;
use crate::value::Value;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The table's default.
    Default,
    /// The command line.
    Flag,
    /// An argument file, with the line.
    File {
        /// Path as written.
        path: String,
        /// Line, from 1.
        line: usize,
    },
    /// A YAML file (`--yaml-cfg`, `--config`), with the line.
    Yaml {
        /// Path as written.
        path: String,
        /// Line, from 1.
        line: usize,
    },
    /// A DeepSpeed file (`--deepspeed_config`), with the line and the key.
    #[serde(rename = "deepspeed")]
    DeepSpeed {
        /// Path as written.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Names with dots.
        key: String,
    },
    /// The arguments saved in a checkpoint.
    Checkpoint,
    /// Worked out from other values, with the rule.
    Derived(String),
}

/// A value, its origin, and the spelling that set it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
    /// The spelling used (`--norm-epsilon`), or the main spelling for defaults.
    pub spelling: String,
}

/// All dests of a table with their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawArgs {
    entries: BTreeMap<String, Entry>,
    broken: BTreeSet<String>,
    passed_over: Vec<String>,
    /// A DeepSpeed file that was read and not yet merged.
    pub(crate) deepspeed: Option<crate::deepspeed::File>,
}

impl RawArgs {
    /// Every dest of `table` at its default.
    pub fn defaults(table: &Table) -> RawArgs {
        let mut entries = BTreeMap::new();
        for row in table.rows() {
            // argparse keeps the default of the first action that owns a dest.
            entries.entry(row.flag.dest.to_string()).or_insert_with(|| Entry {
                value: row.flag.default.value(),
                origin: Origin::Default,
                spelling: row.flag.name.to_string(),
            });
        }
        RawArgs { entries, broken: BTreeSet::new(), passed_over: Vec::new(), deepspeed: None }
    }

    /// Stores a value.
    pub fn set(&mut self, dest: &str, value: Value, origin: Origin, spelling: &str) {
        self.entries.insert(dest.to_string(), Entry { value, origin, spelling: spelling.to_string() });
    }

    /// Stores a value worked out by `rule`; keeps the spelling of the entry.
    pub fn derive(&mut self, dest: &str, value: Value, rule: &str) {
        let spelling = self.entries.get(dest).map_or_else(|| dest_to_flag(dest), |e| e.spelling.clone());
        self.set(dest, value, Origin::Derived(rule.to_string()), &spelling);
    }

    /// The entry of a dest.
    pub fn entry(&self, dest: &str) -> Option<&Entry> {
        self.entries.get(dest)
    }

    /// All entries in the order of their dests.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(dest, entry)| (dest.as_str(), entry))
    }

    /// The value of a dest; `None` for an unknown dest.
    pub fn value(&self, dest: &str) -> &Value {
        self.entries.get(dest).map_or(&Value::None, |e| &e.value)
    }

    /// True if the user wrote the value: on the command line, in an argument file, a YAML file or DeepSpeed's.
    pub fn given(&self, dest: &str) -> bool {
        let origin = self.entries.get(dest).map(|e| &e.origin);
        matches!(origin, Some(Origin::Flag | Origin::File { .. } | Origin::Yaml { .. } | Origin::DeepSpeed { .. }))
    }

    /// True if the value does not come from the table's defaults.
    pub fn is_set(&self, dest: &str) -> bool {
        self.entries.get(dest).is_some_and(|e| e.origin != Origin::Default)
    }

    /// Marks a dest whose value could not be read, so that later rules do not call it missing.
    pub fn mark_broken(&mut self, dest: &str) {
        self.broken.insert(dest.to_string());
    }

    /// True if a value was written for this dest but could not be read.
    pub fn is_broken(&self, dest: &str) -> bool {
        self.broken.contains(dest)
    }

    /// Notes something that was written, is known, and has no meaning here (a YAML key without a flag).
    pub fn pass_over(&mut self, what: String) {
        self.passed_over.push(what);
    }

    /// What [`RawArgs::pass_over`] noted.
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    /// The spelling that set a dest, or its flag.
    pub fn spelling(&self, dest: &str) -> String {
        self.entries.get(dest).map_or_else(|| dest_to_flag(dest), |e| e.spelling.clone())
    }

    /// A boolean; anything but `true` reads as false (upstream's `if args.x`).
    pub fn flag(&self, dest: &str) -> bool {
        matches!(self.value(dest), Value::Bool(true))
    }

    /// An integer, if one is set.
    pub fn int(&self, dest: &str) -> Option<i64> {
        match self.value(dest) {
            Value::Int(i) => Some(*i),
            _ => None,
        }
    }

    /// A number as float, if one is set.
    pub fn float(&self, dest: &str) -> Option<f64> {
        match self.value(dest) {
            Value::Int(i) => Some(*i as f64),
            Value::Float(f) => Some(*f),
            _ => None,
        }
    }

    /// Text, if set.
    pub fn text(&self, dest: &str) -> Option<&str> {
        match self.value(dest) {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The items of a list; empty when unset.
    pub fn list(&self, dest: &str) -> &[Value] {
        match self.value(dest) {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The texts of a list; empty when unset. Other items appear as they print.
    pub fn texts(&self, dest: &str) -> Vec<String> {
        self.list(dest).iter().map(Value::to_string).collect()
    }

    /// Everything as one JSON object (dest to value): what a checkpoint stores as its arguments.
    pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
        self.entries.iter().map(|(dest, e)| (dest.clone(), e.value.to_json())).collect()
    }
}

/// `global_batch_size` to `--global-batch-size`.
pub fn dest_to_flag(dest: &str) -> String {
    format!("--{}", dest.replace('_', "-"))
}
