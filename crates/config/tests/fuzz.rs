//! Whatever is typed, nothing panics: parsing, validation, dumps, argument files, list expressions.

mod common;

use ferrotron_config::flags::Kind;
use ferrotron_config::parser::number::{int_or_list, py_float, py_int};
use ferrotron_config::show::{arguments_dump, help, notices_text, print_json, print_text};
use ferrotron_config::{Environment, Table, Value, merge_checkpoint_args, parse, report, validate};
use proptest::prelude::*;

/// Flags of the table with values of every kind, right and wrong; and loose text.
fn word() -> impl Strategy<Value = Vec<String>> {
    let spellings: Vec<(String, bool)> =
        Table::pretrain().spellings().map(|(row, s)| (s.to_string(), row.flag.kind == Kind::Str)).collect();
    let acting: Vec<String> =
        common::TINY.split_whitespace().filter(|w| w.starts_with("--")).map(String::from).collect();
    let value = prop_oneof![
        4 => (-4i64..100).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => any::<f64>().prop_map(|x| x.to_string()),
        1 => prop::sample::select(vec!["", "0", "nan", "inf", "1e308", "rope", "full", "WSD", "sgd", "0:1 1K:2", "-", "@f", "1,2,3", "[1]*3"]).prop_map(String::from),
        1 => ".{0,12}",
    ];
    let value = proptest::collection::vec(value, 0..4);
    prop_oneof![
        4 => (prop::sample::select(acting), value.clone()).prop_map(|(f, mut v)| { v.insert(0, f); v }),
        4 => (prop::sample::select(spellings.clone()), value.clone()).prop_map(|((f, _), mut v)| { v.insert(0, f); v }),
        1 => (prop::sample::select(spellings), ".{0,8}").prop_map(|((f, _), v)| vec![format!("{f}={v}")]),
        1 => value,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn command_lines(tiny in any::<bool>(), more in proptest::collection::vec(word(), 0..12), ranks in 1usize..70, file in ".{0,40}") {
        let mut argv = if tiny { common::words(common::TINY) } else { Vec::new() };
        argv.extend(more.into_iter().flatten());
        let table = Table::pretrain();
        let parsed = parse(&table, &argv, &|_| Ok(file.clone()));
        let env = Environment { world_size: ranks, ..Environment::default() };
        match validate(&table, parsed.args, &env, parsed.violations) {
            Ok(r) => {
                let p = &r.config.parallel;
                prop_assert_eq!(p.tp * p.pp * p.cp * p.dp, ranks);
                prop_assert!(r.config.model.num_layers > 0 && r.config.train.global_batch_size > 0);
                print_json(&r.args, &r.notices, Some(&r.config));
                arguments_dump(&table, &r.args);
            }
            Err(refused) => {
                prop_assert!(!refused.violations.is_empty());
                report("pretrain_gpt", &refused.violations);
                notices_text(&refused.notices);
                print_text(&refused.args);
            }
        }
    }

    #[test]
    fn loose_text(text in "\\PC{0,60}", words in proptest::collection::vec("[\\[\\](),+*0-9 @#'\"\\\\\n=-]{0,30}", 0..4)) {
        let _ = (py_int(&text), py_float(&text), int_or_list(&text));
        for w in &words {
            let _ = int_or_list(w);
            parse(&Table::pretrain(), &["@f".to_string()], &|_| Ok(w.clone()));
        }
        help("x", &Table::pretrain(), &text);
    }

    #[test]
    fn python_numbers_round_trip(i in any::<i64>(), x in any::<f64>()) {
        prop_assert_eq!(py_int(&i.to_string()), Some(i));
        let text = Value::Float(x).to_string();
        let back = py_float(&text).unwrap();
        prop_assert!(back == x || (back.is_nan() && x.is_nan()), "{} from {}", back, text);
    }

    #[test]
    fn saved_arguments(json in "\\PC{0,20}", n in any::<f64>()) {
        let mut args = parse(&Table::pretrain(), &[], &|_| Ok(String::new())).args;
        let saved = serde_json::json!({"num_layers": json, "hidden_size": n, "seq_length": [1, {"a": 2}], "swiglu": n as i64});
        merge_checkpoint_args(&mut args, saved.as_object().unwrap());
        let table = Table::pretrain();
        prop_assert!(validate(&table, args, &Environment::default(), Vec::new()).is_err());
    }
}
