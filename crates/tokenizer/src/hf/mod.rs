//! `tokenizer.json` through the `tokenizers` library, with the special tokens that `transformers` would give it.

mod files;
pub(crate) mod patterns;
mod pieces;
pub(crate) mod special;

use crate::files::read_limited;
use crate::tokenizer::{MEGATRON_CLASS, Tokenizer};
use crate::{Error, TokenizerSpec};
use serde_json::{Map, Value, json};
use special::{Around, SpecialTokens};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::{AddedToken, PostProcessorWrapper};

/// A run of whitespace this long (in characters) overflows the backtracking stack of the pattern engine, which then
/// stops splitting without a word: ids would silently differ from the reference library's.
const MAX_WHITESPACE_RUN: usize = 900_000;

/// Texts are encoded by pieces of about this size where that changes nothing.
const PIECE_BYTES: usize = 256 << 10;

/// Longest text of a tokenizer that cannot take it by pieces: about 4 GiB of memory while it is encoded.
const MAX_WHOLE_BYTES: usize = 32 << 20;

/// Largest `tokenizer.json` that is read. The largest public ones have about 35 MB.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// A tokenizer of the Hugging Face `tokenizers` library: `tokenizer.json`, or GPT-2's `vocab.json` and `merges.txt`.
///
/// As in Megatron (`megatron/core/tokenizers/text/libraries/huggingface_tokenizer.py`) the text of a special token in
/// a document becomes that token's id, what the post-processor adds around a text is kept (unless
/// `--tokenizer-hf-no-include-special-tokens`), truncation and padding saved in the file are ignored, and the
/// vocabulary counts added tokens.
#[derive(Debug)]
pub struct HuggingFaceTokenizer {
    inner: tokenizers::Tokenizer,
    name: String,
    vocab_size: usize,
    special: Ids,
    include_special_tokens: bool,
    adds_bos: bool,
    /// Set when texts may be encoded by pieces.
    around: Option<pieces::Around>,
    identifiers: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Ids {
    bos: Option<u32>,
    eos: Option<u32>,
    eod: Option<u32>,
    pad: Option<u32>,
}

impl HuggingFaceTokenizer {
    /// From `--tokenizer-model` or `--tokenizer-name-or-path`: a `tokenizer.json`, or the folder that has it, with
    /// `tokenizer_config.json`, `special_tokens_map.json` and `config.json` beside it where they exist.
    ///
    /// # Errors
    /// The path is not here, a file is not what it should be, or a token asked for is not in the vocabulary.
    pub fn from_spec(spec: &TokenizerSpec) -> Result<HuggingFaceTokenizer, Error> {
        let (flag, path) = match (&spec.tokenizer_model, &spec.tokenizer_name_or_path) {
            (Some(path), _) => ("--tokenizer-model", path),
            (None, Some(path)) => ("--tokenizer-name-or-path", path),
            (None, None) => {
                return Err(Error::MissingFlag {
                    tokenizer: "HuggingFaceTokenizer",
                    flag: "--tokenizer-model (or --tokenizer-name-or-path): a folder with tokenizer.json",
                });
            }
        };
        let files = files::locate(flag, path)?;
        let inner = read_tokenizer(&files.tokenizer)?;
        let special = SpecialTokens::read(&files)?;

        let mut ids = Map::new();
        ids.insert("class".into(), json!(MEGATRON_CLASS));
        ids.insert("tokenizer_path".into(), json!(path));
        ids.insert("vocab_file".into(), json!("None"));
        ids.insert("merges_file".into(), json!("None"));
        ids.insert("additional_special_tokens".into(), json!(python_list(&spec.special_tokens)));
        ids.insert("use_fast".into(), json!("True"));
        ids.insert("trust_remote_code".into(), json!("False"));
        ids.insert("include_special_tokens".into(), json!(python_bool(!spec.hf_no_include_special_tokens)));
        HuggingFaceTokenizer::assemble(&spec.tokenizer_type, inner, special, spec, &files.tokenizer, ids)
    }

