//! `preprocess::run` from files to files. Cases that users of other trainers met bear the ids of their collection
//! (PRE-02 and so on). The sink here is this file's own writer of Megatron's format, so nothing is shared with readers.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

mod common;

use common::{Folder, golden};
use ferrotron_tokenizer::TokenDType;
use ferrotron_tokenizer::preprocess::{DocumentSink, OutputPlan, PreprocessArgs, SinkError, Summary, run};
use proptest::prelude::*;
use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

/// Collects documents and writes both files at the end.
struct FileSink {
    plan: OutputPlan,
    tokens: Vec<u32>,
    lengths: Vec<i32>,
    documents: Vec<i64>,
}

impl DocumentSink for FileSink {
    fn add_document(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<(), SinkError> {
        assert_eq!(lengths.iter().sum::<usize>(), tokens.len());
        self.tokens.extend(tokens);
        self.lengths.extend(lengths.iter().map(|&l| l as i32));
        self.documents.push(self.lengths.len() as i64);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        let (code, size) = if self.plan.dtype == TokenDType::U16 { (8u8, 2usize) } else { (4, 4) };
        let mut bin = Vec::with_capacity(self.tokens.len() * size);
        for token in &self.tokens {
            bin.extend_from_slice(&token.to_le_bytes()[..size]);
        }
        let mut idx = b"MMIDIDX\0\0".to_vec();
        idx.extend(1u64.to_le_bytes());
        idx.push(code);
        idx.extend((self.lengths.len() as u64).to_le_bytes());
        idx.extend((self.documents.len() as u64 + 1).to_le_bytes());
        idx.extend(self.lengths.iter().flat_map(|l| l.to_le_bytes()));
        let mut pointer = 0i64;
        for &length in &self.lengths {
            idx.extend(pointer.to_le_bytes());
            pointer += i64::from(length) * size as i64;
        }
        idx.extend(std::iter::once(&0).chain(&self.documents).flat_map(|d| d.to_le_bytes()));
        fs::write(format!("{}.bin", self.plan.partial.display()), bin)?;
        fs::write(format!("{}.idx", self.plan.partial.display()), idx)?;
        Ok(())
    }
}

fn preprocess(args: &PreprocessArgs) -> Result<(Summary, String), String> {
    let mut out = Vec::new();
    let summary = run(
        args,
        &mut |plan| Ok(Box::new(FileSink { plan: plan.clone(), tokens: vec![], lengths: vec![], documents: vec![] })),
        &mut out,
    );
    summary.map(|s| (s, String::from_utf8(out).unwrap())).map_err(|e| e.to_string())
}

#[test]
fn documents_become_sequences() {
    let f = Folder::new("plain");
    let args = f.args(&f.write(
        "a.jsonl",
        "{\"text\": \"1 2\"}\n\n{\"id\": 7, \"text\": \"3\"}\n{\"text\": \"\"}\n{\"text\": \"100 0\"}",
    ));
    let (summary, log) = preprocess(&PreprocessArgs { append_eod: true, ..args }).unwrap();
    let d = f.dataset("out_text_document");
    assert_eq!(d.sequences(), [vec![1, 2, 100], vec![3, 100], vec![100, 0, 100]]);
    assert_eq!(d.documents(), [0, 1, 2, 2, 3], "the empty document has no sequence");
    assert_eq!((summary.documents, summary.blank_lines, summary.dropped, summary.bytes), (4, 1, 0, 70));
    let key = &summary.keys[0];
    assert_eq!((key.sequences, key.tokens, key.longest, key.empty), (3, 8, 3, 1));
    assert!(
        log.contains("Done: 4 documents") && log.contains("out_text_document.bin, .idx: 3 sequences, 8 tokens"),
        "{log}"
    );
    assert_eq!(f.names(), ["a.jsonl", "out_text_document.bin", "out_text_document.idx"]);
}

#[test]
fn lists_of_sentences_are_sequences_of_one_document() {
    let f = Folder::new("lists");
    let args = f.args(&f.write(
        "a.jsonl",
        "{\"text\": [\"1 2\", \"\", \"3\"]}\n{\"text\": [\"\"]}\n{\"text\": []}\n{\"text\": [\"4\"]}\n",
    ));
    preprocess(&PreprocessArgs { append_eod: true, ..args }).unwrap();
    let d = f.dataset("out_text_document");
    assert_eq!(d.sequences(), [vec![1, 2], vec![3, 100], vec![4, 100]]);
    assert_eq!(d.documents(), [0, 2, 2, 2, 3]);
}

#[test]
fn the_type_follows_the_vocabulary() {
    let f = Folder::new("dtype");
    let mut args = f.args(&f.write("a.jsonl", "{\"text\": \"1 65498\"}\n"));
    for (vocab, code) in [(65_498, 8), (65_499, 4)] {
        args.tokenizer.vocab_size = Some(vocab);
        preprocess(&args).unwrap();
        assert_eq!(f.dataset("out_text_document").idx[17], code, "{vocab}");
        assert_eq!(f.dataset("out_text_document").sequences(), [[1, 65_498]]);
    }
}

#[test]
fn pre_02_a_missing_key_lists_those_there() {
    let f = Folder::new("pre02");
    let e = preprocess(&f.args(&f.write("b.jsonl", "{\"text\":\"1 2\"}\n{\"content\":\"3\"}\n"))).unwrap_err();
    assert!(e.contains("b.jsonl:2:1: no key \"text\" (keys: content)") && e.contains("--json-keys"), "{e}");
    assert_eq!(f.names(), ["b.jsonl"]);
}

#[test]
fn pre_03_a_malformed_line_stops_or_is_set_aside() {
    let f = Folder::new("pre03");
    let args = f.args(
        &f.write("c.jsonl", "{\"text\":\"1\"}\n{\"text\":\"2\"}{\"text\":\"3\"}\n{\"text\":\"4\"}\n{\"text\":\"x\"}"),
    );
    let e = preprocess(&args).unwrap_err();
    assert!(e.contains("c.jsonl:2:13: not a JSON object: trailing characters, near"), "{e}");
    assert_eq!(f.names(), ["c.jsonl"]);

    let e = preprocess(&PreprocessArgs { skip_bad: 1, ..args.clone() }).unwrap_err();
    assert!(e.contains("c.jsonl:4:2: key \"text\": NullTokenizer: \"x\"") && e.contains("2 bad lines"), "{e}");
    assert_eq!(f.names(), ["c.jsonl"]);

    let (summary, log) = preprocess(&PreprocessArgs { skip_bad: 2, ..args }).unwrap();
    assert_eq!((summary.documents, summary.dropped), (2, 2));
    assert_eq!(f.dataset("out_text_document").sequences(), [[1], [4]]);
    assert_eq!(fs::read(f.0.join("out.bad.jsonl")).unwrap(), b"{\"text\":\"2\"}{\"text\":\"3\"}\n{\"text\":\"x\"}\n");
    assert!(log.contains("warning: skipped") && log.contains("2 bad lines dropped"), "{log}");
    assert_eq!(f.names().len(), 4);
}

#[test]
fn pre_04_byte_order_mark_and_crlf_change_nothing() {
    let f = Folder::new("pre04");
    preprocess(&f.args(&f.write("plain.jsonl", "{\"text\":\"1 2\"}\n{\"text\":\"3\"}\n"))).unwrap();
    let plain = f.dataset("out_text_document");
    assert_eq!(plain.sequences(), [vec![1, 2], vec![3]]);
    let marked = f.write("d.jsonl", "\u{feff}{\"text\":\"1 2\"}\r\n{\"text\":\"3\"}\r\n");
    preprocess(&f.args(&marked)).unwrap();
    assert_eq!(f.dataset("out_text_document"), plain);
    let joined = f.write("e.jsonl", "{\"text\":\"1 2\"}\n\u{feff}{\"text\":\"3\"}\n");
    let e = preprocess(&f.args(&joined)).unwrap_err();
    assert!(e.contains("e.jsonl:2:1: a UTF-8 byte order mark inside the file"), "{e}");
}

#[test]
fn pre_08_every_key_is_complete_and_no_records_are_valid() {
    let f = Folder::new("pre08");
    let mut args = f.args(&f.write("f.jsonl", "{\"text\":\"1 2\",\"title\":\"3\"}\n"));
    args.json_keys = vec!["text".into(), "title".into()];
    preprocess(&args).unwrap();
    assert_eq!(f.dataset("out_text_document").sequences(), [[1, 2]]);
    assert_eq!(f.dataset("out_title_document").sequences(), [[3]]);

    let (_, log) = preprocess(&f.args(&f.write("none.jsonl", ""))).unwrap();
    assert!(log.contains("warning: the input has no documents"), "{log}");
    assert_eq!(
        (f.dataset("out_text_document").sequences().len(), f.dataset("out_text_document").documents()),
        (0, vec![0])
    );
}

/// A line far over what may be in flight, among small ones: no dead-lock, and order kept.
#[test]
fn pre_12_a_huge_line_passes_the_gate() {
    let f = Folder::new("pre12");
    let mut text = String::new();
    for i in 0..200 {
        let body = "x".repeat(if i == 100 { 26 << 20 } else { 1000 });
        writeln!(text, "{{\"text\": \"{i:03}{body}\"}}").unwrap();
    }
    let mut args = f.args(&f.write("a.jsonl", text));
    args.tokenizer.tokenizer_type = "ByteLevel".into();
    args.workers = 4;
    let (summary, _) = preprocess(&args).unwrap();
    assert_eq!((summary.documents, summary.keys[0].longest), (200, (26 << 20) + 3));
    for (i, s) in f.dataset("out_text_document").sequences().iter().enumerate() {
        let digits: Vec<u32> = format!("{i:03}").bytes().map(u32::from).collect();
        assert_eq!(s[..3], digits);
    }
}

/// Several files, keys, empty texts and bad lines; the files are the same whatever the number of workers.
#[test]
fn pre_13_workers_do_not_change_the_bytes() {
    let f = Folder::new("pre13");
    let words = ["the", "fn main() {", "你好", "👩‍👩‍👧", "\\n\\t", "0123", "<|im_end|>", "ſ", "don't"];
    for file in 0..3 {
        let mut text = String::new();
        let mut state = file as u64 + 1;
        for i in 0..1000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let body: Vec<&str> = (0..state >> 59).map(|k| words[(state >> (k + 8)) as usize % words.len()]).collect();
            match i % 500 {
                499 => writeln!(text, "{{\"text\": {i}}}").unwrap(),
                _ => writeln!(text, "{{\"text\": \"{}\", \"title\": [\"{i}\", \"b\"]}}", body.join(" ")).unwrap(),
            }
        }
        f.write(&format!("part{file}.jsonl"), text);
    }
    let mut args = f.args(&format!("{}/part[0-9].jsonl", f.0.display()));
    args.json_keys = vec!["text".into(), "title".into()];
    args.tokenizer.tokenizer_type = "Qwen3Tokenizer".into();
    args.tokenizer.tokenizer_model = Some(golden("chatml"));
    args.append_eod = true;
    args.skip_bad = 6;
    let mut first = None;
    for workers in [1, 2, 5] {
        args.workers = workers;
        let (summary, _) = preprocess(&args).unwrap();
        assert_eq!((summary.documents, summary.dropped), (2994, 6));
        assert!(summary.keys[0].tokens > 30_000 && summary.keys[0].empty > 0, "{summary:?}");
        let bad = fs::read(f.0.join("out.bad.jsonl")).unwrap();
        let all = (f.dataset("out_text_document"), f.dataset("out_title_document"), bad);
        match &first {
            None => first = Some(all),
            Some(first) => assert!(*first == all, "{workers} workers"),
        }
    }
    for workers in [1, 2, 5] {
        let e = preprocess(&PreprocessArgs { skip_bad: 0, workers, ..args.clone() }).unwrap_err();
        assert!(e.contains("part0.jsonl:500:2: key \"text\" is a number"), "{e}");
    }
}

