//! The container of `torch.save`: a zip archive of stored entries, `ROOT/data.pkl`, `ROOT/data/N`, `ROOT/byteorder`.
//!
//! Only the directory at the end is read when an archive is opened; of the entries, what is asked for. Format: APPNOTE.TXT of
//! PKWARE, 4.3 and 4.5.3 (zip64). Compressed, encrypted and split archives, which torch never writes, are refused.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::Result;
use crate::files::{Blob, Files};

/// Most bytes of an archive's directory.
const DIRECTORY: u64 = 256 << 20;
/// Most bytes of a pickle.
const PICKLE: u64 = 1 << 30;

/// Where an entry lies.
#[derive(Debug)]
struct Entry {
    /// Of its local header.
    header: u64,
    len: u64,
    crc: u32,
    /// Where its bytes begin, once its local header has been read.
    data: OnceLock<u64>,
}

/// An archive whose directory has been checked.
#[derive(Debug)]
pub struct Archive {
    blob: Blob,
    /// By name without the root folder.
    entries: HashMap<String, Entry>,
    /// Where the directory starts: all data ends before.
    directory: u64,
}

fn u16_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_le_bytes(*b.get(at..)?.first_chunk()?)))
}

fn u32_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(*b.get(at..)?.first_chunk()?)))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*b.get(at..)?.first_chunk()?))
}

/// Start, length and number of entries of the directory.
fn directory(blob: &Blob) -> Result<(u64, u64, u64)> {
    let not = || blob.wrong("is not a complete zip archive, as torch.save writes it: it has no directory at its end");
    // The end record is 22 bytes and a comment of at most 65535; torch writes none.
    let (mut bytes, mut base, mut found) = (vec![], 0, None);
    for tail in [22, 22 + 65_535] {
        base = blob.len().saturating_sub(tail);
        bytes.resize((blob.len() - base) as usize, 0);
        blob.read(base, &mut bytes)?;
        let last = bytes.len().checked_sub(22).ok_or_else(not)?;
        found = (0..=last).rev().find(|&i| bytes[i..].starts_with(b"PK\x05\x06"));
        if found.is_some() {
            break;
        }
    }
    let at = found.ok_or_else(not)?;
    let end = &bytes[at..];
    let narrow = || Some((u32_at(end, 16)?, u32_at(end, 12)?, u16_at(end, 10)?, u16_at(end, 4)?));
    let (start, len, count, disk) = narrow().ok_or_else(not)?;
    let end_at = base + at as u64;
    let wide = start == 0xffff_ffff || len == 0xffff_ffff || count == 0xffff;
    let (start, len, count, limit) = match wide {
        false => (start, len, count, end_at),
        true => {
            let mut locator = [0; 20];
            blob.read(end_at.checked_sub(20).ok_or_else(not)?, &mut locator)?;
            let at = u64_at(&locator, 8).filter(|_| locator.starts_with(b"PK\x06\x07")).ok_or_else(not)?;
            let mut end = [0; 56];
            blob.read(at, &mut end)?;
            let wide = || Some((u64_at(&end, 48)?, u64_at(&end, 40)?, u64_at(&end, 32)?));
            let (start, len, count) = wide().filter(|_| end.starts_with(b"PK\x06\x06")).ok_or_else(not)?;
            (start, len, count, at)
        }
    };
    if disk != 0 && disk != 0xffff {
        return Err(blob.wrong("is a part of an archive split over several files"));
    }
    if start.checked_add(len).is_none_or(|end| end > limit) || len > DIRECTORY || count > len / 46 {
        let what = format!("has a damaged directory: {count} entries in {len} bytes at {start}, of {}", blob.len());
        return Err(blob.wrong(what));
    }
    Ok((start, len, count))
}

/// One entry of the directory: its name, itself, and the bytes that follow.
fn entry(b: &[u8]) -> Option<(&str, Entry, u64, u64, &[u8])> {
    if !b.starts_with(b"PK\x01\x02") {
        return None;
    }
    let (flags, method, crc) = (u16_at(b, 8)?, u16_at(b, 10)?, u32_at(b, 16)? as u32);
    let (packed, mut len, mut header) = (u32_at(b, 20)?, u32_at(b, 24)?, u32_at(b, 42)?);
    let (name, extra, comment) = (u16_at(b, 28)? as usize, u16_at(b, 30)? as usize, u16_at(b, 32)? as usize);
    let (wide_packed, wide_len, wide_header) = (packed == 0xffff_ffff, len == 0xffff_ffff, header == 0xffff_ffff);
    let text = std::str::from_utf8(b.get(46..46 + name)?).ok()?;
    let mut fields = b.get(46 + name..46 + name + extra)?;
    while let (Some(id), Some(size)) = (u16_at(fields, 0), u16_at(fields, 2)) {
        let field = fields.get(4..4 + size as usize)?;
        if id == 1 {
            // zip64: those that did not fit, in this order
            let mut at = 0;
            if wide_len {
                len = u64_at(field, at)?;
                at += 8;
            }
            at += if wide_packed { 8 } else { 0 };
            if wide_header {
                header = u64_at(field, at)?;
            }
        }
        fields = &fields[4 + size as usize..];
    }
    Some((
        text,
        Entry { header, len, crc, data: OnceLock::new() },
        flags,
        method,
        b.get(46 + name + extra + comment..)?,
    ))
}

impl Archive {
    /// Opens a file and checks its directory.
    ///
    /// # Errors
    /// A file that cannot be read, or is no complete archive of stored entries.
    pub fn open(path: impl Into<PathBuf>) -> Result<Archive> {
        Archive::of(Blob::whole(&Arc::new(Files::default()), path.into())?)
    }

