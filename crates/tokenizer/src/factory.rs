//! `--tokenizer-type` and its companions to a tokenizer. Nothing here ever touches the network.

use crate::{
    ByteLevelTokenizer, Error, HuggingFaceTokenizer, NullTokenizer, SentencePieceTokenizer, TikTokenOptions,
    TikTokenizer, Tokenizer, gpt2_bpe,
};
use std::path::PathBuf;
use std::sync::Arc;

/// The tokenizer flags of a command line, as typed.
#[derive(Debug, Clone, Default)]
pub struct TokenizerSpec {
    /// `--tokenizer-type`.
    pub tokenizer_type: String,
    /// `--tokenizer-model`: a `tokenizer.json` or the folder that has it; a `.model`; a tiktoken vocabulary.
    pub tokenizer_model: Option<String>,
    /// `--tokenizer-name-or-path` (Megatron-DeepSpeed, MindSpeed-LLM): the same, for `PretrainedFromHF`.
    pub tokenizer_name_or_path: Option<String>,
    /// `--vocab-file`: `vocab.json` of `GPT2BPETokenizer`.
    pub vocab_file: Option<PathBuf>,
    /// `--merge-file`: `merges.txt` of `GPT2BPETokenizer`.
    pub merge_file: Option<PathBuf>,
    /// `--vocab-size`, for `NullTokenizer`.
    pub vocab_size: Option<usize>,
    /// `--tokenizer-special-tokens`: added at the end of the vocabulary unless they are in it.
    pub special_tokens: Vec<String>,
    /// `--eod-token`: the token that ends documents, instead of the tokenizer's end-of-sequence token.
    pub eod_token: Option<String>,
    /// `--null-tokenizer-eod-id`.
    pub null_eod_id: Option<i64>,
    /// `--null-tokenizer-pad-id`; -1 means none.
    pub null_pad_id: Option<i64>,
    /// `--tokenizer-hf-no-include-special-tokens`: leave out what the tokenizer's post-processor adds around a text.
    pub hf_no_include_special_tokens: bool,
}

/// What an error offers to those whose `--tokenizer-type` is not available.
const AVAILABLE: &str = "HuggingFaceTokenizer, PretrainedFromHF and model names such as Qwen3Tokenizer (a folder with \
    tokenizer.json), GPT2BPETokenizer (--vocab-file, --merge-file), SentencePieceTokenizer and Llama2Tokenizer (a .model \
    file), TikTokenizer (a tiktoken vocabulary), ByteLevelTokenizer, NullTokenizer (--vocab-size)";

/// Names of a SentencePiece `.model` file.
const SENTENCEPIECE_NAMES: &[&str] = &["SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"];

/// Names by which forks of Megatron and the transformers library call a tokenizer that is a `tokenizer.json` folder.
/// Compared without regard to case: forks disagree (`Llama3Tokenizer`, `LLama3Tokenizer`).
const HF_NAMES: &[&str] = &[
    "HuggingFaceTokenizer",
    "PretrainedFromHF",
    "HFTokenizer",
    "AutoTokenizer",
    "PreTrainedTokenizerFast",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "Llama3Tokenizer",
    "MistralTokenizer",
    "MixtralTokenizer",
    "QwenTokenizer",
    "Qwen2Tokenizer",
    "Qwen2TokenizerFast",
    "Qwen2VLTokenizer",
    "Qwen3Tokenizer",
    "DeepSeekTokenizer",
    "DeepSeekV2Tokenizer",
    "DeepSeekV3Tokenizer",
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
    "GPTNeoXTokenizer",
    "GPTNeoXTokenizerFast",
    "BaichuanTokenizer",
    "ChatGLM4Tokenizer",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "InternLM2Tokenizer",
    "PhiTokenizer",
    "YiTokenizer",
];

/// Builds the tokenizer that the flags name.
///
/// # Errors
/// One message naming the flag, what was found and what works; a path that is not on this machine is never fetched.
pub fn build(spec: &TokenizerSpec) -> Result<Arc<dyn Tokenizer>, Error> {
    build_with(spec, &TikTokenOptions::default())
}