    /// Adds the tokens that the file lacks, resolves the special ones to ids and measures the vocabulary.
    pub(crate) fn assemble(
        name: &str,
        mut inner: tokenizers::Tokenizer,
        special: SpecialTokens,
        spec: &TokenizerSpec,
        file: &Path,
        mut identifiers: Map<String, Value>,
    ) -> Result<HuggingFaceTokenizer, Error> {
        let malformed = |detail: String| Error::Malformed { path: file.into(), detail };
        inner.with_truncation(None).map_err(|e| malformed(e.to_string()))?;
        inner.with_padding(None);

        for (declared, token) in &special.added {
            let is_special = token.special;
            let tokens = [token.clone()];
            let added = if is_special { inner.add_special_tokens(tokens) } else { inner.add_tokens(tokens) };
            added.map_err(|e| malformed(e.to_string()))?;
            let got = inner.token_to_id(&token.content);
            if got != Some(*declared) {
                return Err(malformed(format!(
                    "tokenizer_config.json gives token {:?} the id {declared}, but the vocabulary gives it {}",
                    token.content,
                    got.map_or("none".into(), |id| id.to_string())
                )));
            }
        }
        let named = special.named.iter().chain(&spec.special_tokens);
        let missing: Vec<AddedToken> =
            named.filter(|t| inner.token_to_id(t).is_none()).map(|t| AddedToken::from(t.as_str(), true)).collect();
        inner.add_special_tokens(missing).map_err(|e| malformed(e.to_string()))?;

        if let Some(Around { bos, eos }) = special.around {
            let bos = special.bos.as_ref().filter(|_| bos);
            let eos = special.eos.as_ref().filter(|_| eos);
            surround(&mut inner, bos, eos).map_err(malformed)?;
        }

        let id = |token: &Option<String>| token.as_deref().and_then(|t| inner.token_to_id(t));
        let mut ids =
            Ids { bos: id(&special.bos), eos: id(&special.eos), eod: id(&special.eos), pad: id(&special.pad) };
        if let Some(token) = &spec.eod_token {
            ids.eod = Some(inner.token_to_id(token).ok_or_else(|| Error::Argument {
                flag: "--eod-token",
                detail: format!("{token:?} is not a token of {}", file.display()),
            })?);
            identifiers.insert("eod_token".into(), json!(token));
        }
        let vocab_size = vocab_size(&inner);
        let around = pieces::divisible(&inner);
        let mut tokenizer = HuggingFaceTokenizer {
            inner,
            name: name.into(),
            vocab_size,
            special: ids,
            include_special_tokens: !spec.hf_no_include_special_tokens,
            adds_bos: false,
            around,
            identifiers,
        };
        let mut probe = Vec::new();
        tokenizer.encode("a", &mut probe)?;
        tokenizer.adds_bos = tokenizer.special.bos.is_some() && probe.first().copied() == tokenizer.special.bos;
        Ok(tokenizer)
    }
}

/// Ids of a text and the bytes of it that each stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WithOffsets {
    /// The ids.
    pub ids: Vec<u32>,
    /// For each id the bytes of the text, whole characters: ids that share a character have the same.
    pub offsets: Vec<Range<usize>>,
}

impl HuggingFaceTokenizer {
    /// The ids of a text and where they come from, without anything put around it: what a rendered conversation needs,
    /// which has its special tokens in the text.
    ///
    /// # Errors
    /// [`Error::Encode`] when the text is too long to be held whole, or the library fails.
    pub fn encode_with_offsets(&self, text: &str) -> Result<WithOffsets, Error> {
        let error = |detail: String| Error::Encode { tokenizer: self.name.clone(), detail };
        if text.len() > MAX_WHOLE_BYTES {
            return Err(error(format!(
                "a text of {} bytes is over the {MAX_WHOLE_BYTES} that can be taken",
                text.len()
            )));
        }
        if text.len() >= MAX_WHITESPACE_RUN && longest_whitespace_run(text) >= MAX_WHITESPACE_RUN {
            return Err(error(format!("the text has {MAX_WHITESPACE_RUN} or more whitespace characters in a row")));
        }
        let encoding = self.inner.encode(text, false).map_err(|e| error(e.to_string()))?;
        let offsets = encoding.get_offsets().iter().map(|&(from, to)| from..to).collect();
        Ok(WithOffsets { ids: encoding.get_ids().to_vec(), offsets })
    }

