//! Reads scalars back from an event file, checking both checksums of every record.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::crc32c::masked;
use super::tags::Scalar;

/// Largest record that is read: scalars take some hundred bytes; images and graphs of other writers are passed over up to this.
const MOST: u64 = 64 << 20;

/// An event file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EventFileError {
    /// The operating system's answer.
    #[error("cannot read the event file: {0}")]
    Io(#[from] std::io::Error),
    /// A checksum or length that is wrong.
    #[error("the event file is damaged at byte {at}: {what}")]
    Damaged {
        /// Begin of the record.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// The scalars of the file, in order. A record that is cut off at the end, as in the file of a running or killed process, ends
/// the list.
///
/// # Errors
/// The file cannot be read; a record whose checksum, length or message is wrong.
pub fn read_events(path: &Path) -> Result<Vec<Scalar>, EventFileError> {
    let mut input = BufReader::new(File::open(path)?);
    let mut scalars = Vec::new();
    let mut at = 0;
    loop {
        let damaged = |what| EventFileError::Damaged { at, what };
        let mut head = [0; 12];
        if !fill(&mut input, &mut head)? {
            return Ok(scalars);
        }
        let length = u64::from_le_bytes(array(&head[..8]));
        if masked(&head[..8]).to_le_bytes() != head[8..] {
            return Err(damaged("the checksum of a length is wrong"));
        }
        if length > MOST {
            return Err(damaged("a record is larger than 64 MiB"));
        }
        let mut data = vec![0; length as usize + 4];
        if !fill(&mut input, &mut data)? {
            return Ok(scalars);
        }
        let (event, checksum) = data.split_at(length as usize);
        if masked(event).to_le_bytes() != checksum {
            return Err(damaged("the checksum of a record is wrong"));
        }
        event_scalars(event, &mut scalars).ok_or_else(|| damaged("a record is no event"))?;
        at += 16 + length;
    }
}

/// False at the end of the file, a cut-off piece included.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

/// A field of a message.
enum Field<'a> {
    Int(u64),
    Four([u8; 4]),
    Eight,
    Bytes(&'a [u8]),
}

/// The next field and its number; `None` for a message that is cut off or malformed.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let key = varint(rest)?;
    let field = match key & 7 {
        0 => Field::Int(varint(rest)?),
        1 => {
            take(rest, 8)?;
            Field::Eight
        }
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Field::Bytes(take(rest, length)?)
        }
        5 => Field::Four(array(take(rest, 4)?)),
        _ => return None,
    };
    Some((key >> 3, field))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *take(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn event_scalars(mut event: &[u8], out: &mut Vec<Scalar>) -> Option<()> {
    let (mut step, mut summary) = (0, None);
    while !event.is_empty() {
        match next(&mut event)? {
            (2, Field::Int(n)) => step = n,
            (5, Field::Bytes(bytes)) => summary = Some(bytes),
            _ => {}
        }
    }
    let Some(mut summary) = summary else { return Some(()) };
    while !summary.is_empty() {
        let (1, Field::Bytes(mut value)) = next(&mut summary)? else { continue };
        let (mut tag, mut number) = (None, None);
        while !value.is_empty() {
            match next(&mut value)? {
                (1, Field::Bytes(text)) => tag = Some(String::from_utf8_lossy(text).into_owned()),
                (2, Field::Four(bytes)) => number = Some(f32::from_le_bytes(bytes)),
                _ => {}
            }
        }
        if let (Some(tag), Some(value)) = (tag, number) {
            out.push(Scalar { tag, step, value });
        }
    }
    Some(())
}
