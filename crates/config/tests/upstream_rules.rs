//! Every row of the rule table is run: its example against a small command line that trains.

mod common;

use std::time::{Duration, Instant};

use common::{TINY, words};
use ferrotron_config::rules::{Outcome, RULES, Rule, Tag};
use ferrotron_config::show::notices_text;
use ferrotron_config::{Environment, Notice, RawArgs, Severity, Table, Violation, parse, report, validate};

/// TINY without the flags that `-x-y` words name, and with the rest.
fn argv(example: &str) -> Vec<String> {
    let (out, more): (Vec<String>, Vec<String>) =
        words(example).into_iter().partition(|w| w.starts_with('-') && !w.starts_with("--"));
    let mut line = Vec::new();
    let mut keep = true;
    for word in words(TINY) {
        if word.starts_with("--") {
            keep = !out.iter().any(|o| format!("-{o}") == word);
        }
        if keep {
            line.push(word);
        }
    }
    line.extend(more);
    line
}

fn run(table: &Table, rule: &Rule) -> (RawArgs, Vec<Notice>, Vec<Violation>) {
    let value = |name: &str| rule.env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
    let (mut env, faults) = Environment::from_vars(value);
    assert_eq!(faults, []);
    env.world_size = rule.ranks;
    let parsed = parse(table, &argv(rule.example), &|_| Err(std::io::Error::other("no files here")));
    match validate(table, parsed.args, &env, parsed.violations) {
        Ok(r) => (r.args, r.notices, Vec::new()),
        Err(r) => (r.args, r.notices, r.violations),
    }
}

#[test]
fn each_rule_does_what_its_row_says() {
    let table = Table::pretrain();
    for rule in RULES {
        let (args, notices, violations) = run(&table, rule);
        let text = report("test", &violations);
        let context = format!("{}: {} ({})\n{text}{}", rule.topic, rule.text, rule.example, notices_text(&notices));
        let refused = violations.iter().any(|v| v.severity != Severity::Planned);
        match rule.outcome {
            Outcome::Refused(part) => {
                assert!(text.contains(part), "{part:?} is not in: {context}");
                // A whole number of rules refuses for a planned feature: then the feature is named.
                assert!(refused || text.contains("is not there yet"), "{context}");
            }
            Outcome::Noticed(part) => {
                assert!(!refused, "{context}");
                assert!(notices_text(&notices).contains(part), "{part:?} is not in: {context}");
            }
            Outcome::Becomes(dest, value) => {
                assert!(!refused, "{context}");
                assert_eq!(args.value(dest).to_string(), value, "{context}");
            }
        }
        assert!(rule.tag != Tag::VendorOnly || !refused, "a vendor's rule never refuses: {context}");
    }
}

#[test]
fn without_the_example_no_rule_speaks() {
    let r = common::tiny("");
    assert_eq!(notices_text(&r.notices), "");
}

/// ARG-04: no rule about experts fires for a dense model, whatever the layout.
#[test]
fn arg_04_dense_models_meet_no_expert_rule() {
    for flags in ["--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --sequence-parallel --bf16"] {
        let text = common::faults(&argv(flags), 2);
        assert!(!text.contains("expert") && !text.contains("moe"), "{text}");
    }
}

#[test]
fn three_mistakes_give_three_messages_in_time() {
    let began = Instant::now();
    let text = common::faults(&argv("--min-lr 1 --fp16 --bf16 --hidden-size 65"), 1);
    let elapsed = began.elapsed();
    assert!(text.contains("has 3 mistakes"), "{text}");
    // The bound of the requirement; building the table and checking it takes a few milliseconds.
    assert!(elapsed < Duration::from_millis(300), "{elapsed:?}");
}
