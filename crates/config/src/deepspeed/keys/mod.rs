//! Every key of a DeepSpeed file and what becomes of it here (deepspeed/runtime/{config,constants}.py, zero/config.py,
//! precision_config.py, monitor/config.py and their like). `docs/deepspeed.md` is printed from these tables.

mod rest;
mod top;
mod training;
mod zero;

use crate::parser::edits;

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// True or false.
    Bool,
    /// A whole number of at least this.
    Int(i64),
    /// A finite number of at least 0.
    Real,
    /// Text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Whatever DeepSpeed takes.
    Any,
    /// A whole section, on when its `enabled` says so (or, without that word, when it says anything).
    Feature,
}

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Sets this flag, or does what the words say.
    Acts(&'static str),
    /// Changes nothing here, for this reason.
    NoEffect(&'static str),
    /// Passed over with a warning.
    Ignored(&'static str),
    /// Not there yet; the second text is what to use instead today.
    Planned(&'static str, &'static str),
    /// Stops the run when asked for; the second text is what to write instead.
    Refused(&'static str, &'static str),
    /// An old name of this key.
    Old(&'static str),
}

/// Keys of one section that share a fate.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Names, separated by blanks.
    pub names: &'static str,
    /// What a value must be.
    pub shape: Shape,
    /// DeepSpeed's default as JSON writes it, which asks for nothing; empty if every value does.
    pub default: &'static str,
    /// What becomes of it.
    pub fate: Fate,
}

/// A section of the file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Names with dots; empty for the top level.
    pub path: &'static str,
    /// DeepSpeed refuses a name that it does not know.
    pub strict: bool,
    /// The keys.
    pub keys: &'static [Key],
}

const fn key(names: &'static str, shape: Shape, default: &'static str, fate: Fate) -> Key {
    Key { names, shape, default, fate }
}

/// The tables, by file.
static SECTIONS: &[&[Section]] = &[top::SECTIONS, training::SECTIONS, zero::SECTIONS, rest::SECTIONS];

/// All sections, in order.
pub fn sections() -> impl Iterator<Item = &'static Section> {
    SECTIONS.iter().flat_map(|group| group.iter())
}

/// The section of a path.
pub(super) fn section(path: &str) -> Option<&'static Section> {
    sections().find(|s| s.path == path)
}

impl Section {
    /// The key of a name, and the name as the table has it.
    pub(super) fn find(&self, name: &str) -> Option<(&'static Key, &'static str)> {
        self.keys.iter().find_map(|key| Some((key, key.names.split(' ').find(|n| *n == name)?)))
    }

    /// Names of this section and of those inside it that are spelt nearly so.
    pub(super) fn near(&self, name: &str) -> Option<&'static str> {
        if name.len() > 64 {
            return None;
        }
        let inner = sections().filter_map(|s| {
            let rest = s.path.strip_prefix(self.path)?;
            let rest = if self.path.is_empty() { rest } else { rest.strip_prefix('.')? };
            (!rest.is_empty() && !rest.contains('.')).then_some(rest)
        });
        let own = self.keys.iter().flat_map(|key| key.names.split(' '));
        own.chain(inner)
            .filter(|known| (name.len() > 4 && known.starts_with(name)) || edits(known, name) <= 2)
            .min_by_key(|known| edits(known, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_stands_twice_and_old_names_lead_somewhere() {
        let mut seen = std::collections::BTreeSet::new();
        for s in sections() {
            for name in s.keys.iter().flat_map(|k| k.names.split(' ')) {
                assert!(seen.insert(format!("{}.{name}", s.path)), "{}.{name}", s.path);
            }
        }
        for s in sections() {
            let outer = s.path.rsplit_once('.').map_or("", |(outer, _)| outer);
            assert!(section(outer).is_some(), "{} is in no section", s.path);
        }
        for key in sections().flat_map(|s| s.keys) {
            if let Fate::Old(path) = key.fate {
                let (of, name) = path.rsplit_once('.').unwrap_or(("", path));
                assert!(section(of).is_some_and(|s| s.find(name).is_some()), "{path}");
            }
        }
        assert_eq!(section("").and_then(|s| s.near("zero_optimisation")), Some("zero_optimization"));
        assert_eq!(section("fp16").and_then(|s| s.near("loss_scael")), Some("loss_scale"));
    }
}
