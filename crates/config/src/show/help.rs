//! `--help`: all flags by group, or those that a search finds.

use crate::flags::{Kind, Nargs, Row, Status, Table};

/// Help text of `program`. `words` narrows it to flags whose spelling, help line or group contains every word.
pub fn help(program: &str, table: &Table, words: &str) -> String {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    let found = |row: &&Row| {
        let aliases = row.flag.aliases.join(" ");
        let text = format!("{} {aliases} {} {}", row.flag.name, row.flag.help, row.group).to_lowercase();
        words.iter().all(|w| text.contains(w))
    };
    let rows: Vec<&Row> = table.rows().iter().filter(found).collect();
    let mut out = format!(
        "usage: {program} [@FILE] [--flag VALUE | --flag=VALUE] ...\n\
         @FILE inserts the flags of an argument file. --help WORD ... shows the flags that match all words.\n"
    );
    if rows.is_empty() {
        out.push_str(&format!("\nno flag matches: {}\n", words.join(" ")));
    }
    let mut groups: Vec<&str> = Vec::new();
    for row in &rows {
        if !groups.contains(&row.group) {
            groups.push(row.group);
        }
    }
    for group in groups {
        out.push_str(&format!("\n{group}:\n"));
        for row in rows.iter().filter(|r| r.group == group) {
            out.push_str(&entry(row));
        }
    }
    out
}

fn entry(row: &Row) -> String {
    let flag = row.flag;
    let value = if flag.kind.is_switch() {
        String::new()
    } else {
        let one = if flag.choices.is_empty() {
            flag.kind.word().to_uppercase()
        } else {
            format!("{{{}}}", flag.choices.join(","))
        };
        match flag.nargs {
            Nargs::One => format!(" {one}"),
            Nargs::Any => format!(" [{one} ...]"),
            Nargs::Some | Nargs::OneUp => format!(" {one} ..."),
            Nargs::Exactly(n) => format!(" {}", vec![one; n].join(" ")),
        }
    };
    let mut notes = Vec::new();
    let default = flag.default.value();
    if !flag.kind.is_switch() && !default.is_none() {
        notes.push(format!("default {default}"));
    }
    if flag.kind == Kind::StoreFalse {
        notes.push("on by default".to_string());
    }
    match row.status {
        Status::Acts => {}
        Status::NoEffect(reason) => notes.push(format!("no effect here: {reason}")),
        Status::Planned(reason) => notes.push(format!("planned: {reason}")),
        Status::Removed(instead) => notes.push(format!("removed: use {instead}")),
    }
    let spellings: Vec<&str> = flag.spellings().collect();
    let mut text = format!("  {}{value}\n      {}\n", spellings.join(", "), flag.help);
    if !notes.is_empty() {
        text.push_str(&format!("      ({})\n", notes.join("; ")));
    }
    text
}
