//! `.npy` files of integers: the format of Megatron's index cache.
//!
//! Format: numpy's NEP 1. `\x93NUMPY`, version, header length, a Python dict padded to a multiple of 64 bytes, then
//! the elements in C order. Only little-endian arrays of the four types that the cache uses are read.

use std::path::Path;

use crate::error::{Error, Result};
use crate::files::AtomicFile;
use crate::mapped::MappedFile;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// An element type of index arrays.
pub trait Element: Copy + Default + Send + Sync + PartialEq + 'static {
    /// numpy's `descr`, for example `<i4`.
    const DESCR: &'static str;
    /// Bytes of an element.
    const SIZE: usize;
    /// Decodes an element from the start of `bytes`; zero when they are too few.
    fn from_le(bytes: &[u8]) -> Self;
    /// Appends the element's bytes.
    fn put_le(self, out: &mut Vec<u8>);
}

macro_rules! element {
    ($($t:ty => $descr:expr),*) => {$(
        impl Element for $t {
            const DESCR: &'static str = $descr;
            const SIZE: usize = size_of::<$t>();
            #[inline]
            fn from_le(bytes: &[u8]) -> $t {
                bytes.first_chunk().map_or(0, |chunk| <$t>::from_le_bytes(*chunk))
            }
            #[inline]
            fn put_le(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
element!(i16 => "<i2", i32 => "<i4", i64 => "<i8", u32 => "<u4");

/// A one- or two-dimensional array, in memory or mapped from a `.npy` file. Flat, in C order.
pub struct Array<T> {
    store: Store<T>,
    len: usize,
}

enum Store<T> {
    Owned(Vec<T>),
    Mapped { file: MappedFile, offset: usize },
}

impl<T: Element> From<Vec<T>> for Array<T> {
    fn from(values: Vec<T>) -> Array<T> {
        Array { len: values.len(), store: Store::Owned(values) }
    }
}

impl<T: Element> Array<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `i`, or `None` beyond the end.
    #[inline]
    pub fn get(&self, i: usize) -> Option<T> {
        match &self.store {
            Store::Owned(values) => values.get(i).copied(),
            Store::Mapped { file, offset } => (i < self.len).then(|| T::from_le(&file.bytes()[offset + i * T::SIZE..])),
        }
    }

    /// All elements in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len).filter_map(|i| self.get(i))
    }

    /// Maps the array in `path`. `columns` is 1 for a one-dimensional array, else the length of the second dimension.
    ///
    /// # Errors
    /// Names the file and the field when the header is malformed, the array is of another type or shape, or the file
    /// is longer or shorter than the header says.
    pub fn open(path: &Path, columns: usize) -> Result<Array<T>> {
        let file = MappedFile::open(path)?;
        let (offset, len) =
            parse::<T>(file.bytes(), columns).map_err(|(field, problem)| Error::format(path, field, problem))?;
        Ok(Array { store: Store::Mapped { file, offset }, len })
    }

    /// Writes the array to `path`; the file appears whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: &Path, columns: usize) -> Result<()> {
        let mut out = AtomicFile::create(path)?;
        out.write(&header::<T>(self.len, columns))?;
        let mut buffer = Vec::with_capacity(1 << 16);
        for value in self.iter() {
            value.put_le(&mut buffer);
            if buffer.len() >= 1 << 16 {
                out.write(&buffer)?;
                buffer.clear();
            }
        }
        out.write(&buffer)?;
        out.commit()
    }
}

/// Version 1 header, byte for byte as numpy writes it: after the dict, numpy leaves room for the first dimension to
/// grow to 21 digits.
fn header<T: Element>(len: usize, columns: usize) -> Vec<u8> {
    let rows = len / columns.max(1);
    let shape = if columns == 1 { format!("({rows},)") } else { format!("({rows}, {columns})") };
    let mut dict = format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", T::DESCR);
    dict.extend(std::iter::repeat_n(' ', 21usize.saturating_sub(rows.to_string().len())));
    let unpadded = MAGIC.len() + 4 + dict.len() + 1;
    dict.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    dict.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    // A dict of these fields stays below 200 bytes.
    out.extend((dict.len() as u16).to_le_bytes());
    out.extend(dict.as_bytes());
    out
}

type Problem = (&'static str, String);

/// Offset of the first element and number of elements.
fn parse<T: Element>(bytes: &[u8], columns: usize) -> Result<(usize, usize), Problem> {
    if bytes.first_chunk() != Some(MAGIC) {
        return Err(("magic", "is not that of an .npy file".to_owned()));
    }
    let (begin, size) = match bytes.get(6) {
        Some(1) => (10, bytes.get(8..10).and_then(|b| b.first_chunk()).map(|b| u16::from_le_bytes(*b) as usize)),
        Some(2 | 3) => (12, bytes.get(8..12).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b) as usize)),
        other => return Err(("version", format!("is {other:?}, but 1, 2 and 3 exist"))),
    };
    let end = size.and_then(|size| size.checked_add(begin));
    let text = end.and_then(|end| bytes.get(begin..end)).and_then(|b| std::str::from_utf8(b).ok());
    let (Some(end), Some(text)) = (end, text) else {
        return Err(("header", "is cut short or not text".to_owned()));
    };
    let descr = value_of(text, "'descr'").unwrap_or("nothing").trim().trim_matches('\'');
    if descr != T::DESCR {
        return Err(("descr", format!("is {descr}, but {} was expected", T::DESCR)));
    }
    if value_of(text, "'fortran_order'").map(str::trim) != Some("False") {
        return Err(("fortran_order", "must be False".to_owned()));
    }
    let shape = text.split_once("'shape':").and_then(|(_, rest)| rest.split_once('(')?.1.split_once(')'));
    let shape = shape.map(|(inside, _)| inside.split(',').map(str::trim).filter(|s| !s.is_empty()));
    let shape: Option<Vec<usize>> = shape.and_then(|dims| dims.map(|d| d.parse().ok()).collect());
    let shape = shape.ok_or_else(|| ("shape", "is not a tuple of integers".to_owned()))?;
    let rows = match shape[..] {
        [rows] if columns == 1 => rows,
        [rows, c] if c == columns && columns != 1 => rows,
        _ => return Err(("shape", format!("is {shape:?}, but {columns} column(s) were expected"))),
    };
    let found = bytes.len() - end;
    match rows.checked_mul(columns).and_then(|len| Some((len, len.checked_mul(T::SIZE)?))) {
        Some((len, size)) if size == found => Ok((end, len)),
        _ => Err(("size", format!("holds {found} bytes of elements, but shape {shape:?} says otherwise"))),
    }
}

/// The text between `key:` and the next comma.
fn value_of<'a>(dict: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = dict.split_once(key)?;
    rest.trim_start().strip_prefix(':')?.split(',').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes `numpy.save` writes for `numpy.zeros((558, 2), numpy.int32)`, up to the elements.
    #[test]
    fn header_equals_numpys() {
        let mut expected =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (558, 2), }".to_vec();
        expected.resize(127, b' ');
        expected.push(b'\n');
        assert_eq!(header::<i32>(1116, 2), expected);
        assert_eq!(header::<u32>(7, 1).len() % 64, 0);
    }

    #[test]
    fn other_types_and_shapes_are_refused() {
        let mut bytes = header::<i32>(2, 1);
        bytes.extend([0; 8]);
        assert_eq!(parse::<i32>(&bytes, 1), Ok((bytes.len() - 8, 2)));
        assert_eq!(parse::<u32>(&bytes, 1).unwrap_err().0, "descr");
        assert_eq!(parse::<i32>(&bytes, 2).unwrap_err().0, "shape");
        bytes.pop();
        assert_eq!(parse::<i32>(&bytes, 1).unwrap_err().0, "size");
    }
}
