//! Megatron's arguments dump (`_print_args` of `arguments.py`).

use std::collections::BTreeSet;

use crate::flags::{Source, Table};
use crate::raw::RawArgs;

/// Column to which dots are drawn.
const DOTS_TO: usize = 48;

/// The block that rank 0 prints at start: `  name .... value`, sorted without regard to case, between two rules.
///
/// It has every argument of Megatron main, and of other parsers those that are set. Values are Python's `str()`.
pub fn arguments_dump(table: &Table, args: &RawArgs) -> String {
    let megatron: BTreeSet<&str> =
        table.rows().iter().filter(|r| r.source == Source::Megatron).map(|r| r.flag.dest).collect();
    let mut lines: Vec<String> = args
        .iter()
        .filter(|(dest, _)| megatron.contains(dest) || args.is_set(dest))
        .map(|(dest, entry)| {
            let dots = ".".repeat(DOTS_TO.saturating_sub(dest.len()));
            format!("  {dest} {dots} {}", entry.value)
        })
        .collect();
    lines.sort_by_key(|line| line.to_lowercase());
    format!(
        "------------------------ arguments ------------------------\n{}\n-------------------- end of arguments ---------------------\n",
        lines.join("\n")
    )
}
