//! Conversations to tokens and loss masks: chat templates, truncation, packing.
//!
//! [`ChatTokenizer`] renders a [`Conversation`] with the template of a Hugging Face tokenizer and marks what the
//! assistant says; [`fit`] truncates examples and refuses those without a target; [`pack`] joins them into samples
//! with `cu_seqlens`.

mod chat;
mod conversation;
mod error;
mod pack;
mod prepare;
mod template;

pub use chat::{ChatTokenizer, Example};
pub use conversation::{Conversation, Turns, read_jsonl};
pub use error::{Error, Result};
pub use pack::{Packed, mix, pack};
pub use prepare::{Fitted, fit, preview};
pub use template::{ChatTemplate, Rendered};
