//! Reading a tokenizer's files.

use crate::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The whole file, or an error if it is larger than `limit`.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|f| f.take(limit + 1).read_to_end(&mut bytes)).map_err(Error::io("read", path))?;
    if bytes.len() as u64 > limit {
        let detail = format!("larger than {limit} bytes, which no tokenizer file is");
        return Err(Error::Malformed { path: path.into(), detail });
    }
    Ok(bytes)
}
