//! The launcher's flags: torchrun's, `torch.distributed.launch`'s, deepspeed's, msrun's and ours, in one table.
//!
//! Parsing follows argparse with `REMAINDER`: everything after the program belongs to the program. Dashes and
//! underscores are one, unambiguous abbreviations are taken (torchrun takes them), and all mistakes are collected.

use std::collections::{BTreeMap, BTreeSet};

use ferrotron_config::{Severity, Violation};

use crate::program;

mod table;

pub use table::help;
use table::{GROUPS, Row, Use, rows};

/// A command line of the launcher, as typed.
#[derive(Clone, Debug, Default)]
pub struct Typed {
    values: BTreeMap<&'static str, String>,
    broken: BTreeSet<&'static str>,
    /// The program and everything after it.
    pub program: Option<(String, Vec<String>)>,
    /// Whether `-h` or `--help` was given.
    pub help: bool,
    /// What was accepted without effect, in sentences.
    pub notices: Vec<String>,
    /// Every mistake, in order of appearance.
    pub violations: Vec<Violation>,
}

impl Typed {
    /// The value of a flag; empty values count as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|v| !v.trim().is_empty())
    }

    /// Whether the flag was given wrongly, which has been said: what follows from its absence need not be.
    pub fn is_broken(&self, name: &str) -> bool {
        self.broken.contains(name)
    }

    /// Whether a switch is on, or a flag has a value.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

/// Reads `argv` (without the launcher's own name). `env` gives torchrun's `PET_*` variables, which stand in for flags.
pub fn parse(argv: &[String], env: &dyn Fn(&str) -> Option<String>) -> Typed {
    let mut typed = Typed::default();
    let mut words = argv.iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            if let Some(name) = words.next() {
                typed.program = Some((name.clone(), words.by_ref().cloned().collect()));
            }
            break;
        }
        if !word.starts_with('-') || word == "-" {
            typed.program = Some((word.clone(), words.by_ref().cloned().collect()));
            break;
        }
        if word == "-h" || word == "--help" {
            typed.help = true;
            continue;
        }
        let (written, joined) = split(word);
        let row = match find(&written) {
            Ok(row) => row,
            Err(violation) => {
                typed.violations.push(*violation);
                // The word after an unknown flag is most likely its value, unless it can only be the program.
                if joined.is_none() && words.peek().is_some_and(|w| !w.starts_with('-') && !program::looks_like_one(w))
                {
                    words.next();
                }
                continue;
            }
        };
        let value = match (row.value, joined) {
            (None, None) => String::new(),
            (None, Some(text)) => {
                let what = format!("{written} takes no value, got '{text}'");
                typed.violations.push(Violation::new(Severity::Syntax, &[&written], what));
                continue;
            }
            (Some(_), Some(text)) => text,
            (Some(kind), None) => match words.peek() {
                Some(next) if !next.starts_with('-') || next.parse::<f64>().is_ok() => {
                    words.next().cloned().unwrap_or_default()
                }
                next => {
                    let got = next.map_or("the end of the line".to_string(), |n| format!("'{n}'"));
                    let what = format!("{written} needs a value, got {got}");
                    let violation =
                        Violation::new(Severity::Syntax, &[&written], what).legal(format!("{written} {kind}"));
                    typed.violations.push(violation.why("an unset shell variable often leaves such a gap"));
                    typed.broken.insert(row.name);
                    continue;
                }
            },
        };
        take(&mut typed, row, &written, value);
    }
    for group in GROUPS.iter().filter(|g| g.from_environment) {
        for row in group.rows {
            let variable = format!("PET_{}", row.name.replace('-', "_").to_uppercase());
            let Some(value) = env(&variable).filter(|v| !v.trim().is_empty()) else { continue };
            if !typed.values.contains_key(row.name) && (row.value.is_some() || value != "0") {
                take(&mut typed, row, &variable, value);
            }
        }
    }
    typed
}

fn take(typed: &mut Typed, row: &Row, written: &str, value: String) {
    match row.usage {
        Use::Honoured => {}
        Use::Ignored(why) => typed.notices.push(format!("{written} has no effect: {why}")),
        Use::Refused(instead) => {
            let what = format!("{written} is not offered");
            typed.violations.push(Violation::new(Severity::Invalid, &[written], what).legal(instead));
        }
    }
    typed.values.insert(row.name, value);
}

/// The spelling and the value joined to it: `--a=b`, and `-t3` for one-letter flags.
fn split(word: &str) -> (String, Option<String>) {
    if let Some((name, value)) = word.split_once('=') {
        return (name.to_string(), Some(value.to_string()));
    }
    if !word.starts_with("--") && word.chars().count() > 2 {
        let at = word.char_indices().nth(2).map_or(word.len(), |(at, _)| at);
        if find(&word[..at]).is_ok_and(|row| row.value.is_some()) {
            return (word[..at].to_string(), Some(word[at..].to_string()));
        }
    }
    (word.to_string(), None)
}

