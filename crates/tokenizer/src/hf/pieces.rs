//! Long texts in pieces. The library needs about 130 bytes of memory for each byte of a text, so a document of a few
//! hundred megabytes would take the machine down. Where it provably changes no id, a text is cut and encoded by parts.

use super::patterns::{LLAMA3, QWEN};
use serde_json::Value;
use tokenizers::models::ModelWrapper;

/// Patterns of byte-level BPE for which [`pieces`] is exact. GPT-2's is built into `ByteLevel`.
const PATTERNS: [&str; 2] = [LLAMA3, QWEN];

/// What the post-processor puts around a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Around {
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

/// Whether texts may be cut, and then what surrounds a whole one.
///
/// They may when words are found by one of the known patterns and encoded each for itself, no added token has
/// whitespace in or around it, and nothing but NFC (which never reaches over a space or newline) comes before.
pub(super) fn divisible(inner: &tokenizers::Tokenizer) -> Option<Around> {
    let by_words = matches!(inner.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_none());
    let normalizer = serde_json::to_value(inner.get_normalizer()).ok()?;
    let plain = normalizer.is_null() || normalizer["type"] == "NFC";
    let pre_tokenizer = serde_json::to_value(inner.get_pre_tokenizer()).ok()?;
    let tokens = inner.get_added_tokens_decoder();
    let tight = |t: &tokenizers::AddedToken| {
        !(t.lstrip || t.rstrip || t.single_word || t.content.contains(char::is_whitespace))
    };
    if !(by_words && plain && known(&pre_tokenizer) && tokens.values().all(tight)) {
        return None;
    }
    let whole = inner.encode_fast("a", true).ok()?;
    let bare = inner.encode_fast("a", false).ok()?;
    let (whole, bare) = (whole.get_ids(), bare.get_ids());
    let mut places = (0..=whole.len().checked_sub(bare.len())?).filter(|&i| whole[i..].starts_with(bare));
    let (at, None) = (places.next()?, places.next()) else { return None };
    Some(Around { before: whole[..at].to_vec(), after: whole[at + bare.len()..].to_vec() })
}

fn known(pre_tokenizer: &Value) -> bool {
    let byte_level =
        |v: &Value, regex: bool| v["type"] == "ByteLevel" && v["add_prefix_space"] == false && v["use_regex"] == regex;
    let split = |v: &Value| {
        v["type"] == "Split"
            && v["behavior"] == "Isolated"
            && v["invert"] == false
            && v["pattern"]["Regex"].as_str().is_some_and(|p| PATTERNS.contains(&p))
    };
    match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        None => byte_level(pre_tokenizer, true),
        Some([first, second]) => pre_tokenizer["type"] == "Sequence" && split(first) && byte_level(second, false),
        Some(_) => false,
    }
}

/// Parts of a text of about `size` bytes; a text without a place to cut stays whole.
///
/// A cut is made in two places, at which every pattern above ends a word whatever follows, and begins one whatever
/// came before. Their only look-ahead is `\s+(?!\S)`, so the left part must not end in a run of whitespace:
/// * before a single space between an ASCII letter or digit and an ASCII letter: words of letters and digits do not
///   contain a space, and the space belongs to the word after it;
/// * after a single newline between a character that is not whitespace and a letter or digit: `\n` ends a word of
///   punctuation or is one by itself, and is no letter's prefix.
pub(super) fn pieces(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(cut(rest, size));
        rest = tail;
        Some(piece)
    })
}