/// As [`build`], with the flags of tiktoken.
///
/// # Errors
/// As [`build`].
pub fn build_with(spec: &TokenizerSpec, tiktoken: &TikTokenOptions) -> Result<Arc<dyn Tokenizer>, Error> {
    let name = spec.tokenizer_type.as_str();
    match name {
        "" => Err(Error::Argument { flag: "--tokenizer-type", detail: format!("not given. Available: {AVAILABLE}") }),
        "ByteLevel" | "ByteLevelTokenizer" => Ok(Arc::new(ByteLevelTokenizer::from_spec(spec)?)),
        "NullTokenizer" => Ok(Arc::new(NullTokenizer::from_spec(spec)?)),
        "GPT2BPETokenizer" => Ok(Arc::new(gpt2_bpe(spec)?)),
        "TikTokenizer" => Ok(Arc::new(TikTokenizer::from_spec(spec, tiktoken)?)),
        _ if SENTENCEPIECE_NAMES.iter().any(|n| n.eq_ignore_ascii_case(name)) => {
            Ok(Arc::new(SentencePieceTokenizer::from_spec(spec)?))
        }
        _ if HF_NAMES.iter().any(|n| n.eq_ignore_ascii_case(name)) => {
            Ok(Arc::new(HuggingFaceTokenizer::from_spec(spec)?))
        }
        _ => Err(Error::UnavailableType { name: name.into(), reason: why_not(name).into(), available: AVAILABLE }),
    }
}

/// What stands in the way of a name that [`build`] does not know.
fn why_not(name: &str) -> &'static str {
    match name {
        "MagistralTokenizer" => {
            "the vocabularies of mistral-common are not read; use HuggingFaceTokenizer with the model's tokenizer.json"
        }
        "BertWordPieceLowerCase" | "BertWordPieceCase" => {
            "BERT vocab.txt files are not read; use HuggingFaceTokenizer with the model's tokenizer.json"
        }
        "SFTTokenizer" | "MultimodalTokenizer" | "NullMultimodalTokenizer" => {
            "conversations and images are not read yet; this program trains on plain text"
        }
        _ => "no tokenizer has this name",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> TokenizerSpec {
        TokenizerSpec { tokenizer_type: name.into(), ..Default::default() }
    }

    #[test]
    fn names_that_need_no_file() {
        for name in ["ByteLevel", "ByteLevelTokenizer"] {
            assert_eq!(build(&spec(name)).unwrap().name(), "ByteLevelTokenizer");
        }
        assert_eq!(build(&TokenizerSpec { vocab_size: Some(7), ..spec("NullTokenizer") }).unwrap().vocab_size(), 8);
    }

    #[test]
    fn other_names_say_why_and_what_works() {
        for (name, why) in [
            ("MagistralTokenizer", "mistral-common"),
            ("BertWordPieceCase", "vocab.txt"),
            ("SFTTokenizer", "conversations"),
            ("Gpt5Tokeniser", "no tokenizer has this name"),
            ("", "--tokenizer-type: not given"),
        ] {
            let e = build(&spec(name)).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains("Qwen3Tokenizer") && e.contains("NullTokenizer"), "{e}");
        }
    }

    #[test]
    fn hub_names_are_never_fetched() {
        for name in ["HuggingFaceTokenizer", "Qwen3Tokenizer", "LLama3Tokenizer"] {
            let e = build(&TokenizerSpec { tokenizer_model: Some("Qwen/Qwen3-8B".into()), ..spec(name) }).unwrap_err();
            assert!(e.to_string().contains("--tokenizer-model Qwen/Qwen3-8B: no such file"), "{e}");
            assert!(e.to_string().contains("Nothing is downloaded"), "{e}");
        }
        let e = build(&TokenizerSpec { tokenizer_name_or_path: Some("/nowhere".into()), ..spec("PretrainedFromHF") });
        assert!(e.unwrap_err().to_string().contains("--tokenizer-name-or-path /nowhere"));
        for name in ["Llama2Tokenizer", "LLama2Tokenizer", "GPTSentencePieceTokenizer", "TikTokenizer"] {
            assert!(build(&spec(name)).unwrap_err().to_string().contains("needs --tokenizer-model"), "{name}");
            let e =
                build(&TokenizerSpec { tokenizer_model: Some("/nowhere/x.model".into()), ..spec(name) }).unwrap_err();
            assert!(e.to_string().contains("/nowhere/x.model: no such file"), "{e}");
        }
        assert!(build(&spec("HuggingFaceTokenizer")).unwrap_err().to_string().contains("needs --tokenizer-model"));
        assert!(build(&spec("GPT2BPETokenizer")).unwrap_err().to_string().contains("needs --vocab-file"));
    }
}
