//! Tokenizers (bytes, Null, Hugging Face `tokenizer.json`, GPT-2 BPE, SentencePiece, tiktoken), their training, and the
//! corpus preprocessor behind `preprocess_data`.

pub mod bytes;
pub mod dtype;
pub mod error;
pub mod factory;
mod files;
pub mod gpt2;
pub mod hf;
pub mod null;
pub mod preprocess;
pub mod sentencepiece;
pub mod tiktoken;
pub mod tokenizer;
pub mod train;
mod trie;

pub use bytes::ByteLevelTokenizer;
pub use dtype::TokenDType;
pub use error::{Error, LineError, Problem};
pub use factory::{TokenizerSpec, build, build_with};
pub use gpt2::gpt2_bpe;
pub use hf::{HuggingFaceTokenizer, WithOffsets};
pub use null::NullTokenizer;
pub use sentencepiece::SentencePieceTokenizer;
pub use tiktoken::{TikTokenOptions, TikTokenizer};
pub use tokenizer::Tokenizer;
pub use train::{BpeTraining, Trained, Words, bpe_train};