#[test]
fn pre_14_the_end_token_is_the_models() {
    let f = Folder::new("pre14");
    let mut args = f.args(&f.write("a.jsonl", "{\"text\": \"hi\"}\n"));
    args.append_eod = true;
    args.tokenizer.tokenizer_type = "HuggingFaceTokenizer".into();
    args.tokenizer.tokenizer_model = Some(golden("fallback"));
    preprocess(&args).unwrap();
    let ids = f.dataset("out_text_document").sequences().remove(0);
    assert_eq!((ids[0], ids[ids.len() - 1]), (1, 2), "<s> from the post-processor, </s> from --append-eod");

    let e = preprocess(&PreprocessArgs { prepend_bos: true, ..args.clone() }).unwrap_err();
    assert!(e.contains("--prepend-bos") && e.contains("twice"), "{e}");
    args.tokenizer.hf_no_include_special_tokens = true;
    preprocess(&PreprocessArgs { prepend_bos: true, ..args.clone() }).unwrap();
    assert_eq!(f.dataset("out_text_document").sequences()[0], ids);

    // The same tokenizer without its side files has no end token.
    let bare = f.write("tokenizer.json", fs::read(golden("fallback/tokenizer.json")).unwrap());
    args.tokenizer.tokenizer_model = Some(bare);
    let e = preprocess(&args).unwrap_err();
    assert!(e.contains("no end-of-document token, which --append-eod needs; pass --eod-token"), "{e}");
    args.tokenizer.eod_token = Some("</s>".into());
    preprocess(&args).unwrap();
    assert!(f.dataset("out_text_document").sequences()[0].ends_with(&[2]));
    args.prepend_bos = true;
    assert!(preprocess(&args).unwrap_err().contains("no beginning-of-sequence token"));
}

