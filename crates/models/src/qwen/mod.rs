//! Qwen 2, 2.5 (qkv bias) and 3 (q/k norm, free head size): Llama's shape and tensor names.

mod config;

pub use crate::llama::mapping;
pub use config::from_hf;