    /// The id of a token of the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

/// Replaces the post-processor: `bos` before and `eos` after every text.
fn surround(inner: &mut tokenizers::Tokenizer, bos: Option<&String>, eos: Option<&String>) -> Result<(), String> {
    let id = |token: &str| inner.token_to_id(token).ok_or_else(|| format!("{token:?} is not in the vocabulary"));
    let mut tokens = Vec::new();
    for token in bos.into_iter().chain(eos) {
        tokens.push((token.clone(), id(token)?));
    }
    let special = |token: &String| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let single: Vec<Value> = bos.map(special).into_iter().chain([text]).chain(eos.map(special)).collect();
    let described = tokens.iter().map(|(t, id)| (t.clone(), json!({ "id": t, "ids": [id], "tokens": [t] })));
    let template = json!({
        "type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": Map::from_iter(described),
    });
    let processor: PostProcessorWrapper = serde_json::from_value(template).map_err(|e| e.to_string())?;
    inner.with_post_processor(Some(processor));
    Ok(())
}

/// One more than the largest id. Equal to `len(tokenizer)` of the reference unless the vocabulary has holes, where the
/// count is too small for the ids it stands for.
fn vocab_size(inner: &tokenizers::Tokenizer) -> usize {
    let largest = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
    largest.max(inner.get_vocab_size(true))
}

pub(crate) fn python_bool(b: bool) -> &'static str {
    if b { "True" } else { "False" }
}

pub(crate) fn python_list(tokens: &[String]) -> String {
    format!("[{}]", tokens.iter().map(|t| format!("'{t}'")).collect::<Vec<_>>().join(", "))
}

/// Reads a `tokenizer.json` of bounded size. The library is known to panic on some malformed files, and the file is
/// the user's: a panic becomes an error here.
fn read_tokenizer(path: &Path) -> Result<tokenizers::Tokenizer, Error> {
    let malformed = |detail: String| Error::Malformed { path: path.into(), detail };
    let bytes = read_limited(path, MAX_FILE_BYTES)?;
    catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(&bytes)))
        .map_err(|_| malformed("not a tokenizer.json: the tokenizers library crashed on it".into()))?
        .map_err(|e| malformed(format!("not a tokenizer.json that the tokenizers library can read: {e}")))
}

impl Tokenizer for HuggingFaceTokenizer {
    fn name(&self) -> &str {
        &self.name
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let error = |detail: String| Error::Encode { tokenizer: self.name.clone(), detail };
        if text.len() >= MAX_WHITESPACE_RUN && longest_whitespace_run(text) >= MAX_WHITESPACE_RUN {
            return Err(error(format!("the text has {MAX_WHITESPACE_RUN} or more whitespace characters in a row")));
        }
        match &self.around {
            Some(around) if text.len() > 2 * PIECE_BYTES => {
                let special = self.include_special_tokens;
                out.extend(around.before.iter().filter(|_| special));
                for piece in pieces::pieces(text, PIECE_BYTES) {
                    let encoding = self.inner.encode_fast(piece, false).map_err(|e| error(e.to_string()))?;
                    out.extend_from_slice(encoding.get_ids());
                }
                out.extend(around.after.iter().filter(|_| special));
            }
            None if text.len() > MAX_WHOLE_BYTES => {
                return Err(error(format!(
                    "a text of {} bytes is over the {MAX_WHOLE_BYTES} that this tokenizer, which must hold it whole, can \
                     take; split the document",
                    text.len()
                )));
            }
            _ => {
                let encoding = self.inner.encode_fast(text, self.include_special_tokens);
                out.extend_from_slice(encoding.map_err(|e| error(e.to_string()))?.get_ids());
            }
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        self.inner
            .decode(ids, !self.include_special_tokens)
            .map_err(|e| Error::Decode { tokenizer: self.name.clone(), detail: e.to_string() })
    }

    fn eod(&self) -> Option<u32> {
        self.special.eod
    }

    fn pad(&self) -> Option<u32> {
        self.special.pad
    }

    fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    fn unique_identifiers(&self) -> Map<String, Value> {
        self.identifiers.clone()
    }
}

/// Characters of the longest run of whitespace.
fn longest_whitespace_run(text: &str) -> usize {
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_runs() {
        assert_eq!(longest_whitespace_run("a  \u{3000}\tb c"), 4);
        assert_eq!(longest_whitespace_run(""), 0);
    }
}
