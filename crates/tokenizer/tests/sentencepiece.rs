//! Ids, text and special ids equal to those of the Python packages `sentencepiece` 0.2.3 and `tiktoken` 0.14.0, which
//! made the vectors (tests/peer/make_vectors.py): Llama-2's kind of BPE with byte fallback, Unigram with the whole
//! nmt_nfkc table and user-defined symbols, Unigram with own rules and byte fallback, BPE with spaces as suffixes, word
//! and character models; Megatron's tiktoken layout with both patterns, and OpenAI's three patterns.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use ferrotron_tokenizer::{
    SentencePieceTokenizer, TikTokenOptions, TikTokenizer, Tokenizer, TokenizerSpec, build, build_with,
};
use proptest::prelude::*;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

fn golden(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name).display().to_string()
}

fn vectors(folder: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(&format!("{folder}/vectors.json"))).unwrap()).unwrap()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect()
}

fn encode(t: &dyn Tokenizer, text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    t.encode(text, &mut out).unwrap();
    out
}

fn spec(name: &str, model: &str) -> TokenizerSpec {
    TokenizerSpec { tokenizer_type: name.into(), tokenizer_model: Some(model.into()), ..Default::default() }
}

fn sentencepiece(name: &str) -> Arc<dyn Tokenizer> {
    build(&spec("Llama2Tokenizer", &golden(&format!("spm/{name}.model")))).unwrap()
}

const MODELS: [&str; 6] = ["llama", "unigram", "gemma", "suffix", "char", "word"];

#[test]
fn sentencepiece_ids_and_text_equal_the_reference() {
    let golden = vectors("spm");
    let texts = golden["texts"].as_array().unwrap();
    assert!(texts.len() >= 150);
    for name in MODELS {
        let (t, want) = (sentencepiece(name), &golden[name]);
        assert_eq!(t.vocab_size() as u64, want["size"].as_u64().unwrap(), "{name}");
        let role = |key: &str| u32::try_from(want[key].as_i64().unwrap()).ok();
        assert_eq!(
            (t.bos(), t.eos(), t.eod(), t.pad()),
            (role("bos"), role("eos"), role("eos"), role("pad")),
            "{name}"
        );
        for (i, text) in texts.iter().enumerate() {
            let text = text.as_str().unwrap();
            let got = encode(&*t, text);
            assert_eq!(got, ids(&want["ids"][i]), "{name}: {text:?}");
            assert_eq!(t.decode(&got).unwrap(), want["decoded"][i].as_str().unwrap(), "{name}: {text:?}");
        }
    }
}

/// A text is cut at spaces where that changes nothing; here it changes something, because of unused pieces or words
/// that reach over a space. Concatenation must still give what the whole gives for the models that cut.
#[test]
fn long_texts_are_encoded_as_a_whole() {
    let golden = vectors("spm");
    for name in ["llama", "unigram", "gemma"] {
        let t = sentencepiece(name);
        let joined: Vec<&str> = golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let text = joined.join(" ").repeat(20);
        let got = encode(&*t, &text);
        assert!(got.len() > 50_000, "{name}: {}", got.len());
        // The models without removal of spaces and without rules give the text back.
        if name == "llama" {
            assert_eq!(t.decode(&got).unwrap(), text.replace('\u{2581}', " "));
        }
    }
}

fn tiktoken(name: &str) -> TikTokenizer {
    let options = TikTokenOptions { pattern: Some(name.into()), num_special_tokens: 20 };
    let spec = match name {
        "v1" | "v2" => TokenizerSpec { vocab_size: Some(500), ..spec("TikTokenizer", &golden("tiktoken/vocab.json")) },
        _ => TokenizerSpec {
            special_tokens: vec!["<|endoftext|>".into(), "<|im_end|>".into()],
            ..spec("TikTokenizer", &golden("tiktoken/tiny.tiktoken"))
        },
    };
    TikTokenizer::from_spec(&spec, &options).unwrap()
}

#[test]
fn tiktoken_ids_and_text_equal_the_reference() {
    let golden = vectors("tiktoken");
    let texts = golden["texts"].as_array().unwrap();
    for name in ["v1", "v2", "gpt2", "cl100k", "o200k"] {
        let (t, want) = (tiktoken(name), &golden[name]);
        for (i, text) in texts.iter().enumerate() {
            let text = text.as_str().unwrap();
            let got = encode(&t, text);
            assert_eq!(got, ids(&want["ids"][i]), "{name}: {text:?}");
            assert_eq!(t.decode(&got).unwrap(), want["decoded"][i].as_str().unwrap_or(text), "{name}: {text:?}");
        }
        for (i, word) in ["a", "ab", "the ", "\u{4f60}", "\u{301}", " 1"].iter().enumerate() {
            let got = encode(&t, &word.repeat(3000)).len();
            assert_eq!(got as u64, want["long"][i].as_u64().unwrap(), "{name}: 3000 times {word:?}");
        }
    }
}

