//! GPT-2's byte-level BPE from `vocab.json` and `merges.txt`.

use crate::hf::special::SpecialTokens;
use crate::hf::{python_bool, python_list};
use crate::tokenizer::MEGATRON_CLASS;
use crate::{Error, HuggingFaceTokenizer, TokenizerSpec};
use serde_json::{Map, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::AddedToken;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// The token that begins and ends documents.
const END_OF_TEXT: &str = "<|endoftext|>";

/// `GPT2BPETokenizer` (`--vocab-file`, `--merge-file`): GPT-2's pattern, bytes as printable characters, BPE.
/// `<|endoftext|>` ends documents; it is added at the end of a vocabulary that lacks it.
///
/// # Errors
/// A flag is absent, a file is not here, or it is not a vocabulary or a list of merges.
pub fn gpt2_bpe(spec: &TokenizerSpec) -> Result<HuggingFaceTokenizer, Error> {
    const NAME: &str = "GPT2BPETokenizer";
    let need = |flag| Error::MissingFlag { tokenizer: NAME, flag };
    let vocab = spec.vocab_file.as_ref().ok_or_else(|| need("--vocab-file"))?;
    let merges = spec.merge_file.as_ref().ok_or_else(|| need("--merge-file"))?;
    for (flag, path) in [("--vocab-file", vocab), ("--merge-file", merges)] {
        if !path.is_file() {
            return Err(Error::NotLocal { flag, path: path.display().to_string() });
        }
    }
    let malformed = |detail: String| Error::Malformed { path: vocab.clone(), detail };
    let (v, m) = (vocab.to_string_lossy(), merges.to_string_lossy());
    let model = catch_unwind(AssertUnwindSafe(|| BPE::from_file(&v, &m).build()))
        .map_err(|_| malformed(format!("the tokenizers library crashed on it, with merges of {}", merges.display())))?
        .map_err(|e| malformed(format!("not a BPE vocabulary for the merges of {}: {e}", merges.display())))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    inner.with_decoder(Some(ByteLevel::default()));
    let end = || Some(END_OF_TEXT.to_string());
    // Marked as special even where the vocabulary has it: its text in a document is this one token.
    inner.add_special_tokens([AddedToken::from(END_OF_TEXT, true)]).map_err(|e| malformed(e.to_string()))?;
    let special = SpecialTokens { bos: end(), eos: end(), ..Default::default() };

    let mut ids = Map::new();
    ids.insert("class".into(), json!(MEGATRON_CLASS));
    ids.insert("tokenizer_path".into(), json!(NAME));
    ids.insert("additional_special_tokens".into(), json!(python_list(&spec.special_tokens)));
    ids.insert("vocab_file".into(), json!(vocab.display().to_string()));
    ids.insert("merges_file".into(), json!(merges.display().to_string()));
    ids.insert("use_fast".into(), json!("True"));
    ids.insert("trust_remote_code".into(), json!("False"));
    ids.insert("include_special_tokens".into(), json!(python_bool(!spec.hf_no_include_special_tokens)));
    HuggingFaceTokenizer::assemble(NAME, inner, special, spec, vocab, ids)
}
