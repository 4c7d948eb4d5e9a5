//! Writing safetensors files as a stream: the data goes from the caller's slices to the file, checksummed on the way.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use ferrotron_base::DType;

use super::{PIECE, header};
use crate::checksum::{Checksum, Hasher};
use crate::entry::Source;
use crate::error::IoContext;
use crate::{Error, Result};

/// One tensor to be written.
pub struct TensorSource<'a> {
    /// Its name in the file.
    pub name: String,
    /// Element type of the data and in the file.
    pub dtype: DType,
    /// Shape, outermost dim first.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Source<'a>,
}

/// Called while a file is written; lets tests stop the writer.
pub(crate) struct Hooks<'a> {
    /// After the header.
    pub header: &'a dyn Fn() -> std::io::Result<()>,
    /// After each piece of data.
    pub piece: &'a dyn Fn() -> std::io::Result<()>,
}

/// Writes a safetensors file and makes it durable (`fsync`). The file must not exist. Returns its length and checksum.
///
/// # Errors
/// [`Error::Io`], [`Error::Fill`], and [`Error::BadEntry`] for a duplicate name or a data length that does not fit.
pub fn write_file(path: &Path, metadata: &[(&str, &str)], tensors: Vec<TensorSource<'_>>) -> Result<(u64, Checksum)> {
    write_tensors(path, metadata, tensors, &Hooks { header: &|| Ok(()), piece: &|| Ok(()) })
}

pub(crate) fn write_tensors(
    path: &Path,
    metadata: &[(&str, &str)],
    mut tensors: Vec<TensorSource<'_>>,
    hooks: &Hooks<'_>,
) -> Result<(u64, Checksum)> {
    let mut names = HashSet::new();
    for t in &tensors {
        check(t)?;
        if t.name == "__metadata__" || !names.insert(t.name.as_str()) {
            return Err(Error::entry(&t.name, "two tensors of one file have this name (or it is reserved)"));
        }
    }
    let header = header::render(metadata, tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())));
    let file = File::create_new(path).io("create", path)?;
    let mut out = Out { path, file, hasher: Hasher::new(), len: 0 };
    out.write(&header)?;
    (hooks.header)().io("write", path)?;
    let mut buf = Vec::new();
    for t in &mut tensors {
        let numel: usize = t.shape.iter().product();
        write_data(&mut out, t, numel * t.dtype.size(), &mut buf, hooks)?;
    }
    out.file.sync_all().io("fsync", path)?;
    Ok((out.len, out.hasher.finish()))
}

fn check(t: &TensorSource<'_>) -> Result<()> {
    let bytes = t.shape.iter().try_fold(t.dtype.size(), |n, &d| n.checked_mul(d));
    let Some(bytes) = bytes else {
        return Err(Error::entry(&t.name, format!("shape {:?} overflows", t.shape)));
    };
    let given = match &t.data {
        Source::Bytes(b) => b.len(),
        Source::F32(_) if t.dtype != DType::F32 => {
            return Err(Error::entry(&t.name, format!("f32 data for an entry of type {}", t.dtype)));
        }
        Source::F32(x) => size_of_val(*x),
        Source::Fill(_) => bytes,
    };
    if given != bytes {
        let why = format!("{} of shape {:?} has {bytes} bytes, but {given} were given", t.dtype, t.shape);
        return Err(Error::entry(&t.name, why));
    }
    Ok(())
}

fn write_data(
    out: &mut Out<'_>,
    t: &mut TensorSource<'_>,
    bytes: usize,
    buf: &mut Vec<u8>,
    hooks: &Hooks<'_>,
) -> Result<()> {
    let path = out.path;
    match &mut t.data {
        Source::Bytes(data) => {
            for piece in data.chunks(PIECE) {
                out.write(piece)?;
                (hooks.piece)().io("write", path)?;
            }
        }
        Source::F32(data) => {
            for piece in data.chunks(PIECE / 4) {
                buf.clear();
                buf.extend(piece.iter().flat_map(|x| x.to_le_bytes()));
                out.write(buf)?;
                (hooks.piece)().io("write", path)?;
            }
        }
        Source::Fill(fill) => {
            let mut at = 0;
            while at < bytes {
                // PIECE is a multiple of every element size, so a piece is whole elements.
                buf.resize((bytes - at).min(PIECE), 0);
                fill(at, buf).map_err(|source| Error::Fill { key: t.name.clone(), source })?;
                out.write(buf)?;
                (hooks.piece)().io("write", path)?;
                at += buf.len();
            }
        }
    }
    Ok(())
}

struct Out<'a> {
    path: &'a Path,
    file: File,
    hasher: Hasher,
    len: u64,
}

impl Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).io("write", self.path)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }
}