#[test]
fn each_bad_line_has_its_place() {
    let f = Folder::new("places");
    for (line, wanted) in [
        (&b"{\"text\": 5}"[..], "a.jsonl:3:2: key \"text\" is a number"),
        (b"{\"text\": \"1\xff\"}", "a.jsonl:3:12: not UTF-8: byte 0xff"),
        (b"{\"text\": \"1", "a.jsonl:3:11: not a JSON object: EOF"),
        (b"not json", "a.jsonl:3:2: not a JSON object: expected ident"),
        (b"{\"x\": 1, \"text\": \"1 101\"}", "a.jsonl:3:10: key \"text\": NullTokenizer: \"101\""),
    ] {
        let bytes = [b"{\"text\": \"1\"}\n\r\n", line, b"\n{\"text\": \"1\"}\n"].concat();
        let e = preprocess(&f.args(&f.write("a.jsonl", bytes))).unwrap_err();
        assert!(e.contains(wanted), "{e}");
    }
    assert_eq!(f.names(), ["a.jsonl"]);
}

#[test]
fn inputs_are_files_folders_and_patterns() {
    let f = Folder::new("inputs");
    fs::create_dir(f.0.join("sub")).unwrap();
    for (name, id) in [("sub/b.jsonl", 2), ("sub/a.json", 1), ("sub/c.txt", 3), ("z.jsonl", 4)] {
        f.write(name, format!("{{\"text\": \"{id}\"}}"));
    }
    let path = |name: &str| f.0.join(name).display().to_string();
    for (inputs, want) in [
        (vec![path("z.jsonl"), path("sub")], vec![4, 1, 2]),
        (vec![path("s*/[ab].json*")], vec![1, 2]),
        (vec![path("sub/?.txt"), path("*.jsonl")], vec![3, 4]),
    ] {
        preprocess(&PreprocessArgs { input: inputs.clone(), ..f.args("") }).unwrap();
        assert_eq!(f.dataset("out_text_document").sequences().concat(), want, "{inputs:?}");
    }
    for (input, wanted) in [
        (path("none.jsonl"), "none.jsonl: No such file"),
        (path("*.parquet"), "matches no file"),
        (f.write("a.jsonl.gz", b"\x1f\x8b\x08\0"), "a.jsonl.gz: "),
        (f.write("w.jsonl", b"\xff\xfe{\0"), "UTF-16"),
    ] {
        let e = preprocess(&f.args(&input)).unwrap_err();
        assert!(e.contains(wanted), "{e}");
    }
    fs::create_dir(f.0.join("empty")).unwrap();
    assert!(preprocess(&f.args(&path("empty"))).unwrap_err().contains("has no .jsonl or .json file"));
}

