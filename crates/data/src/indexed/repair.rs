//! A sound index for data whose document boundaries are not.

use std::fs;
use std::path::Path;

use super::reader::{IndexedDataset, Multimodal};
use super::{data_path, index_path};
use crate::error::{Error, Result};
use crate::files::AtomicFile;

/// Writes `<output>.idx` with the sequences of `<input>` and its document boundaries, the last of which is set right:
/// some old datasets lack the end of the last document. `<output>.bin` is a link to the same data, or a copy where
/// links are not possible. The input stays as it is. Returns the number of sequences that became a document.
///
/// # Errors
/// When there is more wrong than the end of the last document, nothing is wrong, or the output exists.
pub fn repair(input: impl AsRef<Path>, output: impl AsRef<Path>) -> Result<u64> {
    let (input, output) = (input.as_ref(), output.as_ref());
    for path in [index_path(output), data_path(output)] {
        if path.exists() {
            return Err(Error::format(&path, "file", "exists; a repaired dataset gets a name of its own"));
        }
    }
    let (index, missing) = IndexedDataset::open_for_repair(input, Multimodal::No)?;
    if missing == 0 {
        return Err(Error::format(&index_path(input), "document_indices", "is sound; there is nothing to repair"));
    }
    let data = data_path(output);
    fs::hard_link(data_path(input), &data)
        .or_else(|_| fs::copy(data_path(input), &data).map(|_| ()))
        .map_err(|e| Error::io("link or copy to", &data, e))?;
    let mut out = AtomicFile::create(&index_path(output))?;
    out.write(&index)?;
    out.commit()?;
    Ok(missing)
}
