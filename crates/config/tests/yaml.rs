//! YAML files: flags as keys, Megatron's sections and field names, precedence, origins, mistakes.

mod common;

use std::io::{Error, ErrorKind};

use common::{TINY, words};
use ferrotron_config::show::{print_json, print_text};
use ferrotron_config::{Environment, Origin, Parsed, Table, parse, validate};
use proptest::prelude::*;

fn with_files(line: &str, files: &[(&str, &str)]) -> Parsed {
    parse(&Table::pretrain(), &words(line), &|path| {
        let found = files.iter().find(|(name, _)| path.to_str() == Some(name));
        found.map(|(_, text)| text.to_string()).ok_or_else(|| Error::new(ErrorKind::NotFound, "no such file"))
    })
}

fn messages(parsed: &Parsed) -> String {
    parsed.violations.iter().map(|v| format!("{v}\n")).collect()
}

/// ARG-09: the command line wins over the file, a misspelt key has a did-you-mean, each value tells its origin.
#[test]
fn arg_09_file_and_command_line_combine() {
    let parsed =
        with_files("--config c.yaml --num-layers 3 --dry-run", &[("c.yaml", "num-layers: 2\nhiden-size: 64\n")]);
    assert_eq!(parsed.args.int("num_layers"), Some(3));
    assert_eq!(parsed.args.entry("num_layers").unwrap().origin, Origin::Flag);
    let text = messages(&parsed);
    assert!(text.contains("unknown key hiden-size; did you mean hidden-size?") && text.contains("c.yaml:2"), "{text}");
    assert_eq!(parsed.violations.len(), 1);

    let parsed = with_files("--config c.yaml --num-layers 3", &[("c.yaml", "num-layers: 2\nhidden_size: 64\n")]);
    assert_eq!(parsed.violations, []);
    assert_eq!(parsed.args.entry("hidden_size").unwrap().origin, Origin::Yaml { path: "c.yaml".into(), line: 2 });
    let text = print_text(&parsed.args);
    assert!(text.contains("hidden_size = 64  (c.yaml:2)") && text.contains("num_layers = 3  (command line)"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&print_json(&parsed.args, &[], None)).unwrap();
    assert_eq!(json["args"]["hidden_size"]["origin"]["yaml"]["line"], 2);
}

#[test]
fn a_later_file_wins() {
    let files = [("a.yaml", "lr: 1\nseed: 5\n"), ("b.yaml", "lr: 2\n")];
    let args = with_files("--config a.yaml b.yaml", &files).args;
    assert_eq!((args.float("lr"), args.int("seed")), (Some(2.0), Some(5)));
    let args = with_files("--yaml-cfg a.yaml --config b.yaml", &files).args;
    assert_eq!(args.float("lr"), Some(2.0));
}

/// The structure of Megatron's `examples/gpt3/gpt_config.yaml`: sections, class fields, `None` as null.
#[test]
fn megatrons_structure_is_read() {
    let text = "
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: null
  ffn_hidden_size: ~
  hidden_dropout: 0.1
  layernorm_epsilon: 1.e-5
  layernorm_zero_centered_gamma: True
  add_bias_linear: False
  bias_activation_fusion: False
  activation_func: swiglu
  num_moe_experts: null
  window_size: null
  init_method_std: 0.02
  recompute_granularity: null
  perform_initialization: True
model_parallel:
  tensor_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: False
  batch_p2p_comm: True
  bf16: True
train_iters: 10
lr: 2.5e-4
split: 99,1,0
seq_length: 4096
max_position_embeddings: 4096
micro_batch_size: 2
data_path: [0.3, corpus_a, 0.7, corpus_b]
rampup_batch_size: null
log_interval: 1
eval_iters: 1
save_interval: 1_000
tokenizer_type: NullTokenizer
vocab_size: 100
lr_decay_style: cosine
";
    let parsed = with_files("--yaml-cfg m.yaml", &[("m.yaml", text)]);
    assert_eq!(messages(&parsed), "");
    let r = validate(&Table::pretrain(), parsed.args, &Environment::default(), parsed.violations).unwrap();
    let m = &r.config.model;
    assert_eq!((m.num_layers, m.hidden_size, m.add_bias_linear, m.norm.zero_centered_gamma), (24, 1024, false, true));
    assert_eq!(m.activation, ferrotron_config::settings::Activation::Swiglu);
    assert_eq!((m.norm.epsilon, r.config.optim.lr.lr, r.config.checkpoint.save_interval), (1e-5, 2.5e-4, Some(1000)));
    assert_eq!(r.args.texts("data_path"), ["0.3", "corpus_a", "0.7", "corpus_b"]);
    let notes = ferrotron_config::show::notices_text(&r.notices);
    assert!(notes.contains("no effect: batch_p2p_comm (upstream settings that no flag has)"), "{notes}");
}

#[test]
fn flags_and_values_are_told_apart() {
    for (text, dest, want) in [
        ("no-bias-gelu-fusion: true", "bias_gelu_fusion", "False"),
        ("bias_gelu_fusion: false", "bias_gelu_fusion", "False"),
        ("no_save_optim: yes", "no_save_optim", "True"),
        ("--bf16: on", "bf16", "True"),
        ("moe-layer-freq: [0, 1, 1]", "moe_layer_freq", "[0, 1, 1]"),
        ("moe-layer-freq: ([0]*1+[1]*2)", "moe_layer_freq", "[0, 1, 1]"),
        ("rampup_batch_size: [2, 2, 60]", "rampup_batch_size", "[2, 2, 60]"),
        ("data-path: 0.3 a 0.7 b", "data_path", "['0.3', 'a', '0.7', 'b']"),
        ("split: 1", "split", "1"),
        ("lr: 1e-4", "lr", "0.0001"),
        ("train-samples: 220_000_000", "train_samples", "220000000"),
    ] {
        let parsed = with_files("--config f", &[("f", text)]);
        assert_eq!(messages(&parsed), "", "{text}");
        assert_eq!(parsed.args.value(dest).to_string(), want, "{text}");
    }
}

#[test]
fn each_mistake_is_told() {
    for (text, part) in [
        ("lr: fast", "lr: 'fast' is not a float"),
        ("bf16: 3", "bf16: expected true or false"),
        ("lr: [1, 2]", "lr: expected one value, not a list"),
        ("optimizer: best", "optimizer: 'best' is no choice of it"),
        ("rampup_batch_size: [1, 2]", "expected 3 values, got 2"),
        ("activation_func: tanh", "'tanh' is no activation"),
        ("data-path: [[1]]", "expected plain values in the list"),
        ("- a\n- b", "expected flags and values"),
        ("a: [1", "YAML file f:"),
        ("lr: 1\nlr: 2", "YAML file f:"),
        ("a: {b: {c: {d: {e: {f: 1}}}}}", "nested more than 4 deep"),
    ] {
        let parsed = with_files("--config f", &[("f", text)]);
        assert_eq!(parsed.violations.len(), 1, "{text}: {}", messages(&parsed));
        assert!(messages(&parsed).contains(part), "{text}: {}", messages(&parsed));
    }
    assert!(messages(&with_files("--yaml-cfg gone", &[])).contains("YAML file gone: no such file"));
    assert_eq!(messages(&with_files("--config f", &[("f", "")])), "");
}

/// A file of aliases that would grow to a billion items is refused, not expanded.
#[test]
fn an_alias_bomb_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_string();
    for i in 1..10 {
        let before = format!("*a{}", i - 1);
        text.push_str(&format!("a{i}: &a{i} [{}]\n", vec![before; 10].join(", ")));
    }
    let parsed = with_files("--config f", &[("f", &text)]);
    assert!(messages(&parsed).contains("YAML file f:"), "{}", messages(&parsed));
}

#[test]
fn a_whole_command_line_as_yaml_trains() {
    let mut yaml = String::new();
    let line = words(TINY);
    for (at, flag) in line.iter().enumerate().filter(|(_, w)| w.starts_with("--")) {
        let value = line.get(at + 1).filter(|w| !w.starts_with("--")).map_or("true", String::as_str);
        yaml.push_str(&format!("{}: {value}\n", &flag[2..]));
    }
    let parsed = with_files("--config f", &[("f", &yaml)]);
    let from_file = validate(&Table::pretrain(), parsed.args, &Environment::default(), parsed.violations).unwrap();
    assert_eq!(from_file.config, common::tiny("").config);
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z_:\\- \n\\[\\]{}&*!|>#0-9.'\"%@]{0,80}") {
        with_files("--config f", &[("f", &text)]);
    }
}