/// Length of the first piece: the first good place from `size` bytes on, or all.
fn cut(text: &str, size: usize) -> usize {
    let bytes = text.as_bytes();
    for at in size.max(1)..bytes.len().saturating_sub(1) {
        match bytes[at] {
            b' ' if bytes[at - 1].is_ascii_alphanumeric() && bytes[at + 1].is_ascii_alphabetic() => return at,
            b'\n' => {
                let before = text[..at].chars().next_back();
                let after = text[at + 1..].chars().next();
                if before.is_some_and(|c| !c.is_whitespace()) && after.is_some_and(char::is_alphanumeric) {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HuggingFaceTokenizer, TokenizerSpec, gpt2_bpe};
    use proptest::prelude::*;

    #[test]
    fn cuts_are_before_single_spaces_and_after_single_newlines() {
        let check = |text: &str, want: &[&str]| assert_eq!(pieces(text, 1).collect::<Vec<_>>(), want, "{text:?}");
        check("ab cd  ef gh", &["ab", " cd  ef", " gh"]);
        check("a1 b. c\td 5 e", &["a1", " b. c\td 5", " e"]);
        check("你好。\n世界\n\nx\n y\nz", &["你好。\n", "世界\n\nx\n y\n", "z"]);
        check(" a", &[" a"]);
        check("", &[]);
        assert_eq!(pieces("aa bb cc dd", 4).collect::<Vec<_>>(), ["aa bb", " cc dd"]);
    }

    fn golden(name: &str) -> String {
        format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    fn hf(name: &str) -> HuggingFaceTokenizer {
        HuggingFaceTokenizer::from_spec(&TokenizerSpec { tokenizer_model: Some(golden(name)), ..Default::default() })
            .unwrap()
    }

    fn tokenizers() -> Vec<HuggingFaceTokenizer> {
        let gpt2 = TokenizerSpec {
            vocab_file: Some(golden("gpt2/vocab.json").into()),
            merge_file: Some(golden("gpt2/merges.txt").into()),
            ..Default::default()
        };
        vec![hf("chatml"), hf("llama3"), gpt2_bpe(&gpt2).unwrap()]
    }

    #[test]
    fn the_known_families_are_divisible_and_others_are_not() {
        for t in tokenizers() {
            assert_eq!(t.around, Some(Around::default()), "{t:?}");
        }
        assert_eq!(hf("fallback").around, None);
    }

    /// The post-processor's tokens stand once around the whole, not around each piece.
    #[test]
    fn what_surrounds_a_text_surrounds_it_once() {
        let mut json: Value = serde_json::from_slice(&std::fs::read(golden("llama3/tokenizer.json")).unwrap()).unwrap();
        let special = |t: &str| serde_json::json!({"SpecialToken": {"id": t, "type_id": 0}});
        let (begin, end) = ("<|begin_of_text|>", "<|eot_id|>");
        json["post_processor"]["single"] =
            serde_json::json!([special(begin), {"Sequence": {"id": "A", "type_id": 0}}, special(end)]);
        json["post_processor"]["special_tokens"] = serde_json::json!({
            begin: {"id": begin, "ids": [400], "tokens": [begin]},
            end: {"id": end, "ids": [404], "tokens": [end]},
        });
        let inner: tokenizers::Tokenizer = json.to_string().parse().unwrap();
        assert_eq!(divisible(&inner), Some(Around { before: vec![400], after: vec![404] }));
    }

    #[test]
    fn pieces_change_no_id() {
        let part = prop_oneof![
            3 => "[a-z]{1,6}",
            3 => Just(" ".to_string()),
            2 => Just("\n".to_string()),
            1 => "[ \t\r\n]{1,4}",
            1 => "[0-9]{1,5}",
            1 => "'(s|re|LL|x)",
            1 => "\\PC{1,4}",
            1 => "(<\\|im_end\\|>|<\\|endoftext\\|>|<think>|e\u{301})",
            1 => "[.,/;!\u{3002}\u{a0}\u{3000}]{1,3}",
        ];
        let tokenizers = tokenizers();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
        let property = |parts: Vec<String>| {
            let text = parts.concat();
            for t in &tokenizers {
                let whole = t.inner.encode_fast(text.as_str(), true).unwrap().get_ids().to_vec();
                let mut cut = Vec::new();
                for piece in pieces(&text, 3) {
                    cut.extend_from_slice(t.inner.encode_fast(piece, true).unwrap().get_ids());
                }
                prop_assert_eq!(cut, whole, "{:?}", text);
            }
            Ok(())
        };
        runner.run(&proptest::collection::vec(part, 0..40), property).unwrap();
    }
}
