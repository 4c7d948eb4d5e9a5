//! What a file asks for: every key judged by its row; those that act are kept for `merge` and `batch`.

use std::collections::BTreeMap;

use super::keys::{self, Fate, Key, Section, Shape};
use super::node::{Data, Node};
use super::source::File;
use crate::validate::NoticeKind;
use crate::validate::checker::Checker;
use crate::violation::{Severity, Violation};

/// The flag that messages name.
pub(super) const FLAG: &str = "--deepspeed_config";
/// Most names that one line lists.
const SHOWN: usize = 12;

/// Keys by what becomes of them.
pub(super) struct Stated {
    /// Name of the file, for messages.
    pub file: String,
    /// Those that act, by path.
    pub acting: BTreeMap<String, Node>,
    /// Those that are left to the command line.
    pub autos: Vec<String>,
    /// Planned and refused ones by (is it planned, reason, what instead), as `key (file:line)`.
    stops: Vec<(bool, &'static str, &'static str, Vec<String>)>,
    idle: Vec<(&'static str, Vec<String>)>,
    ignored: Vec<(&'static str, Vec<String>)>,
    unknown: Vec<String>,
    old: Vec<String>,
}

impl Stated {
    /// Judges all keys of a file.
    pub fn of(c: &mut Checker, file: &File) -> Stated {
        let mut s = Stated {
            file: file.name.clone(),
            acting: BTreeMap::new(),
            autos: Vec::new(),
            stops: Vec::new(),
            idle: Vec::new(),
            ignored: Vec::new(),
            unknown: Vec::new(),
            old: Vec::new(),
        };
        if let (Some(top), Some(members)) = (keys::section(""), file.root.members()) {
            s.walk(c, &file.root, top, members);
        }
        s
    }

    /// Judges the members of a section and of those inside it.
    pub fn walk(&mut self, c: &mut Checker, root: &Node, section: &'static Section, members: &[(String, Node)]) {
        for (name, node) in members {
            let path = join(section.path, name);
            if path == "bfloat16" {
                self.renamed(c, root, &path, "bf16", node);
                if let (Some(inner), Some(members)) = (keys::section("bf16"), node.members()) {
                    self.walk(c, root, inner, members);
                }
            } else if let Some(inner) = keys::section(&path) {
                match &node.data {
                    Data::Object(members) if path == "optimizer" => {
                        super::optimizer::look(self, c, root, inner, members)
                    }
                    Data::Object(members) if path == "scheduler" => super::scheduler::look(self, c, members),
                    Data::Object(members) => self.walk(c, root, inner, members),
                    // Before its sections DeepSpeed had one switch.
                    Data::Bool(on) if path == "zero_optimization" => {
                        let stage = Node { data: Data::Int(i64::from(*on)), ..*node };
                        self.acting.insert("zero_optimization.stage".into(), stage);
                        self.old.push("zero_optimization: true is zero_optimization.stage: 1".into());
                    }
                    Data::Null => {}
                    _ => self.fault(c, &path, node, "no section", "{ ... } around its keys"),
                }
            } else if let Some((key, _)) = section.find(name) {
                self.take(c, root, path, key, node);
            } else if section.strict {
                let hint = section.near(name).map_or(String::new(), |near| format!("; did you mean {near}?"));
                let place = self.place(node);
                let v = c.invalid(&[FLAG], format!("unknown key {path} ({place}){hint}"));
                v.legal = Some(section.keys.iter().map(|k| k.names.replace(' ', ", ")).collect::<Vec<_>>().join(", "));
                v.why = Some(format!("DeepSpeed refuses names that it does not know in {}", section.path));
            } else {
                let hint = section.near(name).map_or(String::new(), |near| format!(" (did you mean {near}?)"));
                self.unknown.push(format!("{path}{hint}"));
            }
        }
    }

    fn take(&mut self, c: &mut Checker, root: &Node, path: String, key: &'static Key, node: &Node) {
        if node.is_auto() {
            self.autos.push(path);
            return;
        }
        if node.data == Data::Null || (key.shape == Shape::Feature && !node.is_on()) {
            return;
        }
        if let Some(legal) = misfit(key.shape, node) {
            self.fault(c, &path, node, "out of range or of another type", &legal);
            return;
        }
        if let Fate::Old(new) = key.fate {
            self.renamed(c, root, &path, new, node);
            let (of, name) = new.rsplit_once('.').unwrap_or(("", new));
            let Some((key, _)) = keys::section(of).and_then(|s| s.find(name)) else { return };
            let device = path.ends_with("cpu_offload") || path.ends_with("cpu_offload_param");
            let word = if node.truth() == Some(true) { "cpu" } else { "none" };
            let data = if device { Data::Text(word.into()) } else { node.data.clone() };
            self.take(c, root, new.to_string(), key, &Node { data, ..*node });
            return;
        }
        let asks = key.default.is_empty() || !node.equals(key.default);
        let shown = || format!("{path}: {} ({}:{})", node.shown(), self.file, node.line);
        match key.fate {
            Fate::Acts(_) => {
                self.acting.insert(path, node.clone());
            }
            _ if !asks => {}
            Fate::NoEffect(why) => group(&mut self.idle, why, path),
            Fate::Ignored(why) => group(&mut self.ignored, why, path),
            Fate::Planned(why, instead) => {
                let text = shown();
                self.stop(true, why, instead, text);
            }
            Fate::Refused(why, instead) => {
                let text = shown();
                self.stop(false, why, instead, text);
            }
            Fate::Old(_) => {}
        }
    }

    /// Notes something that stops the run, planned or refused.
    pub fn stop(&mut self, planned: bool, why: &'static str, instead: &'static str, key: String) {
        match self.stops.iter_mut().find(|(p, w, ..)| (*p, *w) == (planned, why)) {
            Some((.., keys)) => keys.push(key),
            None => self.stops.push((planned, why, instead, vec![key])),
        }
    }

    fn renamed(&mut self, c: &mut Checker, root: &Node, old: &str, new: &str, node: &Node) {
        self.old.push(format!("{old} is {new} today"));
        if find(root, new).is_some() {
            let place = self.place(node);
            c.invalid(&[FLAG], format!("{old} ({place}) is the old name of {new}, which is stated too")).legal =
                Some(format!("{new} alone"));
        }
    }

    /// `file:line` of a value.
    pub fn place(&self, node: &Node) -> String {
        format!("{}:{}", self.file, node.line)
    }

    /// A value that cannot be what its key wants.
    pub fn fault(&self, c: &mut Checker, path: &str, node: &Node, what: &str, legal: &str) {
        let text = format!("{path} is {} ({}, column {}): {what}", node.shown(), self.place(node), node.column);
        c.invalid(&[FLAG], text).legal = Some(legal.to_string());
    }

    /// Notices and violations of all keys together, one for each reason.
    pub fn report(&mut self, c: &mut Checker) {
        let file = &self.file;
        for (planned, why, instead, keys) in self.stops.drain(..) {
            let severity = if planned { Severity::Planned } else { Severity::Invalid };
            c.violations.push(Violation::new(severity, &[FLAG], format!("{}: {why}", cut(&keys))).legal(instead));
        }
        if !self.old.is_empty() {
            c.notice(NoticeKind::Adjusted, format!("{file}: old names: {}", cut(&self.old)));
        }
        if !self.autos.is_empty() {
            let text = format!("{file}: auto is the command line's value or the default: {}", cut(&self.autos));
            c.notice(NoticeKind::Adjusted, text);
        }
        for (why, keys) in self.idle.drain(..) {
            c.notice(NoticeKind::NoEffect, format!("no effect: {} of {file} ({why})", cut(&keys)));
        }
        for (why, keys) in self.ignored.drain(..) {
            c.warn(format!("{file}: passed over: {} ({why})", cut(&keys)));
        }
        if !self.unknown.is_empty() {
            let keys = cut(&self.unknown);
            c.warn(format!("{file}: unknown keys, which DeepSpeed passes over in silence: {keys}"));
        }
    }
}

/// The node of a path, if the file states it.
pub(super) fn find<'n>(root: &'n Node, path: &str) -> Option<&'n Node> {
    path.split('.').try_fold(root, |node, name| node.members()?.iter().find(|(n, _)| n == name).map(|(_, node)| node))
}

fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_string() } else { format!("{section}.{name}") }
}

fn group(groups: &mut Vec<(&'static str, Vec<String>)>, why: &'static str, path: String) {
    match groups.iter_mut().find(|(w, _)| *w == why) {
        Some((_, paths)) => paths.push(path),
        None => groups.push((why, vec![path])),
    }
}

/// `a, b, c`, the first dozen, each cut at a length for lines.
fn cut(names: &[String]) -> String {
    let short = |name: &String| match name.char_indices().nth(120) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name.clone(),
    };
    let shown: Vec<String> = names.iter().take(SHOWN).map(short).collect();
    let more = names.len().saturating_sub(SHOWN);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// What would be legal, if the value is not.
fn misfit(shape: Shape, node: &Node) -> Option<String> {
    let (fits, legal) = match shape {
        Shape::Bool => (node.truth().is_some(), "true or false".to_string()),
        Shape::Int(least) => {
            (node.int().is_some_and(|n| n >= least), format!("a whole number of at least {least}, without a fraction"))
        }
        Shape::Real => (node.number().is_some_and(|x| x >= 0.0), "a finite number of at least 0".to_string()),
        Shape::Text => (node.text().is_some(), "a text".to_string()),
        Shape::Word(words) => (node.text().is_some_and(|t| words.contains(&t)), words.join(", ")),
        Shape::Any | Shape::Feature => (true, String::new()),
    };
    (!fits).then_some(legal)
}
