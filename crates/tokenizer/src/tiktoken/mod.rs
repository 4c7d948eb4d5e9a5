//! tiktoken vocabularies: Megatron's `TikTokenizer` (a JSON list), and OpenAI's own `.tiktoken` lines.

mod merge;
mod ranks;

use crate::tokenizer::{MEGATRON_CLASS, Tokenizer};
use crate::trie::Trie;
use crate::{Error, TokenizerSpec, files};
use fancy_regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;

pub(crate) use ranks::looks_like_ranks;

/// `--tiktoken-pattern v1`, of Megatron.
const V1: &str = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
/// `--tiktoken-pattern v2`, of Megatron, the default.
const V2: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s";
const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PATTERNS: [(&str, &str); 5] = [("v1", V1), ("v2", V2), ("gpt2", GPT2), ("cl100k", CL100K), ("o200k", O200K)];

/// Special tokens that Megatron's vocabularies begin with, unless others are named.
const SPECIAL_TOKENS: [&str; 7] = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"];

/// Megatron's default of `--vocab-size` here: 2^17.
const DEFAULT_VOCAB_SIZE: usize = 131_072;

/// Largest vocabulary file that is read. The largest public ones have about 15 MB.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// A special token of one of OpenAI's vocabularies, with its id.
type Special = (&'static str, u32);

/// OpenAI's vocabularies by the name of their file: pattern and special tokens.
const KNOWN: [(&str, &str, &[Special]); 4] = [
    ("r50k_base", "gpt2", &[("<|endoftext|>", 50256)]),
    ("p50k_base", "gpt2", &[("<|endoftext|>", 50256)]),
    (
        "cl100k_base",
        "cl100k",
        &[
            ("<|endoftext|>", 100_257),
            ("<|fim_prefix|>", 100_258),
            ("<|fim_middle|>", 100_259),
            ("<|fim_suffix|>", 100_260),
            ("<|endofprompt|>", 100_276),
        ],
    ),
    ("o200k_base", "o200k", &[("<|endoftext|>", 199_999), ("<|endofprompt|>", 200_018)]),
];

/// The flags that only `TikTokenizer` has.
#[derive(Debug, Clone)]
pub struct TikTokenOptions {
    /// `--tiktoken-pattern`: `v1` or `v2` (Megatron's; the default is `v2`), or `gpt2`, `cl100k`, `o200k`.
    pub pattern: Option<String>,
    /// `--tiktoken-num-special-tokens`: ids before the first token of Megatron's JSON vocabulary.
    pub num_special_tokens: usize,
}

impl Default for TikTokenOptions {
    fn default() -> Self {
        TikTokenOptions { pattern: None, num_special_tokens: 1000 }
    }
}

/// Byte pair encoding by ranks, as the Python package `tiktoken` does it, special tokens in the text included
/// (`allowed_special="all"`).
///
/// A `.json` vocabulary is laid out as Megatron does (`tiktoken_tokenizer.py`): the special tokens come first, filled
/// up with `<SPECIAL_i>` to `--tiktoken-num-special-tokens`, and `--vocab-size` counts both. In `.tiktoken` lines ranks
/// are ids, and the tokens of `--tokenizer-special-tokens` follow the largest.
pub struct TikTokenizer {
    pattern: Regex,
    ranks: Trie,
    specials: Trie,
    /// Bytes of each id.
    tokens: HashMap<u32, Vec<u8>>,
    vocab_size: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    identifiers: Map<String, Value>,
}

impl std::fmt::Debug for TikTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TikTokenizer {{ vocab_size: {}, pattern: {} }}", self.vocab_size, self.pattern.as_str())
    }
}

/// What a file and the flags come to.
struct Layout {
    pattern: &'static str,
    ranks: ranks::Ranks,
    specials: Vec<(String, u32)>,
    vocab_size: usize,
}

