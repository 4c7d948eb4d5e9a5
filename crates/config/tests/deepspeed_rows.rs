//! 69 DeepSpeed files of public repositories and of an article (`golden/ds_configs.jsonl`: source, verdict, batch sizes for 1,
//! 2, 8 and 16 ranks, file): each is accepted, warned about or refused as DeepSpeed's own models would, or planned with the keys
//! that `golden/ds_outcomes.tsv` names; and every key of DeepSpeed's is known.
#![allow(clippy::unwrap_used)] // a broken golden file must stop the test

mod common;

use std::collections::BTreeMap;

use common::{TINY, words};
use ferrotron_config::deepspeed::keys::{Fate, sections};
use ferrotron_config::deepspeed::{NoTriangle, Triangle, triangle};
use ferrotron_config::{Environment, Notice, NoticeKind, Severity, Table, Violation, parse, report, validate};
use serde_json::Value;

fn rows() -> Vec<Value> {
    include_str!("golden/ds_configs.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// TINY without what the file states, so that no value is stated twice.
fn argv(config: &Value) -> Vec<String> {
    let number = |path: &str| config.pointer(path).is_some_and(|v| v.is_number());
    let batch = number("/train_batch_size") || number("/train_micro_batch_size_per_gpu");
    let mut line = Vec::new();
    let mut keep = true;
    for word in words(TINY) {
        if word.starts_with("--") {
            keep = match word.as_str() {
                "--global-batch-size" => false,
                "--micro-batch-size" => !batch,
                "--lr" => !number("/optimizer/params/lr"),
                _ => true,
            };
        }
        if keep {
            line.push(word);
        }
    }
    line.extend(words("--deepspeed --deepspeed_config ds.json"));
    line
}

fn judge(config: &Value, ranks: usize) -> (Vec<Violation>, Vec<Notice>) {
    let table = Table::pretrain();
    let text = config.to_string();
    let parsed = parse(&table, &argv(config), &|_| Ok(text.clone()));
    let env = Environment { world_size: ranks, ..Environment::default() };
    match validate(&table, parsed.args, &env, parsed.violations) {
        Ok(r) => (vec![], r.notices),
        Err(r) => (r.violations, r.notices),
    }
}

/// The most ranks for which the batch sizes fit; 8 where they are left to the command line.
fn ranks(row: &Value) -> usize {
    ["16", "8", "2", "1"].into_iter().find(|w| row["batch"][w].is_object()).map_or(8, |w| w.parse().unwrap())
}

#[test]
fn every_file_meets_its_verdict() {
    let planned: BTreeMap<u64, &str> = include_str!("golden/ds_outcomes.tsv")
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(id, keys)| (id.parse().unwrap(), keys))
        .collect();
    let mut met = 0;
    for row in rows() {
        let (id, source) = (row["id"].as_u64().unwrap(), &row["source"]);
        let (violations, notices) = judge(&row["config"], ranks(&row));
        let text = report("test", &violations);
        let context = format!("{id} {source}\n{text}\n{notices:?}");
        let refused = violations.iter().any(|v| v.severity != Severity::Planned);
        let warned = notices.iter().any(|n| n.text.contains("ds.json") && n.kind != NoticeKind::NoEffect);
        let verdict = match (refused, violations.is_empty(), warned) {
            (true, ..) => "reject",
            (_, false, _) => "planned",
            (.., true) => "accept_with_warnings",
            _ => "accept",
        };
        match planned.get(&id) {
            Some(keys) => {
                assert_eq!(verdict, "planned", "{context}");
                assert_ne!(row["outcome"], "reject", "{context}");
                for key in keys.split(' ') {
                    assert!(text.contains(key), "{key}: {context}");
                }
                // Nothing is planned that the row does not name: each key stands with its place.
                assert_eq!(text.matches("ds.json:1").count(), keys.split(' ').count(), "{context}");
            }
            None => assert_eq!(verdict, row["outcome"], "{context}"),
        }
        met += 1;
    }
    assert_eq!(met, 69);
}

#[test]
fn batch_sizes_are_deepspeeds() {
    let mut seen = 0;
    for row in rows() {
        let of = |key: &str| row["config"][key].as_i64();
        for (ranks, want) in row["batch"].as_object().unwrap() {
            let w: i64 = ranks.parse().unwrap();
            let stated =
                [of("train_batch_size"), of("train_micro_batch_size_per_gpu"), of("gradient_accumulation_steps")];
            let got = match triangle(stated[0], stated[1], stated[2], w) {
                Ok(t) => serde_json::json!({"train_batch_size": t.total, "micro": t.micro, "gas": t.steps}),
                Err(NoTriangle::Neither) => "neither".into(),
                Err(NoTriangle::Unequal(Triangle { total, micro, steps })) => {
                    format!("error: {total} != {micro}*{steps}*{w}").into()
                }
            };
            match want.as_str() {
                // Left to the command line.
                Some("auto/list") => continue,
                Some(text) if text.contains("neither") => assert_eq!(got, "neither", "{row}"),
                _ => assert_eq!(&got, want, "{} at {w} ranks", row["source"]),
            }
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen}");
}

#[test]
fn every_key_of_deepspeeds_is_in_the_table() {
    let known = |path: &str| {
        let (of, name) = path.rsplit_once('.').unwrap_or(("", path));
        let listed = |of: &str, name: &str| {
            sections().any(|s| s.path == of && s.keys.iter().any(|k| k.names.split(' ').any(|n| n == name)))
        };
        // A key inside a section that is judged as a whole.
        sections().any(|s| s.path == path) || listed(of, name) || {
            let (outer, inner) = of.rsplit_once('.').unwrap_or(("", of));
            listed(outer, inner)
        }
    };
    let missing: Vec<&str> = include_str!("golden/ds_keys.txt").lines().filter(|path| !known(path)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// `docs/deepspeed.md` is the table.
#[test]
fn the_page_tells_of_every_key() {
    let page = include_str!("../../../docs/deepspeed.md");
    for key in sections().flat_map(|s| s.keys) {
        let names: Vec<String> = key.names.split(' ').map(|n| format!("`{n}`")).collect();
        let words = match key.fate {
            Fate::Acts(text) | Fate::NoEffect(text) | Fate::Ignored(text) | Fate::Old(text) => vec![text],
            Fate::Planned(why, instead) | Fate::Refused(why, instead) => vec![why, instead],
        };
        let line = page.lines().find(|l| {
            l.starts_with(&format!("| {} |", names.join(" ")))
                && words.iter().all(|w| l.contains(&w.replace('|', "\\|")))
        });
        assert!(line.is_some(), "{}: write docs/deepspeed.md anew (crates/config/examples/flag_pages.rs)", key.names);
    }
}
