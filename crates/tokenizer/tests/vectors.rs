//! Ids, decoded text and vocabulary sizes equal to those of the Python package `tokenizers` 0.23.3, which made
//! `tests/golden/vectors.json` from the tokenizers beside it: four kinds (Qwen and Llama-3 patterns, Llama-2's byte
//! fallback with normalizers and `<s>`, GPT-2), on code, many scripts, emoji, control characters, special tokens in
//! text, random Unicode and long runs.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use ferrotron_tokenizer::{Tokenizer, TokenizerSpec, build};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn tokenizer(kind: &str, plain: bool) -> Arc<dyn Tokenizer> {
    let mut spec = TokenizerSpec { hf_no_include_special_tokens: plain, ..Default::default() };
    if kind == "gpt2" {
        spec.tokenizer_type = "GPT2BPETokenizer".into();
        spec.vocab_file = Some(golden("gpt2/vocab.json"));
        spec.merge_file = Some(golden("gpt2/merges.txt"));
    } else {
        spec.tokenizer_type = "HuggingFaceTokenizer".into();
        spec.tokenizer_model = Some(golden(kind).display().to_string());
    }
    build(&spec).unwrap()
}

fn vectors() -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden("vectors.json")).unwrap()).unwrap()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect()
}

fn encode(t: &dyn Tokenizer, text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    t.encode(text, &mut out).unwrap();
    out
}

/// 64-bit FNV-1a over the ids as little-endian u32.
fn fnv1a(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

const KINDS: [&str; 4] = ["chatml", "llama3", "fallback", "gpt2"];

#[test]
fn ids_and_text_equal_the_reference() {
    let golden = vectors();
    let texts = golden["texts"].as_array().unwrap();
    assert!(texts.len() >= 90);
    for kind in KINDS {
        let (t, want) = (tokenizer(kind, false), &golden[kind]);
        assert_eq!(t.vocab_size() as u64, want["vocab_size"].as_u64().unwrap(), "{kind}");
        let plain = want.get("plain").map(|ids| (tokenizer(kind, true), ids));
        for (i, text) in texts.iter().enumerate() {
            let text = text.as_str().unwrap();
            let got = encode(&*t, text);
            assert_eq!(got, ids(&want["ids"][i]), "{kind}: {text:?}");
            assert_eq!(t.decode(&got).unwrap(), want["decoded"][i].as_str().unwrap_or(text), "{kind}: {text:?}");
            if let Some((t, want)) = &plain {
                assert_eq!(encode(&**t, text), ids(&want[i]), "{kind} without special tokens: {text:?}");
            }
        }
    }
}

/// Runs of up to 100000 characters: the pattern engine here is not the reference's, and could give up.
#[test]
fn long_runs_equal_the_reference() {
    let golden = vectors();
    for kind in KINDS {
        let t = tokenizer(kind, false);
        for (i, run) in golden["long"].as_array().unwrap().iter().enumerate() {
            let got = encode(&*t, &run[0].as_str().unwrap().repeat(run[1].as_u64().unwrap() as usize));
            let want = &golden[kind]["long"][i];
            assert_eq!(got.len() as u64, want[0].as_u64().unwrap(), "{kind} {run}");
            assert_eq!(fnv1a(&got), want[1].as_str().unwrap(), "{kind} {run}");
        }
    }
}

#[test]
fn special_ids_come_from_the_side_files() {
    let t = tokenizer("chatml", false);
    assert_eq!((t.eod(), t.eos(), t.pad(), t.bos(), t.adds_bos()), (Some(402), Some(402), Some(400), None, false));
    let t = tokenizer("llama3", false);
    assert_eq!((t.eod(), t.pad(), t.bos(), t.adds_bos()), (Some(404), None, Some(400), false));
    let t = tokenizer("fallback", false);
    assert_eq!((t.eod(), t.pad(), t.bos(), t.adds_bos()), (Some(2), None, Some(1), true));
    assert!(!tokenizer("fallback", true).adds_bos());
    let t = tokenizer("gpt2", false);
    assert_eq!((t.eod(), t.bos(), t.pad()), (Some(0), Some(0), None));
}

/// `add_bos_token` and `add_eos_token` of tokenizer_config.json for Llama's family, as in transformers 4.
#[test]
fn llama_configurations_overrule_the_post_processor() {
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(golden("fallback/tokenizer_config.json")).unwrap()).unwrap();
    let tokenizer = std::fs::read(golden("fallback/tokenizer.json")).unwrap();
    let plain = encode(&*self::tokenizer("fallback", true), "hello");
    for (bos, eos) in [(false, false), (true, false), (false, true), (true, true)] {
        config["add_bos_token"] = bos.into();
        config["add_eos_token"] = eos.into();
        let config = config.to_string();
        let name = format!("around-{bos}-{eos}");
        let folder =
            Folder::new(&name, &[("tokenizer.json", &tokenizer), ("tokenizer_config.json", config.as_bytes())]);
        let t = build(&folder.spec()).unwrap();
        let want: Vec<u32> =
            [1].into_iter().filter(|_| bos).chain(plain.clone()).chain([2].into_iter().filter(|_| eos)).collect();
        assert_eq!(encode(&*t, "hello"), want);
        assert_eq!(t.adds_bos(), bos);
    }
}

