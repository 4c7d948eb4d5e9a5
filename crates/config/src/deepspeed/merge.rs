//! From the file's keys to arguments. What the command line states as well must be the same.

use super::node::Node;
use super::stated::{FLAG, Stated};
use crate::raw::Origin;
use crate::validate::checker::Checker;
use crate::value::Value;

/// A key whose value is another one on the command line.
struct Mismatch {
    file: String,
    command_line: String,
}

/// Keys on their way into the arguments.
pub(super) struct Merge {
    stated: Stated,
    mismatches: Vec<Mismatch>,
}

impl Merge {
    pub fn new(stated: Stated) -> Merge {
        Merge { stated, mismatches: Vec::new() }
    }

    /// The node of a key that the file states.
    pub fn node(&self, key: &str) -> Option<&Node> {
        self.stated.acting.get(key)
    }

    /// True if the file states a value.
    pub fn states(&self, key: &str) -> bool {
        self.node(key).is_some()
    }

    /// True if the file leaves it to the command line.
    pub fn is_auto(&self, key: &str) -> bool {
        self.stated.autos.iter().any(|k| k == key)
    }

    pub fn number(&self, key: &str) -> Option<f64> {
        self.node(key)?.number()
    }

    pub fn int(&self, key: &str) -> Option<i64> {
        self.node(key)?.int()
    }

    pub fn truth(&self, key: &str) -> Option<bool> {
        self.node(key)?.truth()
    }

    pub fn text(&self, key: &str) -> Option<String> {
        Some(self.node(key)?.text()?.to_string())
    }

    /// Name of the file.
    pub fn file(&self) -> &str {
        &self.stated.file
    }

    /// `file:line` of a key.
    pub fn place(&self, key: &str) -> String {
        self.node(key).map_or_else(String::new, |node| self.stated.place(node))
    }

    /// `key: value (file:line)`.
    pub fn shown(&self, key: &str) -> String {
        let value = self.node(key).map_or_else(String::new, Node::shown);
        format!("{key}: {value} ({})", self.place(key))
    }

    /// A value that cannot be what its key wants.
    pub fn fault(&self, c: &mut Checker, key: &str, what: &str, legal: &str) {
        if let Some(node) = self.node(key) {
            self.stated.fault(c, key, node, what, legal);
        }
    }

    /// Sets a dest to what a key says; a command line that says otherwise is noted.
    pub fn put(&mut self, c: &mut Checker, key: &str, dest: &str, value: Value) {
        if !stated_by_user(c, dest) {
            return self.fill(c, key, dest, value);
        }
        if !same(c.args.value(dest), &value) {
            let flag = c.args.spelling(dest);
            let theirs = match c.args.value(dest) {
                Value::Bool(true) => flag,
                Value::Bool(false) => format!("without {flag}"),
                theirs => format!("{flag} {theirs}"),
            };
            self.differ(key, theirs);
        }
    }

    /// Sets a dest to what a key says unless the command line states it.
    pub fn fill(&mut self, c: &mut Checker, key: &str, dest: &str, value: Value) {
        if stated_by_user(c, dest) {
            return;
        }
        let origin = Origin::DeepSpeed {
            path: self.stated.file.clone(),
            line: self.node(key).map_or(0, |node| node.line),
            key: key.to_string(),
        };
        let spelling = c.args.spelling(dest);
        c.args.set(dest, value, origin, &spelling);
    }

    /// DeepSpeed's default of a key that neither the file nor the command line states.
    pub fn default(&mut self, c: &mut Checker, key: &str, dest: &str, value: Value) {
        if !self.states(key) && !self.is_auto(key) && !stated_by_user(c, dest) && !same(c.args.value(dest), &value) {
            c.args.derive(dest, value, &format!("DeepSpeed's default of {key}"));
        }
    }

    /// Notes that the command line says something else than a key.
    pub fn differ(&mut self, key: &str, command_line: String) {
        let file = self.shown(key);
        self.mismatches.push(Mismatch { file, command_line });
    }

    /// All differences as one mistake.
    pub fn report(&mut self, c: &mut Checker) {
        if self.mismatches.is_empty() {
            return;
        }
        let lines: Vec<String> = self
            .mismatches
            .drain(..)
            .map(|m| format!("\n       {:<56} command line: {}", m.file, m.command_line))
            .collect();
        let v = c.invalid(&[FLAG], format!("the command line and {} disagree:{}", self.stated.file, lines.concat()));
        v.legal = Some("the same value in both; or the file without it, or with \"auto\"".into());
        v.why = Some("DeepSpeed and Megatron each go by their own, and one of the two would hold in silence".into());
    }
}

/// True if the command line, an argument file or a YAML file states a dest.
pub(super) fn stated_by_user(c: &Checker, dest: &str) -> bool {
    let origin = c.args.entry(dest).map(|e| &e.origin);
    matches!(origin, Some(Origin::Flag | Origin::File { .. } | Origin::Yaml { .. }))
}

/// Numbers are the same whatever they are written as.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    let number = |v: &Value| match v {
        Value::Int(i) => Some(*i as f64),
        Value::Float(f) => Some(*f),
        _ => None,
    };
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}
