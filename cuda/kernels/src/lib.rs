//! The CUDA kernels as data: their sources, the fatbin and the PTX that are made of them, and readers for what a driver
//! takes, so that tests, mocks and checks can look into all three.
//!
//! `cargo xtask cuda-check --write` makes `kernels.ptx` of the sources and `kernels.fatbin` of that. Tests here fail when a
//! source has changed and the two have not.

mod cubin;
mod fatbin;
mod lz4;
mod ptx;

use std::path::{Path, PathBuf};

use ferrotron_base::fnv::{FNV, fnv};

pub use cubin::{Cubin, STO_CUDA_ENTRY};
pub use fatbin::{Entry, Kind, MAGIC as FATBIN_MAGIC, entries as fatbin_entries, length as fatbin_length};
pub use ptx::Ptx;

/// Why an image of kernels cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Damaged {
    /// What is wrong.
    pub what: &'static str,
    /// Where.
    pub at: usize,
}

macro_rules! sources {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../", $name)))),*] };
}

/// Every source by file name. They include only each other, and no header of CUDA.
pub const SOURCES: &[(&str, &str)] = sources![
    "activation.cu" "attention.cu" "attention.cuh" "attention_backward.cu" "cross_entropy.cu" "dropout.cu" "elementwise.cu"
    "embedding.cu" "layout.cu" "moe.cu" "norm.cu" "optimizer.cu" "prelude.cuh" "reduce.cu" "rope.cu"
];

/// All kernels as PTX 8.0 for compute capability 8.0: every driver for CUDA 12 and later compiles it for its chip. The last
/// byte is the NUL that drivers look for.
pub const PTX: &str = concat!(include_str!("../kernels.ptx"), "\0");

/// Bytes where a driver may read 64-bit words.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!("../kernels.fatbin"));

/// All kernels as machine code for several chips, and the PTX once more: NVIDIA's container, of which a driver takes what
/// suits its chip.
pub static FATBIN: &[u8] = &ALIGNED.0;

/// One translation unit of all kernels: an include of each file that has some.
pub fn program() -> String {
    let files = SOURCES.iter().filter(|(name, _)| name.ends_with(".cu"));
    files.map(|(name, _)| format!("#include \"{name}\"\n")).collect()
}

/// Names of all kernels, in the order of the sources.
pub fn names() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().flat_map(|(_, text)| names_in(text))
}

/// Names of the kernels that a source defines: what follows `KERNEL` at the start of a line.
pub fn names_in(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|l| Some(l.strip_prefix("KERNEL ")?.split('(').next()?.trim()))
}

/// A number that changes with any source.
pub fn fingerprint() -> u64 {
    SOURCES.iter().fold(FNV, |h, (name, text)| fnv(fnv(h, name.bytes()), text.bytes()))
}

/// The first line of a `kernels.ptx` that was made of these sources.
pub fn ptx_title() -> String {
    format!(
        "// Made by `cargo xtask cuda-check --write` from the kernels of this folder, fingerprint {:016x}.",
        fingerprint()
    )
}

/// Where the sources lie.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// A little-endian number at a place.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<u64, Damaged> {
    let cut = Damaged { what: "the file ends", at };
    let end = at.checked_add(N).ok_or(cut.clone())?;
    let part = bytes.get(at..end).ok_or(cut)?;
    Ok(part.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
}

/// A number at a place, as a length or offset.
fn size<const N: usize>(bytes: &[u8], at: usize) -> Result<usize, Damaged> {
    usize::try_from(number::<N>(bytes, at)?).map_err(|_| Damaged { what: "a length beyond this machine", at })
}

/// Part of a file.
fn part(bytes: &[u8], at: usize, n: usize) -> Result<&[u8], Damaged> {
    let end = at.checked_add(n).ok_or(Damaged { what: "a length beyond the file", at })?;
    bytes.get(at..end).ok_or(Damaged { what: "a length beyond the file", at })
}

#[cfg(test)]
mod tests;