#[test]
fn cache_description_is_megatrons() {
    let t = tokenizer("chatml", true);
    let path = golden("chatml").display().to_string();
    assert_eq!(
        serde_json::to_string(&t.unique_identifiers()).unwrap(),
        format!(
            r#"{{"class":"megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText","tokenizer_path":"{path}","vocab_file":"None","merges_file":"None","additional_special_tokens":"[]","use_fast":"True","trust_remote_code":"False","include_special_tokens":"False"}}"#
        )
    );
}

/// `--eod-token` and `--tokenizer-special-tokens`.
#[test]
fn tokens_from_flags() {
    let spec = TokenizerSpec {
        tokenizer_type: "Qwen3Tokenizer".into(),
        tokenizer_model: Some(golden("chatml/tokenizer.json").display().to_string()),
        special_tokens: vec!["<new>".into(), "<think>".into()],
        eod_token: Some("<|endoftext|>".into()),
        ..Default::default()
    };
    let t = build(&spec).unwrap();
    assert_eq!((t.name(), t.vocab_size(), t.eod(), t.eos()), ("Qwen3Tokenizer", 406, Some(400), Some(402)));
    assert!(encode(&*t, "a<new>").ends_with(&[405]));
    let e = build(&TokenizerSpec { eod_token: Some("<nope>".into()), ..spec }).unwrap_err().to_string();
    assert!(e.contains("--eod-token") && e.contains("<nope>") && e.contains("tokenizer.json"), "{e}");
}

/// Most of a megabyte, which goes through the library by pieces: still the reference's ids.
#[test]
fn long_documents_equal_the_reference() {
    let golden = vectors();
    let document: Vec<&str> = golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let document = document.join(" x y\n").repeat(170);
    assert!(document.len() > 800_000);
    for kind in ["chatml", "llama3", "gpt2"] {
        let got = encode(&*tokenizer(kind, false), &document);
        let want = &golden[kind]["document"];
        assert_eq!(got.len() as u64, want[0].as_u64().unwrap(), "{kind}");
        assert_eq!(fnv1a(&got), want[1].as_str().unwrap(), "{kind}");
    }
}

/// 450015 is the reference's count for the longest run that is accepted.
#[test]
fn a_million_spaces_are_refused_not_garbled() {
    for kind in ["chatml", "llama3"] {
        let text = " ".repeat(899_999) + &"x y z".repeat(3);
        assert_eq!(encode(&*tokenizer(kind, false), &text).len(), 450_015, "{kind}");
    }
    let t = tokenizer("gpt2", false);
    let e = t.encode(&" ".repeat(1_000_000), &mut vec![]).unwrap_err().to_string();
    assert!(e.contains("whitespace"), "{e}");
}

/// A folder of files made for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Folder {
        let path = std::env::temp_dir().join(format!("ferrotron-tokenizer-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (file, bytes) in files {
            std::fs::write(path.join(file), bytes).unwrap();
        }
        Folder(path)
    }

    fn spec(&self) -> TokenizerSpec {
        let path = Some(self.0.display().to_string());
        TokenizerSpec { tokenizer_type: "AutoTokenizer".into(), tokenizer_model: path, ..Default::default() }
    }

    fn error(&self) -> String {
        build(&self.spec()).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn malformed_folders_are_errors_that_name_the_file() {
    let good = std::fs::read(golden("chatml/tokenizer.json")).unwrap();
    type Case<'a> = (&'a str, &'a [(&'a str, &'a [u8])], &'a [&'a str]);
    let cases: [Case; 6] = [
        ("empty", &[], &["no tokenizer.json", "copy it"]),
        ("spm", &[("tokenizer.model", b"x")], &["no tokenizer.json", "SentencePiece"]),
        ("bpe", &[("vocab.json", b"{}"), ("merges.txt", b"")], &["no tokenizer.json", "GPT2BPETokenizer"]),
        ("json", &[("tokenizer.json", b"{\"model\": 3}")], &["tokenizer.json: not a tokenizer.json"]),
        (
            "config",
            &[("tokenizer.json", &good), ("tokenizer_config.json", b"[1]")],
            &["tokenizer_config.json: not a JSON object"],
        ),
        (
            "ids",
            &[
                ("tokenizer.json", &good),
                ("tokenizer_config.json", br#"{"added_tokens_decoder": {"3": {"content": "<x>", "special": true}}}"#),
            ],
            &["\"<x>\" the id 3", "gives it 405"],
        ),
    ];
    for (name, files, wanted) in cases {
        let e = Folder::new(name, files).error();
        for w in wanted {
            assert!(e.contains(w), "{name}: {e}");
        }
    }
}

/// Cut anywhere or with a byte changed, a tokenizer.json loads or is an error; it never panics.
#[test]
fn damaged_tokenizer_json_never_panics() {
    let good = std::fs::read(golden("chatml/tokenizer.json")).unwrap();
    let mut refused = 0;
    for i in (0..good.len()).step_by(good.len() / 60) {
        let mut changed = good.clone();
        changed[i] ^= 0x15;
        for bytes in [&good[..i], &changed] {
            let folder = Folder::new("damaged", &[("tokenizer.json", bytes)]);
            let spec = TokenizerSpec {
                tokenizer_type: "HuggingFaceTokenizer".into(),
                tokenizer_model: Some(folder.0.display().to_string()),
                ..Default::default()
            };
            refused += usize::from(build(&spec).is_err());
        }
    }
    assert!(refused > 60, "{refused}");
}
