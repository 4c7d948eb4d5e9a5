//! The tensors of one archive.

use std::collections::HashMap;

use ferrotron_base::DType;
use ferrotron_checkpoint::convert::{convert, convertible};

use crate::Result;
use crate::files::Blob;
use crate::pickle::{Pickle, Tensor, load};
use crate::torch_zip::Archive;

/// Data is moved in pieces of at most this many bytes.
const PIECE: usize = 1 << 20;

/// An archive and where its tensors lie.
#[derive(Debug)]
pub struct Shard {
    archive: Archive,
    /// A tensor by its key; or what stands in a tensor's place.
    tensors: HashMap<String, std::result::Result<Tensor, String>>,
}

/// The type of a storage's numbers, by its class or by torch's name.
fn dtype(kind: &str) -> Option<DType> {
    let name = kind.rsplit('.').next().unwrap_or_default();
    Some(match name.strip_suffix("Storage").unwrap_or(name) {
        "Float" | "float32" => DType::F32,
        "BFloat16" | "bfloat16" => DType::BF16,
        "Half" | "float16" => DType::F16,
        "Double" | "float64" => DType::F64,
        _ => return None,
    })
}

/// An archive and its pickle.
pub fn open(blob: Blob) -> Result<(Archive, Pickle)> {
    let archive = Archive::of(blob)?;
    let pickle = load(&archive.pickle()?).map_err(|what| archive.wrong(what))?;
    Ok((archive, pickle))
}

impl Shard {
    /// An archive with these of its tensors.
    pub fn new(archive: Archive, tensors: HashMap<String, std::result::Result<Tensor, String>>) -> Shard {
        Shard { archive, tensors }
    }

    /// Keys and shapes.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(k, t)| (k.as_str(), t.as_ref().map_or(&[][..], |t| t.shape.as_slice())))
    }

    /// An error about this archive.
    pub fn wrong(&self, what: impl Into<String>) -> crate::Error {
        self.archive.wrong(what)
    }

    /// Elements of a tensor of shape `shape` from `first` on, in f32.
    ///
    /// # Errors
    /// No such tensor, another shape, numbers of another kind, bytes that are not there.
    pub fn read_f32(&self, key: &str, shape: &[usize], first: usize, out: &mut [f32]) -> Result<()> {
        let t = match self.tensors.get(key) {
            None => return Err(self.wrong(format!("has no tensor {key:?}"))),
            Some(Err(kind)) => return Err(self.wrong(format!("{key:?} is {kind} where a tensor is expected"))),
            Some(Ok(t)) => t,
        };
        if t.shape != shape {
            return Err(self.wrong(format!("{key:?} has shape {:?}; its neighbours say {shape:?}", t.shape)));
        }
        if !t.is_contiguous() {
            return Err(self.wrong(format!("{key:?} is stored in strides {:?}, not row by row", t.stride)));
        }
        let kind = &t.storage.kind;
        let dtype = dtype(kind).filter(|d| convertible(*d, DType::F32));
        let dtype = dtype.ok_or_else(|| self.wrong(format!("{key:?} has numbers of {kind}, which are not weights")))?;
        let entry = format!("data/{}", t.storage.key);
        let overflow = || self.wrong(format!("{key:?} lies beyond what a file can have"));
        let at = t.offset.checked_add(first).and_then(|n| n.checked_mul(dtype.size())).ok_or_else(overflow)?;
        let mut bytes = vec![0; (out.len() * dtype.size()).min(PIECE)];
        let mut read = 0;
        for out in out.chunks_mut(PIECE / dtype.size()) {
            let bytes = &mut bytes[..out.len() * dtype.size()];
            self.archive.read(&entry, (at + read) as u64, bytes)?;
            read += bytes.len();
            let mut floats = vec![0; out.len() * 4];
            convert(dtype, bytes, DType::F32, &mut floats);
            out.iter_mut().zip(floats.as_chunks::<4>().0).for_each(|(v, b)| *v = f32::from_le_bytes(*b));
        }
        Ok(())
    }
}
