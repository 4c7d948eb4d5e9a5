//! Safetensors files: eight bytes of header length, a JSON header, the data.
//!
//! Format: <https://huggingface.co/docs/safetensors>. The reader believes nothing: lengths are checked against the file
//! before anything is allocated, and the data must be tiled by the tensors without gap or overlap.

mod header;
mod read;
mod write;

pub use header::TensorInfo;
pub use read::SafetensorsFile;
pub(crate) use write::{Hooks, write_tensors};
pub use write::{TensorSource, write_file};

/// Longest header that is read: the limit of the reference implementation.
pub const MAX_HEADER: u64 = 100_000_000;

/// Data is moved in pieces of at most this many bytes.
pub(crate) const PIECE: usize = 1 << 20;