impl TikTokenizer {
    /// From `--tokenizer-model` and the flags of tiktoken.
    ///
    /// # Errors
    /// The file is not here or not a vocabulary, or it does not have the size that the flags say.
    pub fn from_spec(spec: &TokenizerSpec, options: &TikTokenOptions) -> Result<TikTokenizer, Error> {
        let need = || Error::MissingFlag { tokenizer: "TikTokenizer", flag: "--tokenizer-model: a vocabulary in JSON" };
        let given = spec.tokenizer_model.as_ref().ok_or_else(need)?;
        let path = Path::new(given);
        if !path.is_file() {
            return Err(Error::NotLocal { flag: "--tokenizer-model", path: given.clone() });
        }
        let bytes = files::read_limited(path, MAX_FILE_BYTES)?;
        let layout = if path.extension().is_some_and(|e| e == "json") {
            megatron_layout(path, &bytes, spec, options)?
        } else {
            lines_layout(path, &bytes, spec, options)?
        };
        let malformed = |detail: String| Error::Malformed { path: path.into(), detail };
        let pattern =
            Regex::new(layout.pattern).map_err(|e| malformed(format!("its pattern does not compile: {e}")))?;
        let specials = Trie::new(layout.specials.iter().map(|(t, id)| (t.as_bytes(), *id)));
        let id = |token: &str| specials.get(token.as_bytes());
        let mut identifiers = identifiers(given, spec, options);
        let eos = match &spec.eod_token {
            Some(token) => {
                identifiers.insert("eod_token".into(), json!(token));
                let unknown = || Error::Argument {
                    flag: "--eod-token",
                    detail: format!("{token:?} is not a special token of {given}"),
                };
                Some(id(token).ok_or_else(unknown)?)
            }
            None => ["</s>", "<|endoftext|>", "<|end_of_text|>"].iter().find_map(|t| id(t)),
        };
        Ok(TikTokenizer {
            bos: ["<s>", "<|begin_of_text|>"].iter().find_map(|t| id(t)),
            eos,
            pad: id("<pad>"),
            pattern,
            ranks: Trie::new(layout.ranks.iter().map(|(t, id)| (t.as_slice(), *id))),
            specials,
            tokens: (layout.specials.into_iter().map(|(t, id)| (id, t.into_bytes())))
                .chain(layout.ranks.into_iter().map(|(t, id)| (id, t)))
                .collect(),
            vocab_size: layout.vocab_size,
            identifiers,
        })
    }

    fn encode_plain(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let error = |detail: String| Error::Encode { tokenizer: "TikTokenizer".into(), detail };
        for found in self.pattern.find_iter(text) {
            let word = found.map_err(|e| error(format!("the pattern engine gave up: {e}")))?.as_str();
            merge::encode_word(&self.ranks, word.as_bytes(), out)
                .map_err(|byte| error(format!("the vocabulary has no token for the byte 0x{byte:02x}")))?;
        }
        Ok(())
    }
}

/// What Megatron's `text_tokenizer.py` writes into a cache description.
fn identifiers(path: &str, spec: &TokenizerSpec, options: &TikTokenOptions) -> Map<String, Value> {
    let mut ids = Map::new();
    ids.insert("class".into(), json!(MEGATRON_CLASS));
    ids.insert("tokenizer_path".into(), json!(path));
    if let Some(pattern) = &options.pattern {
        ids.insert("pattern".into(), json!(pattern));
    }
    if let Some(size) = spec.vocab_size {
        ids.insert("vocab_size".into(), json!(size.to_string()));
    }
    ids.insert("num_special_tokens".into(), json!(options.num_special_tokens.to_string()));
    let special = match spec.special_tokens.as_slice() {
        [] => "None".into(),
        tokens => crate::hf::python_list(tokens),
    };
    ids.insert("special_tokens".into(), json!(special));
    ids
}

fn pattern(options: &TikTokenOptions, default: &str) -> Result<&'static str, Error> {
    let name = options.pattern.as_deref().unwrap_or(default);
    let names = || PATTERNS.map(|(name, _)| name).join(", ");
    let found = PATTERNS.iter().find(|(n, _)| *n == name).map(|&(_, pattern)| pattern);
    found.ok_or_else(|| Error::Argument {
        flag: "--tiktoken-pattern",
        detail: format!("{name:?} is not a pattern; there are {}", names()),
    })
}

