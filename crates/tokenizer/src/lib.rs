//! Tokenizers (bytes, Null, Hugging Face `tokenizer.json`, GPT-2 BPE) and the corpus preprocessor behind `preprocess_data`.

pub mod bytes;
pub mod dtype;
pub mod error;
pub mod factory;
pub mod gpt2;
pub mod hf;
pub mod null;
pub mod preprocess;
pub mod tokenizer;

pub use bytes::ByteLevelTokenizer;
pub use dtype::TokenDType;
pub use error::{Error, LineError, Problem};
pub use factory::{TokenizerSpec, build};
pub use gpt2::gpt2_bpe;
pub use hf::HuggingFaceTokenizer;
pub use null::NullTokenizer;
pub use tokenizer::{Tokenizer, padded_vocab_size};
