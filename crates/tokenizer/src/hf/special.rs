//! Special tokens as `transformers` settles them: `tokenizer_config.json`, then `special_tokens_map.json`, then the
//! defaults of the tokenizer class.

use super::files::Files;
use crate::Error;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

/// The tokens with a role, and those that the configuration adds to the vocabulary.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    /// Begins a sequence.
    pub bos: Option<String>,
    /// Ends a sequence, and a document.
    pub eos: Option<String>,
    /// Padding.
    pub pad: Option<String>,
    /// All tokens of the vocabulary that the files name, in the order in which `transformers` adds missing ones.
    pub named: Vec<String>,
    /// `added_tokens_decoder`: declared id and token, in order of id.
    pub added: Vec<(u32, AddedToken)>,
    /// Whether texts begin with bos and end with eos, where the configuration overrules `tokenizer.json`.
    pub around: Option<Around>,
}

/// `add_bos_token` and `add_eos_token`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Around {
    pub bos: bool,
    pub eos: bool,
}

/// What a class of `transformers` takes for `(bos, eos, pad)` when no file says.
fn class_defaults(class: &str, model_type: &str) -> [Option<&'static str>; 3] {
    const END: Option<&str> = Some("<|endoftext|>");
    match (class.trim_end_matches("Fast"), model_type) {
        ("GPT2Tokenizer" | "GPTNeoXTokenizer", _) | ("", "gpt2" | "gpt_neox") => [END, END, None],
        ("Qwen2Tokenizer", _) | ("", "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe") => [None, END, END],
        ("LlamaTokenizer", _) | ("", "llama" | "mistral" | "mixtral") => [Some("<s>"), Some("</s>"), None],
        _ => [None; 3],
    }
}

/// The classes of Llama's family replace the post-processor by what `add_bos_token` (true unless given) and
/// `add_eos_token` (false unless given) say. That is transformers 4; version 5 leaves the post-processor as it is, and
/// so it is here when neither is given, and for all other classes.
fn around(class: &str, config: &Map<String, Value>) -> Option<Around> {
    let family = ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"];
    let given = |name: &str| config.get(name).and_then(Value::as_bool);
    let (bos, eos) = (given("add_bos_token"), given("add_eos_token"));
    let applies = family.contains(&class.trim_end_matches("Fast")) && (bos.is_some() || eos.is_some());
    applies.then(|| Around { bos: bos.unwrap_or(true), eos: eos.unwrap_or(false) })
}

impl SpecialTokens {
    /// Reads the side files of a tokenizer; absent files leave only the defaults.
    pub(super) fn read(files: &Files) -> Result<SpecialTokens, Error> {
        let config = files.object("tokenizer_config.json")?;
        let map = files.object("special_tokens_map.json")?;
        let model = files.object("config.json")?;

        let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        let model_type = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let [bos_default, eos_default, pad_default] = class_defaults(class, model_type);
        let role = |name: &str, default: Option<&str>| -> Result<Option<String>, Error> {
            match config.get(name).or_else(|| map.get(name)) {
                None => Ok(default.map(Into::into)),
                Some(value) => token_content(name, value).map_err(|detail| malformed(files, detail)),
            }
        };
        let bos = role("bos_token", bos_default)?;
        let eos = role("eos_token", eos_default)?;
        let unk = role("unk_token", None)?;
        let sep = role("sep_token", None)?;
        let pad = role("pad_token", pad_default)?;
        let cls = role("cls_token", None)?;
        let mask = role("mask_token", None)?;
        let mut named: Vec<String> =
            [&bos, &eos, &unk, &sep, &pad, &cls, &mask].into_iter().flatten().cloned().collect();
        if let Some(Value::Array(more)) = config.get("additional_special_tokens") {
            for token in more {
                let token = token_content("additional_special_tokens", token);
                named.extend(token.map_err(|detail| malformed(files, detail))?);
            }
        }
        let added = added_tokens(&config).map_err(|detail| malformed(files, detail))?;
        // Megatron: a tokenizer without bos or eos uses cls and sep in their place.
        Ok(SpecialTokens { bos: bos.or(cls), eos: eos.or(sep), pad, named, added, around: around(class, &config) })
    }
}

