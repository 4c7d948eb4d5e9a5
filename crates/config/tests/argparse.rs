//! The parser against CPython 3.11's argparse, run on the same small table with 300 command lines
//! (`golden/argparse_3_11.json`: per argv the values that differ from the defaults, or null for an error).

use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Nargs, Source, Status};
use ferrotron_config::{Parsed, Table, Value, parse};

static GROUP: Group = Group {
    name: "test",
    source: Source::Ferrotron,
    flags: &[
        Flag::new("--lr", "lr", Kind::Float, ""),
        Flag::new("--iters", "iters", Kind::Int, "").or(Fallback::Int(7)),
        Flag::new("--bf16", "bf16", Kind::StoreTrue, ""),
        Flag::new("--no-fuse", "fuse", Kind::StoreFalse, ""),
        Flag::new("--sync", "sync", Kind::BooleanOptional, "").alias(&["--no-sync"]),
        Flag::new("--data-path", "data_path", Kind::Str, "").takes(Nargs::Any),
        Flag::new("--modules", "modules", Kind::Str, "").takes(Nargs::Some).of(&["mlp", "moe"]),
        Flag::new("--ramp", "ramp", Kind::Int, "").takes(Nargs::Exactly(3)),
        Flag::new("--style", "style", Kind::Str, "").of(&["cosine", "linear"]).or(Fallback::Str("linear")),
        Flag::new("--name", "name", Kind::Str, ""),
        Flag::new("--split", "ways", Kind::Str, ""),
        Flag::new("--gone", "gone", Kind::Int, ""),
    ],
};

fn table() -> Table {
    Table::new([&GROUP], |flag, _| if flag.name == "--gone" { Status::Removed("--iters") } else { Status::Acts })
}

fn run(argv: &[&str]) -> Parsed {
    let argv: Vec<String> = argv.iter().map(|a| a.to_string()).collect();
    parse(&table(), &argv, &|path| Err(std::io::Error::other(format!("no {}", path.display()))))
}

fn messages(argv: &[&str]) -> String {
    run(argv).violations.iter().map(|v| format!("{v}\n")).collect()
}

#[test]
fn same_outcome_as_cpython() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("golden/argparse_3_11.json")).unwrap();
    let cases = golden.as_array().unwrap();
    assert!(cases.len() > 250, "{}", cases.len());
    for case in cases {
        let argv: Vec<&str> = case["argv"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
        let got = run(&argv);
        let Some(want) = case["ok"].as_object() else {
            assert!(!got.violations.is_empty(), "argparse refuses {argv:?}");
            continue;
        };
        assert!(got.violations.is_empty(), "argparse takes {argv:?}: {:?}", got.violations);
        for (dest, entry) in got.args.iter() {
            let default = GROUP.flags.iter().find(|f| f.dest == dest).unwrap().default.value();
            let want = match want.get(dest) {
                Some(serde_json::Value::String(s)) if s == "inf" => Value::Float(f64::INFINITY),
                Some(json) => Value::from_json(json).unwrap(),
                None => default,
            };
            assert_eq!(entry.value, want, "{dest} of {argv:?}");
        }
    }
}

/// The behaviours of argparse that scripts lean on, each by name. `Some` is the printed value, `None` an error.
#[test]
fn each_behaviour_by_name() {
    for (argv, dest, want) in [
        (&["--lr", "-1e-5"][..], "lr", None),
        (&["--lr", "-.5"], "lr", Some("-0.5")),
        (&["--lr=-1e-5"], "lr", Some("-1e-05")),
        (&["--lr", "1_000"], "lr", Some("1000.0")),
        (&["--lr", "1", "--lr", "2"], "lr", Some("2.0")),
        (&["--data-path", "a", "--data-path", "b", "c"], "data_path", Some("['b', 'c']")),
        (&["--bf16=1"], "bf16", None),
        (&["--data-path"], "data_path", Some("[]")),
        (&["--iters", "220_000_000"], "iters", Some("220000000")),
        (&["--it", "3"], "iters", None),
        (&["--no-sync"], "sync", Some("False")),
        (&["--no-fuse"], "fuse", Some("False")),
        (&["--ramp", "1", "2", "3"], "ramp", Some("[1, 2, 3]")),
    ] {
        let got = run(argv);
        match want {
            Some(text) => {
                assert_eq!(got.violations, [], "{argv:?}");
                assert_eq!(got.args.value(dest).to_string(), text, "{argv:?}");
            }
            None => assert_eq!(got.violations.len(), 1, "{argv:?}"),
        }
    }
}

#[test]
fn all_mistakes_are_reported_and_each_names_its_cure() {
    let text = messages(&[
        "--lr",
        "abc",
        "--iters",
        "1e6",
        "--data_path",
        "x",
        "--style",
        "cosin",
        "--ramp",
        "1",
        "--bf16=1",
        "--gone",
        "4",
        "stray",
        "--nam",
        "v",
        "--modules",
    ]);
    for part in [
        "--lr: 'abc' is not a float",
        "--iters: '1e6' is not an int",
        "legal: 1000000",
        "unknown flag --data_path; did you mean --data-path?",
        "flags are spelt with dashes",
        "--style: 'cosin' is no choice of it",
        "legal: cosine, linear",
        "--ramp: expected 3 values, got 1",
        "--bf16: takes no value, got '1'",
        "--gone was removed from Megatron",
        "legal: --iters",
        "unrecognised: stray",
        "unknown flag --nam; did you mean --name?",
        "abbreviations are not accepted",
        "--modules: expected at least one value, got 0",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(messages(&["--lr", "-1e-5"]).contains("--lr=-1e-5"));
    let broken = run(&["--lr", "abc"]);
    assert!(broken.args.is_broken("lr") && !broken.args.is_broken("iters"));
}

#[test]
fn argument_files_nest_are_relative_and_carry_their_line() {
    let argv: Vec<String> = ["@conf/a.args", "--iters", "9", "--name", "@me"].map(String::from).to_vec();
    let parsed = parse(&table(), &argv, &|path| match path.to_str() {
        Some("conf/a.args") => Ok("# model\n--lr 0.5\n@sub/b.args\n--iters 3".to_string()),
        Some("conf/sub/b.args") => Ok("--style cosine --oops".to_string()),
        other => Err(std::io::Error::other(format!("no {other:?}"))),
    });
    assert_eq!(parsed.args.float("lr"), Some(0.5));
    assert_eq!(parsed.args.int("iters"), Some(9), "the last one wins");
    assert_eq!(parsed.args.text("name"), Some("@me"), "a value is no file");
    let origin = &parsed.args.entry("style").unwrap().origin;
    assert_eq!(*origin, ferrotron_config::Origin::File { path: "conf/sub/b.args".into(), line: 1 });
    let text = parsed.violations[0].to_string();
    assert!(text.contains("unknown flag --oops") && text.contains("conf/sub/b.args:1"), "{text}");

    let argv = ["@loop".to_string()];
    let looped = parse(&table(), &argv, &|_| Ok("@loop @loop".to_string()));
    assert!(looped.violations.iter().all(|v| v.what.contains("nested more than 8 deep")));
    let missing = parse(&table(), &argv, &|_| Err(std::io::Error::other("no such file")));
    assert!(missing.violations[0].what.contains("argument file loop: no such file"));
}

#[test]
fn help_takes_search_words() {
    assert_eq!(run(&["--help"]).help.as_deref(), Some(""));
    assert_eq!(run(&["--help", "tensor", "parallel", "--bf16"]).help.as_deref(), Some("tensor parallel"));
    assert_eq!(run(&["--bf16"]).help, None);
}