#[test]
fn mistakes_of_the_command_line_are_named() {
    let f = Folder::new("mistakes");
    let args = f.args(&f.write("a.jsonl", "{\"text\": \"1\"}\n"));
    type Change = fn(&mut PreprocessArgs);
    let cases: [(Change, &str); 7] = [
        (|a| a.workers = 0, "--workers"),
        (|a| a.log_interval = 0, "--log-interval"),
        (|a| a.json_keys = vec![], "--json-keys"),
        (|a| a.json_keys = vec!["a".into(), "a".into()], "--json-keys: \"a\" is given twice"),
        (|a| a.json_keys = vec!["a/b".into()], "slash"),
        (|a| a.input = vec![], "--input"),
        (|a| a.output_prefix = "/no/such/folder/out".into(), "--output-prefix: folder /no/such/folder"),
    ];
    for (change, wanted) in cases {
        let mut args = args.clone();
        change(&mut args);
        let e = preprocess(&args).unwrap_err();
        assert!(e.contains(wanted), "{e}");
    }
    assert_eq!(f.names(), ["a.jsonl"]);
}

/// Fails after some documents, or when it should finish, as on a full disk.
struct FullDisk(Rc<Cell<u32>>, PathBuf);

impl DocumentSink for FullDisk {
    fn add_document(&mut self, _: &[u32], _: &[usize]) -> Result<(), SinkError> {
        self.0.set(self.0.get() - 1);
        if self.0.get() == 0 {
            return Err("No space left on device".into());
        }
        Ok(())
    }
    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Err(format!("No space left on device for {}", self.1.display()).into())
    }
}

