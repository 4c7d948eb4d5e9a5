//! Reading safetensors files by position (no memory map, hence no `unsafe` and no signal when a file shrinks).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ferrotron_base::DType;

use super::{MAX_HEADER, PIECE, TensorInfo, header};
use crate::checksum::{Checksum, Hasher};
use crate::convert::{convert, convertible};
use crate::error::IoContext;
use crate::{Error, Result};

/// An open safetensors file whose header has been checked.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    data_start: u64,
    file_len: u64,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl SafetensorsFile {
    /// Opens a file and checks its header against its length.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Damaged`] for anything that is not a complete safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<SafetensorsFile> {
        let path = path.as_ref();
        // A fifo would block; look before opening.
        let meta = std::fs::metadata(path).io("open", path)?;
        if !meta.is_file() {
            return Err(Error::damaged(path, "it is not a regular file"));
        }
        let file = File::open(path).io("open", path)?;
        let file_len = meta.len();
        let mut prefix = [0; 8];
        if file_len < 8 {
            return Err(Error::damaged(path, format!("{file_len} bytes cannot hold a safetensors header")));
        }
        file.read_exact_at(&mut prefix, 0).io("read", path)?;
        let header_len = u64::from_le_bytes(prefix);
        if header_len > MAX_HEADER || header_len > file_len - 8 {
            let why = format!("header of {header_len} bytes in a file of {file_len} bytes (limit {MAX_HEADER})");
            return Err(Error::damaged(path, why));
        }
        let mut json = vec![0; header_len as usize];
        file.read_exact_at(&mut json, 8).io("read", path)?;
        let data_start = 8 + header_len;
        let (tensors, metadata) =
            header::parse(&json, file_len - data_start).map_err(|why| Error::damaged(path, why))?;
        let by_name = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(SafetensorsFile { path: path.into(), file, data_start, file_len, tensors, by_name, metadata })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// All tensors, in the order of their data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Names of all tensors, in the order of their data.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|t| t.name.as_str())
    }

    /// The `__metadata__` strings.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor of that name, if there is one.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`].
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.get(name).ok_or_else(|| Error::NoSuchTensor { path: self.path.clone(), name: name.into() })
    }

    /// Shape of the tensor of that name.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`].
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.tensor(name)?.shape)
    }

    /// Reads elements from `first` on into `out` (little-endian `dtype` elements; its length says how many).
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`], [`Error::NoConversion`], [`Error::BadEntry`] for a range outside the tensor, [`Error::Io`].
    pub fn read_into(&self, name: &str, first: usize, dtype: DType, out: &mut [u8]) -> Result<()> {
        let t = self.tensor(name)?;
        let stored = self.readable(t, dtype)?;
        let n = out.len() / dtype.size();
        if !out.len().is_multiple_of(dtype.size()) || first.checked_add(n).is_none_or(|end| end > t.numel()) {
            let why =
                format!("{} bytes of {dtype} from element {first} on, but it has {} elements", out.len(), t.numel());
            return Err(Error::entry(name, why));
        }
        let start = t.offset + (first * stored.size()) as u64;
        if stored == dtype {
            return self.read_raw(start, out);
        }
        let per_piece = PIECE / stored.size();
        let mut buf = vec![0; n.min(per_piece) * stored.size()];
        for (i, piece) in out.chunks_mut(per_piece * dtype.size()).enumerate() {
            let buf = &mut buf[..piece.len() / dtype.size() * stored.size()];
            self.read_raw(start + (i * per_piece * stored.size()) as u64, buf)?;
            convert(stored, buf, dtype, piece);
        }
        Ok(())
    }

    /// The whole tensor in f32 (from F32, BF16, F16 or F64).
    ///
    /// # Errors
    /// As [`SafetensorsFile::read_into`].
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        self.collect(name, DType::F32, f32::from_le_bytes)
    }

    /// The whole tensor in i64 (stored as I64 only).
    ///
    /// # Errors
    /// As [`SafetensorsFile::read_into`].
    pub fn read_i64(&self, name: &str) -> Result<Vec<i64>> {
        self.collect(name, DType::I64, i64::from_le_bytes)
    }

    /// Elements through a bounded buffer: the values are allocated once, their bytes never.
    fn collect<T, const N: usize>(&self, name: &str, dtype: DType, value: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let t = self.tensor(name)?;
        self.readable(t, dtype)?;
        let n = t.numel();
        let mut out = Vec::with_capacity(n);
        let per_piece = PIECE / N;
        let mut buf = vec![0; n.min(per_piece) * N];
        while out.len() < n {
            let buf = &mut buf[..(n - out.len()).min(per_piece) * N];
            self.read_into(name, out.len(), dtype, buf)?;
            out.extend(buf.as_chunks::<N>().0.iter().map(|b| value(*b)));
        }
        Ok(out)
    }

    fn readable(&self, t: &TensorInfo, wanted: DType) -> Result<DType> {
        t.dtype.filter(|&d| convertible(d, wanted)).ok_or_else(|| Error::NoConversion {
            name: t.name.clone(),
            stored: t.dtype_name.into(),
            wanted,
        })
    }

    /// Bytes of the data section from `offset` on.
    pub(crate) fn read_raw(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, self.data_start + offset).io("read", &self.path)
    }

    /// Checksum over the whole file, header included.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn checksum(&self) -> Result<Checksum> {
        let mut hasher = Hasher::new();
        let mut buf = vec![0; (self.file_len as usize).min(PIECE)];
        let mut at = 0;
        while at < self.file_len {
            let n = (self.file_len - at).min(PIECE as u64) as usize;
            self.file.read_exact_at(&mut buf[..n], at).io("read", &self.path)?;
            hasher.update(&buf[..n]);
            at += n as u64;
        }
        Ok(hasher.finish())
    }
}
