//! Data and tokenizer settings.

use std::path::PathBuf;

use serde::Serialize;

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataConfig {
    /// Corpora.
    pub source: DataSource,
    /// Tokens of one sample.
    pub seq_length: usize,
    /// Shares of train, validation and test; not used by per-split sources.
    pub split: Split,
    /// Folder of the index cache; beside the data when absent.
    pub cache_path: Option<PathBuf>,
    /// Sampler.
    pub dataloader: DataloaderKind,
    /// Positions restart after each document.
    pub reset_position_ids: bool,
    /// No attention across documents.
    pub reset_attention_mask: bool,
    /// No loss on end-of-document tokens.
    pub eod_mask_loss: bool,
    /// Tokenizer.
    pub tokenizer: TokenizerConfig,
}

/// Corpora.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataSource {
    /// `--mock-data`.
    Mock,
    /// `--data-path`: one blend, cut by `split`.
    Blend(Vec<BlendItem>),
    /// `--data-args-path`: a file with the words of `--data-path`.
    BlendFile(PathBuf),
    /// `--train-data-path`, `--valid-data-path`, `--test-data-path`.
    PerSplit {
        /// Training blend.
        train: Vec<BlendItem>,
        /// Validation blend.
        valid: Vec<BlendItem>,
        /// Test blend.
        test: Vec<BlendItem>,
    },
    /// `--per-split-data-args-path`: a JSON file with the words of each split.
    PerSplitFile(PathBuf),
}

/// One corpus of a blend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlendItem {
    /// Path without `.bin` and `.idx`.
    pub prefix: PathBuf,
    /// Weight; `None` for all items of a blend without weights.
    pub weight: Option<f64>,
}

/// Shares of train, validation and test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Split {
    /// As written; part of the index cache's key.
    pub text: String,
    /// The numbers in it, missing ones 0, not normalised.
    pub weights: [f64; 3],
}

/// Sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataloaderKind {
    /// One pass in order of the shuffled index.
    Single,
    /// Epochs, each shuffled again.
    Cyclic,
}

/// Tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenizerConfig {
    /// `--tokenizer-type` as written, or upstream's default.
    pub name: String,
    /// Family.
    pub kind: TokenizerKind,
    /// `--tokenizer-model`.
    pub model: Option<String>,
    /// `--tokenizer-name-or-path`.
    pub name_or_path: Option<String>,
    /// `--vocab-file`.
    pub vocab_file: Option<PathBuf>,
    /// `--merge-file`.
    pub merge_file: Option<PathBuf>,
    /// `--tokenizer-special-tokens`.
    pub special_tokens: Vec<String>,
    /// `--eod-token`.
    pub eod_token: Option<String>,
    /// `--vocab-extra-ids`.
    pub vocab_extra_ids: u64,
    /// `--null-tokenizer-eod-id`.
    pub null_eod_id: Option<i64>,
    /// `--null-tokenizer-pad-id`; -1 means none.
    pub null_pad_id: i64,
    /// `--tiktoken-pattern`.
    pub tiktoken_pattern: Option<String>,
    /// `--tiktoken-num-special-tokens`.
    pub tiktoken_num_special_tokens: u64,
    /// `--tokenizer-hf-no-include-special-tokens`.
    pub hf_no_include_special_tokens: bool,
}

/// Family of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// Numbers as text.
    Null,
    /// Bytes.
    ByteLevel,
    /// `tokenizer.json`, under any of its names.
    HuggingFace,
    /// GPT-2's `vocab.json` and `merges.txt`.
    Gpt2Bpe,
    /// SentencePiece `.model`.
    SentencePiece,
    /// tiktoken vocabulary.
    Tiktoken,
    /// Anything else that upstream knows (BERT, multimodal, conversations).
    Other,
}

impl TokenizerKind {
    /// The family of a `--tokenizer-type`. Unknown names are transformers class names, that is `tokenizer.json`.
    pub fn of(name: &str) -> TokenizerKind {
        match name {
            "NullTokenizer" => TokenizerKind::Null,
            "ByteLevel" | "ByteLevelTokenizer" => TokenizerKind::ByteLevel,
            "GPT2BPETokenizer" => TokenizerKind::Gpt2Bpe,
            "SentencePieceTokenizer" | "GPTSentencePieceTokenizer" | "Llama2Tokenizer" => TokenizerKind::SentencePiece,
            "TikTokenizer" => TokenizerKind::Tiktoken,
            "BertWordPieceLowerCase"
            | "BertWordPieceCase"
            | "MultimodalTokenizer"
            | "NullMultimodalTokenizer"
            | "SFTTokenizer"
            | "MagistralTokenizer" => TokenizerKind::Other,
            _ => TokenizerKind::HuggingFace,
        }
    }

    /// False for families that this version cannot read yet.
    pub const fn is_supported(self) -> bool {
        !matches!(self, TokenizerKind::Other)
    }
}