fn malformed(files: &Files, detail: String) -> Error {
    Error::Malformed { path: files.folder.join("tokenizer_config.json"), detail }
}

/// A token is a string, an object with `content`, or null for none. Empty means none, as in Python's `if token`.
fn token_content(name: &str, value: &Value) -> Result<Option<String>, String> {
    let text = match value {
        Value::Null | Value::Bool(false) => return Ok(None),
        Value::String(text) => Some(text.as_str()),
        Value::Object(o) => o.get("content").and_then(Value::as_str),
        _ => None,
    };
    match text {
        Some("") => Ok(None),
        Some(text) => Ok(Some(text.into())),
        None => Err(format!("{name} is {value}, expected a string or an object with \"content\"")),
    }
}

fn added_tokens(config: &Map<String, Value>) -> Result<Vec<(u32, AddedToken)>, String> {
    let Some(Value::Object(decoder)) = config.get("added_tokens_decoder") else { return Ok(vec![]) };
    let mut added = Vec::with_capacity(decoder.len());
    for (id, token) in decoder {
        let wrong = || format!("added_tokens_decoder: entry {id:?} is not an id with a token: {token}");
        let content = token.get("content").and_then(Value::as_str).filter(|c| !c.is_empty()).ok_or_else(wrong)?;
        let flag = |name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
        let parsed = AddedToken::from(content, flag("special"))
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(flag("normalized"));
        added.push((id.parse().map_err(|_| wrong())?, parsed));
    }
    added.sort_by_key(|(id, _)| *id);
    Ok(added)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_are_strings_objects_or_null() {
        assert_eq!(token_content("eos_token", &json!("</s>")).unwrap().as_deref(), Some("</s>"));
        assert_eq!(token_content("eos_token", &json!({"content": "x", "lstrip": true})).unwrap().as_deref(), Some("x"));
        assert_eq!(token_content("eos_token", &json!(null)).unwrap(), None);
        assert_eq!(token_content("eos_token", &json!("")).unwrap(), None);
        assert!(token_content("eos_token", &json!(3)).unwrap_err().contains("eos_token is 3"));
    }

    #[test]
    fn only_llamas_family_may_overrule_the_post_processor() {
        let check = |class: &str, config: Value, want: Option<(bool, bool)>| {
            let want = want.map(|(bos, eos)| Around { bos, eos });
            assert_eq!(around(class, config.as_object().unwrap()), want, "{class} {config}");
        };
        check("LlamaTokenizerFast", json!({}), None);
        check("LlamaTokenizer", json!({"add_bos_token": false}), Some((false, false)));
        check("GemmaTokenizerFast", json!({"add_eos_token": true}), Some((true, true)));
        check("PreTrainedTokenizerFast", json!({"add_bos_token": true}), None);
        check("LlamaTokenizer", json!({"add_bos_token": null}), None);
    }

    #[test]
    fn added_tokens_come_in_order_of_id() {
        let config = json!({"added_tokens_decoder": {"10": {"content": "b"}, "9": {"content": "a", "special": true}}});
        let added = added_tokens(config.as_object().unwrap()).unwrap();
        assert_eq!(
            added.iter().map(|(id, t)| (*id, t.content.as_str(), t.special)).collect::<Vec<_>>(),
            [(9, "a", true), (10, "b", false)]
        );
        for bad in [json!({"x": {"content": "b"}}), json!({"1": {}}), json!({"-1": {"content": "b"}})] {
            let config = json!({ "added_tokens_decoder": bad });
            assert!(added_tokens(config.as_object().unwrap()).unwrap_err().contains("not an id with a token"));
        }
    }
}
