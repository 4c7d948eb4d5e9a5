//! Training: the same file however many threads there are, ids and text of the reference library from the result, and
//! merges equal to those of a plain counting loop.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

mod common;

use common::{Folder, golden};
use ferrotron_tokenizer::{BpeTraining, TokenizerSpec, Words, bpe_train, build};
use serde_json::Value;
use std::collections::HashMap;

fn training(f: &Folder, input: &str) -> BpeTraining {
    BpeTraining {
        input: vec![input.into()],
        json_keys: vec!["text".into()],
        vocab_size: 400,
        min_frequency: 2,
        special_tokens: vec!["<|endoftext|>".into(), "<|pad|>".into()],
        words: Words::Gpt2,
        output: f.0.join("out"),
    }
}

/// Texts of the golden vectors as a corpus.
fn corpus(f: &Folder) -> String {
    let vectors: Value = serde_json::from_slice(&std::fs::read(golden("vectors.json")).unwrap()).unwrap();
    let lines: Vec<String> =
        vectors["texts"].as_array().unwrap().iter().map(|t| serde_json::json!({ "text": t }).to_string()).collect();
    f.write("corpus.jsonl", lines.join("\n").repeat(3).replace("}{", "}\n{"))
}

#[test]
fn training_is_deterministic_and_the_result_is_usable() {
    let f = Folder::new("train");
    let mut training = training(&f, &corpus(&f));
    for words in [Words::Gpt2, Words::Llama3, Words::Qwen] {
        training.words = words;
        let trained = bpe_train(&training).unwrap();
        assert_eq!(trained.vocab_size, 400);
        assert!(trained.texts > 250 && trained.bytes > 10_000, "{trained:?}");
        let file = std::fs::read(training.output.join("tokenizer.json")).unwrap();
        for _ in 0..3 {
            bpe_train(&training).unwrap();
            assert!(std::fs::read(training.output.join("tokenizer.json")).unwrap() == file, "{words:?}");
        }
        let t = build(&TokenizerSpec {
            tokenizer_type: "HuggingFaceTokenizer".into(),
            tokenizer_model: Some(training.output.display().to_string()),
            ..Default::default()
        })
        .unwrap();
        assert_eq!((t.vocab_size(), t.eod(), t.bos()), (400, Some(0), Some(0)));
        for text in ["Hello  w\u{f6}rld 123 \u{4f60}\u{597d} \u{1f600}\n", "<|pad|> don't", ""] {
            let mut ids = Vec::new();
            t.encode(text, &mut ids).unwrap();
            assert_eq!(t.decode(&ids).unwrap(), text);
        }
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&training.output).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["tokenizer.json", "tokenizer_config.json"]);
}

/// The definition of BPE: count pairs, join the most frequent (of equals the pair of the lowest ids), until the
/// vocabulary is full or no pair is frequent enough.
#[test]
fn merges_are_those_of_a_plain_loop() {
    let f = Folder::new("train-plain");
    let text = "low low low low lower lower newest newest newest newest newest newest widest widest widest";
    let training = BpeTraining {
        vocab_size: 256 + 2 + 14,
        ..training(&f, &f.write("c.jsonl", serde_json::json!({ "text": text }).to_string()))
    };
    bpe_train(&training).unwrap();
    let json: Value = serde_json::from_slice(&std::fs::read(training.output.join("tokenizer.json")).unwrap()).unwrap();
    let vocab = &json["model"]["vocab"];
    let mut ids: HashMap<String, u64> =
        vocab.as_object().unwrap().iter().map(|(t, id)| (t.clone(), id.as_u64().unwrap())).collect();
    ids.retain(|token, &mut id| id < 258 && token.chars().count() >= 1);

    let words: Vec<String> =
        text.split(' ').enumerate().map(|(i, w)| format!("{}{w}", if i > 0 { "Ġ" } else { "" })).collect();
    let mut words: Vec<Vec<String>> = words.iter().map(|w| w.chars().map(String::from).collect()).collect();
    let mut merges = Vec::new();
    while merges.len() < 14 {
        let mut counts: HashMap<(String, String), u64> = HashMap::new();
        for word in &words {
            for pair in word.windows(2) {
                *counts.entry((pair[0].clone(), pair[1].clone())).or_default() += 1;
            }
        }
        let order = |(a, b): &(String, String)| (ids[a], ids[b]);
        let best = counts.iter().filter(|(_, n)| **n >= 2).max_by_key(|(p, n)| (**n, std::cmp::Reverse(order(p))));
        let Some((pair, _)) = best else { break };
        let (a, b) = pair.clone();
        ids.insert(format!("{a}{b}"), 258 + merges.len() as u64);
        for word in &mut words {
            let mut i = 0;
            while i + 1 < word.len() {
                if word[i] == a && word[i + 1] == b {
                    word[i] = format!("{a}{b}");
                    word.remove(i + 1);
                }
                i += 1;
            }
        }
        merges.push(serde_json::json!([a, b]));
    }
    assert_eq!(json["model"]["merges"], Value::Array(merges));
}

#[test]
fn mistakes_are_named_and_leave_nothing() {
    let f = Folder::new("train-errors");
    let good = training(&f, &corpus(&f));
    let check = |training: BpeTraining, part: &str| {
        let e = bpe_train(&training).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
        assert!(!training.output.join("tokenizer.json").exists());
    };
    check(
        BpeTraining { vocab_size: 257, ..good.clone() },
        "--vocab-size: 257 is less than the 256 bytes and 2 special",
    );
    check(BpeTraining { special_tokens: vec!["a".into(), "a".into()], ..good.clone() }, "token 2 (\"a\")");
    check(BpeTraining { json_keys: vec!["body".into()], ..good.clone() }, "corpus.jsonl:1:1: no key \"body\"");
    check(BpeTraining { json_keys: vec![], ..good.clone() }, "--json-keys");
    check(BpeTraining { input: vec![f.write("bad.jsonl", "{\"text\": \"a\"}\n{\n")], ..good.clone() }, "bad.jsonl:2:");
    f.write("file", "");
    check(BpeTraining { output: f.0.join("file"), ..good }, "cannot make the folder");
}
