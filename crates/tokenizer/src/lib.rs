//! Tokenizers: bytes, Null, Hugging Face tokenizer.json; and corpus preprocessing.