#[test]
fn tiktoken_special_ids_follow_the_layout() {
    let t = tiktoken("v2");
    assert_eq!((t.vocab_size(), t.bos(), t.eod(), t.pad()), (500, Some(1), Some(2), Some(4)));
    assert_eq!(encode(&t, "<s></s><SPECIAL_19>!"), [1, 2, 19, 20 + u32::from(b'!')]);
    let t = tiktoken("cl100k");
    assert_eq!((t.vocab_size(), t.bos(), t.eod(), t.pad()), (502, None, Some(500), None));
    assert_eq!(encode(&t, "a<|im_end|>"), [u32::from(b'a'), 501]);
}

#[test]
fn wrong_vocabularies_say_what_to_do() {
    let check = |spec: &TokenizerSpec, options: TikTokenOptions, parts: &[&str]| {
        let e = build_with(spec, &options).unwrap_err().to_string();
        assert!(parts.iter().all(|p| e.contains(p)), "{e}");
    };
    let json = spec("TikTokenizer", &golden("tiktoken/vocab.json"));
    let lines = spec("TikTokenizer", &golden("tiktoken/tiny.tiktoken"));
    let default = TikTokenOptions::default;
    check(&json, default(), &["vocab.json", "131072 (--vocab-size) - 1000", "has 500 tokens, but 130072 are needed"]);
    check(&lines, default(), &["--tiktoken-pattern", "\"tiny\"", "cl100k_base"]);
    let odd = TikTokenOptions { pattern: Some("v3".into()), ..default() };
    check(&lines, odd, &["--tiktoken-pattern: \"v3\"", "v1, v2, gpt2"]);
    let few = TokenizerSpec { special_tokens: vec!["<s>".into()], ..json.clone() };
    check(&few, default(), &["--tokenizer-special-tokens", "<unk>"]);
    let none = TikTokenOptions { num_special_tokens: 3, ..default() };
    check(&json, none, &["--tiktoken-num-special-tokens: 3 must be at least the 7"]);
    check(&spec("Llama2Tokenizer", &golden("tiktoken/tiny.tiktoken")), default(), &["tiny.tiktoken", "TikTokenizer"]);
    check(&spec("Llama2Tokenizer", &golden("chatml/tokenizer.json")), default(), &["is not a SentencePiece model"]);
    let llama = spec("Llama2Tokenizer", &golden("spm/llama.model"));
    check(
        &TokenizerSpec { special_tokens: vec!["<x>".into()], ..llama.clone() },
        default(),
        &["--tokenizer-special-tokens", "when it is trained"],
    );
    check(&TokenizerSpec { eod_token: Some("<nope>".into()), ..llama }, default(), &["--eod-token", "<nope>"]);
}

#[test]
fn cache_descriptions_are_megatrons() {
    const CLASS: &str = "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText";
    let path = golden("spm/llama.model");
    assert_eq!(
        Value::Object(sentencepiece("llama").unique_identifiers()).to_string(),
        format!(r#"{{"class":"{CLASS}","tokenizer_path":"{path}","legacy":"False","special_tokens":"None"}}"#)
    );
    let path = golden("tiktoken/vocab.json");
    assert_eq!(
        Value::Object(tiktoken("v2").unique_identifiers()).to_string(),
        format!(
            r#"{{"class":"{CLASS}","tokenizer_path":"{path}","pattern":"v2","vocab_size":"500","num_special_tokens":"20","special_tokens":"None"}}"#
        )
    );
}

/// Loads if it can, and then encodes and decodes: nothing may panic, whatever the file says.
fn use_model(bytes: &[u8]) {
    if let Ok(t) = SentencePieceTokenizer::from_bytes(bytes) {
        let mut out = Vec::new();
        t.encode("Hello  w\u{f6}rld \u{3000}\u{fb01} <sep>\n\n\u{4f60}\u{597d} abc abcd \0", &mut out).unwrap();
        assert!(out.iter().all(|&id| (id as usize) < t.vocab_size()));
        t.decode(&out).unwrap();
        t.decode(&[0, 1, 2, 3, u32::MAX]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A `.model` with bytes changed, cut or doubled anywhere.
    #[test]
    fn damaged_models_never_panic(
        which in 0usize..6,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<proptest::sample::Index>(),
        shorten in any::<bool>(),
    ) {
        let mut bytes = std::fs::read(golden(&format!("spm/{}.model", MODELS[which]))).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if shorten {
            bytes.truncate(cut.index(bytes.len()));
        }
        use_model(&bytes);
    }

    /// Any bytes at all, as a model and as a vocabulary.
    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        use_model(&noise);
    }

    /// tiktoken files with bytes changed.
    #[test]
    fn damaged_vocabularies_never_panic(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        json in any::<bool>(),
    ) {
        let name = if json { "vocab.json" } else { "tiny.tiktoken" };
        let mut bytes = std::fs::read(golden(&format!("tiktoken/{name}"))).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let folder = std::env::temp_dir().join(format!("ferrotron-tiktoken-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, &bytes).unwrap();
        let spec = TokenizerSpec { vocab_size: Some(500), ..spec("TikTokenizer", &path.display().to_string()) };
        let options = TikTokenOptions { pattern: Some("v2".into()), num_special_tokens: 20 };
        if let Ok(t) = TikTokenizer::from_spec(&spec, &options) {
            // A byte may have lost its token: an error, not a panic.
            let mut out = Vec::new();
            if t.encode("the license \u{4f60}\n 12", &mut out).is_ok() {
                t.decode(&out).unwrap();
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
