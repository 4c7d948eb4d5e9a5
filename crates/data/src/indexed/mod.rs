//! Megatron's indexed dataset: `<prefix>.bin` holds the tokens of all sequences back to back, `<prefix>.idx` says
//! where each begins.
//!
//! Source: `indexed_dataset.py`. Everything is little endian and nothing is aligned. S sequences, D = documents + 1:
//!
//! | offset in `.idx` | type | content |
//! |---|---|---|
//! | 0 | 9 bytes | `MMIDIDX` and two NUL |
//! | 9 | u64 | version, 1 |
//! | 17 | u8 | element type, see [`TokenType`] |
//! | 18 | u64 | S |
//! | 26 | u64 | D |
//! | 34 | i32 × S | tokens in each sequence |
//! | 34 + 4 S | i64 × S | byte where each sequence begins in `.bin` |
//! | 34 + 12 S | i64 × D | 0, then after each document the number of sequences so far |
//! | 34 + 12 S + 8 D | i8 × S | modes, in multimodal datasets only; the header does not tell |

mod reader;
mod repair;
mod resumable;
mod token_type;
mod writer;

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::files::with_suffix;

pub use reader::{IndexedDataset, Multimodal};
pub use repair::repair;
pub use resumable::{Mark, ResumableWriter};
pub use token_type::TokenType;
pub use writer::{IndexedWriter, Merged, merge};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 34;

/// `<prefix>.idx`.
pub fn index_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".idx")
}

/// `<prefix>.bin`.
pub fn data_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".bin")
}

/// Numbered sequences of token ids: an [`IndexedDataset`] or a [`crate::MockCorpus`].
pub trait Tokens: Send + Sync {
    /// Number of sequences. Every sequence counts as a document when samples are made.
    fn sequences(&self) -> usize;

    /// Tokens in sequence `i`; 0 when there is no such sequence.
    fn length(&self, i: usize) -> usize;

    /// Appends tokens `offset..offset + len` of sequence `i` to `out`.
    ///
    /// # Errors
    /// When the part does not lie inside the sequence, or an id does not fit an i32.
    fn read(&self, i: usize, offset: usize, len: usize, out: &mut Vec<i32>) -> Result<()>;

    /// Prefix of the files as the user typed it, or what the data are.
    fn name(&self) -> &str;
}