    pub(crate) fn of(blob: Blob) -> Result<Archive> {
        let (start, len, count) = directory(&blob)?;
        let mut bytes = vec![0; len as usize];
        blob.read(start, &mut bytes)?;
        let mut entries = HashMap::new();
        let mut rest = &bytes[..];
        let mut root: Option<String> = None;
        for i in 0..count {
            let broken = || blob.wrong(format!("has a damaged directory: entry {i} of {count}"));
            let (name, entry, flags, method, after) = entry(rest).ok_or_else(broken)?;
            rest = after;
            if method != 0 || flags & 1 != 0 {
                let what = format!("entry {name:?} is compressed or encrypted, which torch.save never does");
                return Err(blob.wrong(what));
            }
            if entry.header.checked_add(30).and_then(|at| at.checked_add(entry.len)).is_none_or(|end| end > start) {
                return Err(blob.wrong(format!("is truncated or damaged: entry {name:?} lies outside of it")));
            }
            let (folder, inside) = name.split_once('/').ok_or_else(broken)?;
            let root = root.get_or_insert_with(|| folder.to_string());
            if root != folder || entries.insert(inside.to_string(), entry).is_some() {
                return Err(blob.wrong(format!("has a damaged directory: entry {name:?} beside folder {root:?}")));
            }
        }
        let archive = Archive { blob, entries, directory: start };
        archive.check_order()?;
        Ok(archive)
    }

    /// Numbers of archives from machines that store the high byte first are not read.
    fn check_order(&self) -> Result<()> {
        if self.len("byteorder").is_none_or(|n| n > 16) {
            return Ok(()); // torch before 2.1 wrote none, on machines that store the low byte first
        }
        match self.whole("byteorder")?.as_slice() {
            b"little" => Ok(()),
            other => Err(self.wrong(format!("its byte order is {:?}, not little", String::from_utf8_lossy(other)))),
        }
    }

    /// Length of an entry, by its name without the root folder.
    pub fn len(&self, name: &str) -> Option<u64> {
        self.entries.get(name).map(|e| e.len)
    }

    /// Reads all of `out` from byte `at` of an entry.
    ///
    /// # Errors
    /// No such entry, bytes beyond its end, a damaged header, the system's errors.
    pub fn read(&self, name: &str, at: u64, out: &mut [u8]) -> Result<()> {
        let missing = || self.wrong(format!("has no entry {name:?}"));
        let e = self.entries.get(name).ok_or_else(missing)?;
        if at.checked_add(out.len() as u64).is_none_or(|end| end > e.len) {
            let what = format!("entry {name:?} has {} bytes; {} at {at} are asked for", e.len, out.len());
            return Err(self.wrong(what));
        }
        let data = match e.data.get() {
            Some(data) => *data,
            None => {
                let data = self.begin(name, e)?;
                *e.data.get_or_init(|| data)
            }
        };
        self.blob.read(data + at, out)
    }

    /// Where the bytes of an entry begin: behind its local header, which may be longer than the directory says.
    fn begin(&self, name: &str, e: &Entry) -> Result<u64> {
        let mut header = [0; 30];
        self.blob.read(e.header, &mut header)?;
        let broken = || self.wrong(format!("is damaged: no entry {name:?} where its directory says"));
        let lens = || Some((u16_at(&header, 26)?, u16_at(&header, 28)?));
        let (a, b) = lens().filter(|_| header.starts_with(b"PK\x03\x04")).ok_or_else(broken)?;
        let data = e.header + 30 + a + b;
        if data + e.len > self.directory { Err(broken()) } else { Ok(data) }
    }

    /// A whole entry.
    fn whole(&self, name: &str) -> Result<Vec<u8>> {
        let len = self.len(name).ok_or_else(|| self.wrong(format!("has no entry {name:?}")))?;
        let mut bytes = vec![0; len as usize];
        self.read(name, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// The pickle.
    ///
    /// # Errors
    /// None there, too large, or other bytes than were written (CRC-32).
    pub fn pickle(&self) -> Result<Vec<u8>> {
        let entry = self.entries.get("data.pkl");
        let entry = entry.ok_or_else(|| self.wrong("has no data.pkl: it is no file of torch.save"))?;
        if entry.len > PICKLE {
            return Err(self.wrong(format!("its data.pkl has {} bytes; at most {PICKLE} are read", entry.len)));
        }
        let bytes = self.whole("data.pkl")?;
        let crc = crc32(&bytes);
        match crc == entry.crc {
            true => Ok(bytes),
            false => Err(self.wrong(format!(
                "data.pkl is damaged: its CRC-32 is {crc:08x}, the archive says {:08x} (files saved after \
                 torch.serialization.set_crc32_options(False) have none and are not read)",
                entry.crc
            ))),
        }
    }

    /// An error about this archive.
    pub(crate) fn wrong(&self, what: impl Into<String>) -> crate::Error {
        self.blob.wrong(what)
    }
}

/// CRC-32 of zip (ISO 3309), a nibble at a time.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 16] = {
        let mut table = [0; 16];
        let mut i = 0;
        while i < 16 {
            let (mut c, mut bit) = (i as u32, 0);
            while bit < 4 {
                c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
                bit += 1;
            }
            table[i] = c;
            i += 1;
        }
        table
    };
    let step = |c: u32, n: u32| TABLE[((c ^ n) & 15) as usize] ^ (c >> 4);
    !bytes.iter().fold(!0, |c, &b| step(step(c, u32::from(b)), u32::from(b) >> 4))
}

#[cfg(test)]
mod tests {
    #[test]
    fn crc_of_the_check_string() {
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
    }
}