fn find(written: &str) -> Result<&'static Row, Box<Violation>> {
    if let Some(row) = rows().find(|r| r.also.contains(&written)) {
        return Ok(row);
    }
    let unknown = |near: Vec<&str>, why: Option<&str>| {
        let mut violation = Violation::new(Severity::Syntax, &[written], format!("unknown flag {written}"));
        if !near.is_empty() {
            violation.legal = Some(near.iter().map(|n| format!("--{n}")).collect::<Vec<_>>().join(" or "));
        }
        violation.why = why.map(String::from);
        Box::new(violation)
    };
    let Some(name) = written.strip_prefix("--").map(|n| n.replace('_', "-")).filter(|n| !n.is_empty()) else {
        return Err(unknown(vec![], None));
    };
    if let Some(row) = rows().find(|r| r.name == name || r.also.contains(&format!("--{name}").as_str())) {
        return Ok(row);
    }
    let starts: Vec<&'static Row> = rows().filter(|r| r.name.starts_with(&name)).collect();
    match starts.as_slice() {
        [row] => Ok(row),
        [] => {
            let mut near: Vec<_> = rows().map(|r| (edits(&name, r.name), r.name)).filter(|(d, _)| *d <= 3).collect();
            near.sort();
            let near = near.iter().take(2).map(|(_, n)| *n).collect();
            Err(unknown(near, Some("flags of the program follow the program's name")))
        }
        several => Err(unknown(several.iter().map(|r| r.name).collect(), Some("the abbreviation fits several flags"))),
    }
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = last[0];
        last[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = last[j + 1];
            last[j + 1] = substituted.min(diagonal + 1).min(last[j] + 1);
        }
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    fn typed(line: &str) -> Typed {
        parse(&words(line), &|_| None)
    }

    #[test]
    fn spellings_of_all_upstream_launchers_are_one() {
        for line in
            ["--nproc_per_node 8 p.py", "--nproc-per-node=8 p.py", "--nproc_per_n 8 p.py", "--nproc-per_node 8 p.py"]
        {
            let t = typed(line);
            assert!(t.violations.is_empty(), "{line}: {:?}", t.violations);
            assert_eq!(t.get("nproc-per-node"), Some("8"), "{line}");
        }
        let t = typed("-m -t3 -r 0:1,1:2 -i a:0,1@b -H /x/hosts mod --nnodes 7");
        assert!(t.has("module") && t.violations.is_empty());
        let got = ["tee", "redirects", "include", "hostfile"].map(|n| t.get(n).unwrap().to_string());
        assert_eq!(got, ["3", "0:1,1:2", "a:0,1@b", "/x/hosts"]);
        assert_eq!(t.program, Some(("mod".into(), words("--nnodes 7"))));
    }

    #[test]
    fn everything_after_the_program_is_its_own() {
        let t = typed("--nnodes 1 pretrain_gpt.py --nnodes 3 --help -- @x");
        assert_eq!(t.program, Some(("pretrain_gpt.py".into(), words("--nnodes 3 --help -- @x"))));
        assert!(!t.help && t.get("nnodes") == Some("1"));
        assert_eq!(typed("-- --odd x").program, Some(("--odd".into(), words("x"))));
    }

    #[test]
    fn all_mistakes_are_found_at_once() {
        let t =
            typed("--nproc_per_node --nnodes 1 --nproc_per_nod3 8 --standalone=1 --m 3 --elastic_training p.py --x");
        let said: Vec<&str> = t.violations.iter().map(|v| v.what.as_str()).collect();
        assert_eq!(
            said,
            [
                "--nproc_per_node needs a value, got '--nnodes'",
                "unknown flag --nproc_per_nod3",
                "--standalone takes no value, got '1'",
                "unknown flag --m",
                "--elastic_training is not offered",
            ]
        );
        assert_eq!(t.violations[1].legal.as_deref(), Some("--nproc-per-node"));
        assert_eq!(t.program.unwrap().0, "p.py");
    }

    #[test]
    fn torchruns_variables_stand_in_for_flags() {
        let env = |name: &str| match name {
            "PET_NNODES" => Some("4".to_string()),
            "PET_NODE_RANK" => Some("3".to_string()),
            "PET_HOSTFILE" => Some("never".to_string()),
            _ => None,
        };
        let t = parse(&words("--nnodes 2 p.py"), &env);
        assert_eq!((t.get("nnodes"), t.get("node-rank"), t.get("hostfile")), (Some("2"), Some("3"), None));
    }

    #[test]
    fn no_two_rows_share_a_spelling() {
        let mut seen = std::collections::BTreeSet::new();
        for row in rows() {
            assert!(seen.insert(format!("--{}", row.name)), "{}", row.name);
            assert!(row.also.iter().all(|a| seen.insert(a.to_string())), "{}", row.name);
            assert!(help().contains(&format!("--{}", row.name)));
        }
    }
}
