//! NVIDIA's container of kernels for several chips: a header, then entries, each with a header of its own. Not documented by
//! NVIDIA; read off what `fatbinary` writes, and `cuobjdump` says of it.

use std::borrow::Cow;

use crate::{Damaged, lz4, number, part, size};

/// The first four bytes.
pub const MAGIC: u32 = 0xba55_ed50;
/// Bytes of a header as it is read here; a larger one has more at its end.
const HEADER: usize = 16;
const ENTRY_HEADER: usize = 64;
/// A payload in LZ4.
const LZ4: u64 = 0x2000;
/// A payload in Zstandard, which drivers before 12.4 do not read.
const ZSTD: u64 = 0x8000;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text for the driver's compiler.
    Ptx,
    /// Machine code.
    Cubin,
}

/// The kernels for a chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is.
    pub kind: Kind,
    /// Compute capability times ten: 90 is 9.0.
    pub chip: u32,
    /// Text or ELF.
    pub bytes: Cow<'a, [u8]>,
}

/// Bytes of a whole fatbin, of which at least the first sixteen are given.
pub fn length(bytes: &[u8]) -> Result<usize, Damaged> {
    if number::<4>(bytes, 0)? != u64::from(MAGIC) {
        return Err(Damaged { what: "not a fatbin", at: 0 });
    }
    if number::<2>(bytes, 4)? != 1 {
        return Err(Damaged { what: "a fatbin of another version than 1", at: 4 });
    }
    let header = size::<2>(bytes, 6)?;
    if header < HEADER {
        return Err(Damaged { what: "a header that is too short", at: 6 });
    }
    header.checked_add(size::<8>(bytes, 8)?).ok_or(Damaged { what: "a length beyond this machine", at: 8 })
}

/// The entries in order; compressed ones decompressed.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry<'_>>, Damaged> {
    let all = part(bytes, 0, length(bytes)?)?;
    let (mut at, mut found) = (size::<2>(all, 6)?, Vec::new());
    while at < all.len() {
        let (header, padded) = (size::<4>(all, at + 4)?, size::<8>(all, at + 8)?);
        if header < ENTRY_HEADER {
            return Err(Damaged { what: "an entry's header that is too short", at });
        }
        part(all, at, header)?;
        let kind = match number::<2>(all, at)? {
            1 => Kind::Ptx,
            2 => Kind::Cubin,
            _ => return Err(Damaged { what: "an entry that is neither PTX nor machine code", at }),
        };
        let payload = part(all, at + header, padded)?;
        let flags = number::<8>(all, at + 40)?;
        let chip = number::<4>(all, at + 28)? as u32;
        let mut bytes = if flags & LZ4 != 0 {
            let block = part(payload, 0, size::<4>(all, at + 16)?)?;
            Cow::Owned(lz4::decompress(block, size::<8>(all, at + 56)?)?)
        } else if flags & ZSTD != 0 {
            return Err(Damaged { what: "an entry in Zstandard, which older drivers do not read", at });
        } else {
            Cow::Borrowed(payload)
        };
        if kind == Kind::Ptx {
            // a text ends where its NULs begin
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            match &mut bytes {
                Cow::Owned(text) => text.truncate(end),
                Cow::Borrowed(text) => *text = &text[..end],
            }
        }
        found.push(Entry { kind, chip, bytes });
        at += header + padded;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container of one uncompressed PTX entry.
    fn small() -> Vec<u8> {
        let text = b".version 8.0\n\0\0\0";
        let mut entry = vec![0u8; ENTRY_HEADER];
        entry[..2].copy_from_slice(&1u16.to_le_bytes());
        entry[4..8].copy_from_slice(&(ENTRY_HEADER as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
        entry[28..32].copy_from_slice(&80u32.to_le_bytes());
        entry.extend(text);
        let head = [&MAGIC.to_le_bytes()[..], &[1, 0, 16, 0], &(entry.len() as u64).to_le_bytes()].concat();
        [head, entry].concat()
    }

    #[test]
    fn an_entry_is_read_and_its_padding_is_not() {
        let all = small();
        let bytes = Cow::Borrowed(&b".version 8.0\n"[..]);
        assert_eq!(entries(&all), Ok(vec![Entry { kind: Kind::Ptx, chip: 80, bytes }]));
    }

    #[test]
    fn damage_is_an_error_wherever_it_is() {
        let all = small();
        for cut in 0..all.len() {
            assert!(entries(&all[..cut]).is_err(), "{cut}");
        }
        // every byte of the headers, with all its bits turned: an error or another reading, never a panic
        for i in 0..16 + ENTRY_HEADER {
            let mut other = all.clone();
            other[i] ^= 0xff;
            let _ = entries(&other);
        }
        let with = |at: usize, byte: u8| {
            let mut other = all.clone();
            other[at] = byte;
            entries(&other).expect_err("damage").what
        };
        assert_eq!(with(0, 0), "not a fatbin");
        assert_eq!(with(4, 2), "a fatbin of another version than 1");
        assert_eq!(with(16, 7), "an entry that is neither PTX nor machine code");
        assert_eq!(with(20, 8), "an entry's header that is too short");
        assert_eq!(with(57, 0x80), "an entry in Zstandard, which older drivers do not read");
        assert_eq!(with(31, 0x80), "a length beyond the file");
    }
}