fn megatron_layout(
    path: &Path,
    bytes: &[u8],
    spec: &TokenizerSpec,
    options: &TikTokenOptions,
) -> Result<Layout, Error> {
    let vocab_size = spec.vocab_size.unwrap_or(DEFAULT_VOCAB_SIZE);
    let count = options.num_special_tokens;
    let argument = |flag, detail: String| Err(Error::Argument { flag, detail });
    let mut specials: Vec<String> = match spec.special_tokens.as_slice() {
        [] => SPECIAL_TOKENS.map(Into::into).to_vec(),
        tokens => tokens.to_vec(),
    };
    if let Some(absent) = SPECIAL_TOKENS.iter().find(|t| !specials.iter().any(|s| s == *t)) {
        return argument(
            "--tokenizer-special-tokens",
            format!("lacks {absent}; {SPECIAL_TOKENS:?} must be among them"),
        );
    }
    if specials.len() > count || count >= vocab_size || vocab_size > i32::MAX as usize {
        return argument(
            "--tiktoken-num-special-tokens",
            format!(
                "{count} must be at least the {} special tokens, and less than the {vocab_size} of --vocab-size, which \
                 is below 2^31",
                specials.len()
            ),
        );
    }
    specials.extend((specials.len()..count).map(|i| format!("<SPECIAL_{i}>")));
    let mut sorted: Vec<&String> = specials.iter().collect();
    sorted.sort();
    if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
        return argument("--tokenizer-special-tokens", format!("{:?} is there twice", twice[0]));
    }
    let mut ranks = ranks::from_json(bytes, vocab_size - count).map_err(|detail| Error::Malformed {
        path: path.into(),
        detail: format!(
            "is not a vocabulary of {vocab_size} (--vocab-size) - {count} (--tiktoken-num-special-tokens) tokens: {detail}"
        ),
    })?;
    for (_, rank) in &mut ranks {
        *rank += count as u32;
    }
    let specials = specials.into_iter().zip(0..).collect();
    Ok(Layout { pattern: pattern(options, "v2")?, ranks, specials, vocab_size })
}

fn lines_layout(path: &Path, bytes: &[u8], spec: &TokenizerSpec, options: &TikTokenOptions) -> Result<Layout, Error> {
    let malformed = |detail| Error::Malformed { path: path.into(), detail };
    let ranks = ranks::from_lines(bytes).map_err(|e| malformed(format!("is not a tiktoken vocabulary: {e}")))?;
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let known = KNOWN.iter().find(|(name, ..)| *name == stem);
    let default = match (known, &options.pattern) {
        (Some((_, pattern, _)), _) => pattern,
        (None, Some(_)) => "",
        (None, None) => {
            let names = KNOWN.map(|(name, ..)| name).join(", ");
            return Err(Error::Argument {
                flag: "--tiktoken-pattern",
                detail: format!(
                    "a .tiktoken file does not say how text is cut into words, and {stem:?} is none of {names}; give \
                     the pattern (cl100k for Llama 3)"
                ),
            });
        }
    };
    let mut specials: Vec<(String, u32)> =
        known.map_or(vec![], |(_, _, tokens)| tokens.iter().map(|&(t, id)| (t.into(), id)).collect());
    let used = ranks.iter().map(|&(_, id)| id).chain(specials.iter().map(|&(_, id)| id)).max().unwrap_or(0);
    let new = spec.special_tokens.iter().filter(|t| !specials.iter().any(|(s, _)| s == *t));
    let new: Vec<(String, u32)> = new.cloned().zip(used + 1..).collect();
    specials.extend(new);
    let largest = ranks.iter().map(|&(_, id)| id).chain(specials.iter().map(|&(_, id)| id)).max();
    let vocab_size = largest.map_or(0, |id| id as usize + 1);
    Ok(Layout { pattern: pattern(options, default)?, ranks, specials, vocab_size })
}

impl Tokenizer for TikTokenizer {
    fn name(&self) -> &str {
        "TikTokenizer"
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let bytes = text.as_bytes();
        let (mut plain, mut at) = (0, 0);
        while at < bytes.len() {
            match self.specials.prefixes(&bytes[at..]).last() {
                Some((length, id)) => {
                    self.encode_plain(&text[plain..at], out)?;
                    out.push(id);
                    at += length;
                    plain = at;
                }
                None => at += 1,
            }
        }
        self.encode_plain(&text[plain..], out)
    }

    fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let bytes: Vec<u8> = ids.iter().filter_map(|id| self.tokens.get(id)).flatten().copied().collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn eod(&self) -> Option<u32> {
        self.eos
    }

    fn pad(&self) -> Option<u32> {
        self.pad
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn unique_identifiers(&self) -> Map<String, Value> {
        self.identifiers.clone()
    }
}
