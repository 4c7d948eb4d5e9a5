//! Sixty launch scripts found in public repositories (`golden/scripts.jsonl`: source, ranks, argv), of Megatron-LM,
//! Megatron-DeepSpeed, MindSpeed, ModelLink and forks: each parses over the merged tables.

mod common;

use ferrotron_base::mt19937::Mt19937;
use ferrotron_config::{Severity, Table, Violation, parse};

struct Script {
    source: String,
    ranks: usize,
    argv: Vec<String>,
}

#[allow(clippy::unwrap_used, reason = "a broken golden file must stop the test")]
fn scripts() -> Vec<Script> {
    include_str!("golden/scripts.jsonl")
        .lines()
        .map(|line| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            Script {
                source: json["source"].as_str().unwrap().to_string(),
                ranks: json["ranks"].as_u64().unwrap() as usize,
                argv: json["argv"].as_array().unwrap().iter().map(|a| a.as_str().unwrap().to_string()).collect(),
            }
        })
        .collect()
}

#[test]
fn no_flag_is_unknown() {
    let table = Table::pretrain();
    let scripts = scripts();
    assert_eq!(scripts.len(), 60);
    for script in scripts {
        let parsed = parse(&table, &script.argv, &|_| Err(std::io::Error::other("no files here")));
        let syntax: Vec<&Violation> = parsed.violations.iter().filter(|v| v.severity == Severity::Syntax).collect();
        assert!(syntax.is_empty(), "{}: {syntax:?}", script.source);
    }
}

/// Nothing that one of the four parsers takes is refused for its name or its value.
#[test]
fn every_spelling_and_choice_of_the_four_parsers_is_taken() {
    let table = Table::pretrain();
    let mut lines = 0;
    for row in include_str!("golden/upstream_spellings.tsv").lines().filter(|l| !l.starts_with('#')) {
        let Some((spelling, alternatives)) = row.split_once('\t') else { panic!("{row}") };
        for value in alternatives.split('|') {
            let argv: Vec<String> =
                std::iter::once(spelling).chain(value.split(' ').filter(|w| !w.is_empty())).map(String::from).collect();
            let parsed = parse(&table, &argv, &|_| Ok(String::new())); // --yaml-cfg reads a file
            // Three spellings are refused by upstream's own validation, which names their successors.
            let unknown = parsed.violations.iter().find(|v| v.severity == Severity::Syntax);
            assert!(unknown.is_none(), "{argv:?}: {unknown:?}");
            lines += 1;
        }
    }
    assert!(lines > 2000, "{lines}");
}

/// Any two scripts in one line, their flags in any order: no flag becomes unknown, and the judgement comes.
#[test]
fn mixed_and_shuffled_scripts_are_judged() {
    let (table, scripts) = (Table::pretrain(), scripts());
    let mut random = Mt19937::new(5);
    for round in 0..240 {
        let mut pick = || &scripts[random.interval(scripts.len() as u64 - 1) as usize];
        let (one, other) = (pick(), pick());
        let mut flags: Vec<Vec<String>> = vec![];
        for word in one.argv.iter().chain(&other.argv) {
            match flags.last_mut() {
                Some(flag) if !word.starts_with("--") => flag.push(word.clone()),
                _ => flags.push(vec![word.clone()]),
            }
        }
        for i in (1..flags.len()).rev() {
            flags.swap(i, random.interval(i as u64) as usize);
        }
        let argv = flags.concat();
        let parsed = parse(&table, &argv, &|_| Err(std::io::Error::other("no files here")));
        let syntax: Vec<&Violation> = parsed.violations.iter().filter(|v| v.severity == Severity::Syntax).collect();
        assert!(syntax.is_empty(), "round {round}, {} and {}: {syntax:?}", one.source, other.source);
        if let Err(refused) = common::run(&argv, one.ranks) {
            assert!(!refused.violations.is_empty());
        }
    }
}

#[test]
fn each_is_judged_with_its_own_ranks() {
    for script in scripts() {
        if let Err(refused) = common::run(&script.argv, script.ranks) {
            assert!(!refused.violations.is_empty(), "{}", script.source);
        }
    }
}
