//! Published models: folders as Hugging Face has them (`config.json`, safetensors), read under any layout and written.
//!
//! A rank reads what it holds: of tensors that lie in our order only those elements, of GPT-2's transposed ones the whole.
//! Which published tensor is which of ours, and how, stands with each family in crate `models`.

mod arguments;
mod compare;
mod error;
mod family;
mod folder;
mod padded;
mod write;

pub use arguments::arguments;
pub use compare::compare;
pub use error::{Error, Result};
pub use family::Family;
pub use folder::Folder;
pub use padded::{POSITIONS, VOCABULARY, read_padded};
pub use write::{Export, Parameters, write};