#[test]
fn a_full_disk_leaves_the_earlier_files_as_they_were() {
    let f = Folder::new("full");
    let args = f.args(&f.write("a.jsonl", "{\"text\": \"1\"}\n".repeat(50)));
    preprocess(&args).unwrap();
    let (before, names) = (f.dataset("out_text_document"), f.names());
    for documents in [10, 1000] {
        let left = Rc::new(Cell::new(documents));
        let mut open = |plan: &OutputPlan| -> Result<Box<dyn DocumentSink>, SinkError> {
            fs::write(format!("{}.bin", plan.partial.display()), b"half")?;
            Ok(Box::new(FullDisk(left.clone(), plan.partial.clone())))
        };
        let e = run(&args, &mut open, &mut Vec::new()).unwrap_err().to_string();
        assert!(e.contains("cannot write") && e.contains("No space left on device"), "{e}");
        assert_eq!(f.names(), names);
        assert_eq!(f.dataset("out_text_document"), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Random lines, good and bad: strict runs name the first bad one, skipping runs keep exactly the good ones.
    /// What is good is decided here by another parser (`serde_json::Value`).
    #[test]
    fn malformed_lines_never_pass(lines in proptest::collection::vec(
        prop_oneof![
            4 => proptest::collection::vec(0u32..=100, 0..4).prop_map(|ids| {
                let text: Vec<String> = ids.iter().map(u32::to_string).collect();
                serde_json::json!({ "text": text.join(" ") }).to_string()
            }),
            1 => "[ -~]{1,12}",
            1 => prop_oneof!["\\{\"text\": [^\n\r]{0,8}\\}", "\\{\"text\":\"[0-9 x]{0,5}\"[,}]{1,2}"],
        ],
        0..12,
    ), ended in any::<bool>()) {
        let good = |line: &str| -> Option<Vec<u32>> {
            let value: serde_json::Value = serde_json::from_str(line).ok()?;
            let text = value.as_object()?.get("text")?.as_str()?.to_string();
            text.split_whitespace().map(|w| w.parse().ok().filter(|&id| id <= 100)).collect()
        };
        let blank = |line: &&String| line.trim().is_empty();
        let first_bad = lines.iter().position(|l| !blank(&l) && good(l).is_none());
        let kept: Vec<Vec<u32>> = lines.iter().filter_map(|l| good(l)).filter(|ids| !ids.is_empty()).collect();

        let f = Folder::new("fuzz");
        let input = f.write("a.jsonl", lines.join("\n") + if ended { "\n" } else { "" });
        let result = preprocess(&f.args(&input));
        match first_bad {
            Some(at) => {
                let e = result.unwrap_err();
                prop_assert!(e.contains(&format!("a.jsonl:{}:", at + 1)), "{} in {:?}", e, lines);
            }
            None => prop_assert_eq!(result.unwrap().0.dropped, 0),
        }
        let (summary, _) = preprocess(&PreprocessArgs { skip_bad: 100, ..f.args(&input) }).unwrap();
        prop_assert_eq!(f.dataset("out_text_document").sequences(), kept);
        let bad = lines.iter().filter(|l| !blank(l) && good(l).is_none()).count();
        prop_assert_eq!(summary.dropped, bad as u64);
    }
}
