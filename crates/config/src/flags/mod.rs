//! Flag tables: every flag of Megatron-LM, Megatron-DeepSpeed, MindSpeed and older Megatron releases, and our own.

mod extra;
mod spec;
mod status;
mod tables;

use std::collections::HashMap;

pub use extra::OWN;
pub use spec::{Fallback, Flag, Group, Kind, Nargs, Source, Status};

/// A flag with its group and status.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The flag.
    pub flag: &'static Flag,
    /// The heading it stands under.
    pub group: &'static str,
    /// The parser that defines it.
    pub source: Source,
    /// How far it is honoured.
    pub status: Status,
}

/// The flags of one program, searchable by spelling.
pub struct Table {
    rows: Vec<Row>,
    by_spelling: HashMap<&'static str, usize>,
}

impl Table {
    /// A table of groups; on equal spellings the first stands. `status` says how far each flag is honoured.
    pub fn new<'g>(
        groups: impl IntoIterator<Item = &'g Group>,
        status: impl Fn(&'static Flag, &Group) -> Status,
    ) -> Table {
        let mut table = Table { rows: Vec::new(), by_spelling: HashMap::new() };
        for group in groups {
            for flag in group.flags {
                if table.by_spelling.contains_key(flag.name) {
                    continue;
                }
                for spelling in flag.spellings() {
                    table.by_spelling.entry(spelling).or_insert(table.rows.len());
                }
                let status = status(flag, group);
                table.rows.push(Row { flag, group: group.name, source: group.source, status });
            }
        }
        table
    }

    /// The table of `pretrain_gpt`: all upstream flags and ours.
    pub fn pretrain() -> Table {
        let groups = tables::ALL.iter().flat_map(|file| file.iter()).chain(std::iter::once(&OWN));
        let stated = status::stated();
        Table::new(groups, |flag, group| match stated.get(flag.name) {
            Some(status) => *status,
            None => status::planned(flag, group),
        })
    }

    /// All rows, in order of definition.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The flag with exactly this spelling, and that spelling.
    pub fn find(&self, spelling: &str) -> Option<(&Row, &'static str)> {
        let (name, row) = self.by_spelling.get_key_value(spelling)?;
        Some((&self.rows[*row], name))
    }

    /// Every spelling with its row.
    pub fn spellings(&self) -> impl Iterator<Item = (&Row, &'static str)> {
        self.rows.iter().flat_map(|row| row.flag.spellings().map(move |s| (row, s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_every_upstream_flag_once() {
        let table = Table::pretrain();
        assert!(table.rows().len() > 1560, "{}", table.rows().len());
        let megatron = table.rows().iter().filter(|r| r.source == Source::Megatron).count();
        assert_eq!(megatron, 860);
        for row in table.rows() {
            for spelling in row.flag.spellings() {
                let (found, name) = table.find(spelling).unwrap();
                assert_eq!((found.flag.dest, name), (row.flag.dest, spelling), "two flags share a spelling");
            }
        }
    }

    #[test]
    fn defaults_satisfy_their_own_choices() {
        for row in Table::pretrain().rows() {
            let default = row.flag.default.value();
            if row.flag.choices.is_empty() || default.is_none() || matches!(default, crate::value::Value::List(_)) {
                continue;
            }
            let text = default.to_string();
            assert!(row.flag.choices.contains(&text.as_str()), "{} defaults to {text}", row.flag.name);
        }
    }

    #[test]
    fn defaults_are_megatron_mains() {
        let table = Table::pretrain();
        for (flag, default) in [
            ("--lr-decay-style", "linear"),
            ("--adam-beta2", "0.999"),
            ("--norm-epsilon", "1e-05"),
            ("--initial-loss-scale", "4294967296"),
            ("--make-vocab-size-divisible-by", "128"),
            ("--num-query-groups", "1"),
            ("--rotary-base", "10000"),
            ("--ckpt-format", "torch_dist"),
            ("--seed", "1234"),
            ("--no-save-optim", "None"),
            ("--split", "None"),
        ] {
            assert_eq!(table.find(flag).unwrap().0.flag.default.value().to_string(), default, "{flag}");
        }
    }
}
