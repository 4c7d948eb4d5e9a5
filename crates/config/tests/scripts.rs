//! Sixty launch scripts found in public repositories (`golden/scripts.jsonl`: source, ranks, argv), of Megatron-LM,
//! Megatron-DeepSpeed, MindSpeed, ModelLink and forks: each parses over the merged tables.

mod common;

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

#[test]
fn each_is_judged_with_its_own_ranks() {
    for script in scripts() {
        if let Err(refused) = common::run(&script.argv, script.ranks) {
            assert!(!refused.violations.is_empty(), "{}", script.source);
        }
    }
}
