//! Files to batches of whole lines.

use super::batch::{Batch, Work};
use super::gate::Gate;
use super::input::InputFile;
use super::journal::Place;
use super::source::{self, Packing};
use crate::{Error, LineError, Problem};
use std::io::{BufRead, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;

/// A batch is closed at this many bytes: tens of milliseconds of tokenizing, so that workers rarely wait for each
/// other and progress is smooth.
const BATCH_BYTES: usize = 128 << 10;

/// Most bytes of a line. It must be held in memory as a whole, several times over.
pub(super) const MAX_LINE_BYTES: u64 = 512 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads all files in order, from a place on, and sends their lines, until done, failed, or the gate is closed. A
/// failure is sent in the place of the batch that it prevented, so that bad lines before it are reported first.
pub(super) fn read_all(files: &[InputFile], from: Place, read: &Arc<AtomicU64>, gate: &Gate, work: &Sender<Work>) {
    let mut index = 0;
    let mut send = |batch: Result<Batch, Error>| {
        let cost = batch.as_ref().map_or(0, |b| b.bytes.len());
        let sent = gate.enter(cost) && work.send(Work { index, batch }).is_ok();
        index += 1;
        sent
    };
    for (number, file) in files.iter().enumerate().skip(from.file) {
        let at = match number == from.file && from.line > 0 {
            true => from,
            false => Place { file: number, offset: file.part.start, line: 1 },
        };
        // A panic of an unpacker must not look like the end of the input.
        let reading = AssertUnwindSafe(|| read_file(file, at, read, MAX_LINE_BYTES, &mut |batch| send(Ok(batch))));
        match catch_unwind(reading).unwrap_or_else(|_| Err(Error::io("unpack", &file.path)(broken()))) {
            Ok(true) => {}
            Ok(false) => return,
            Err(e) => {
                send(Err(e));
                return;
            }
        }
    }
}

fn broken() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, "the decoder crashed on it: the file is damaged")
}

/// False when `send` wants no more.
fn read_file(
    file: &InputFile,
    mut at: Place,
    read: &Arc<AtomicU64>,
    max_line: u64,
    send: &mut dyn FnMut(Batch) -> bool,
) -> Result<bool, Error> {
    let io = || Error::io(if file.packing == Packing::Plain { "read" } else { "unpack" }, &file.path);
    let divided = at.line == 1 && at.offset > 0;
    // The byte before a part says whether the part begins with a line or in the middle of one.
    let start = at.offset - u64::from(divided);
    let mut reader = source::open(&file.path, file.packing, start, read).map_err(io())?;
    if divided {
        at.offset = start + skip_line(&mut *reader).map_err(io())?;
    }
    loop {
        let mut batch = Batch { file: at.file, first_line: at.line, ..Default::default() };
        let mut at_end = false;
        while batch.bytes.len() < BATCH_BYTES {
            let begin = batch.bytes.len();
            let length = match at.offset < file.part.end {
                true => (&mut reader).take(max_line + 2).read_until(b'\n', &mut batch.bytes).map_err(io())?,
                false => 0,
            };
            if length == 0 {
                at_end = true;
                break;
            }
            if batch.bytes[begin..].strip_suffix(b"\n").map_or(length, <[u8]>::len) as u64 > max_line {
                let (problem, line) = (Problem::TooLong { limit: max_line }, file.line_number(at.line)?);
                return Err(LineError { file: file.path.clone(), line, column: 1, problem }.into());
            }
            if at.offset == 0 && batch.bytes.starts_with(BYTE_ORDER_MARK) {
                batch.bytes.drain(..BYTE_ORDER_MARK.len());
            }
            batch.ends.push(batch.bytes.len());
            at.offset += length as u64;
            at.line += 1;
        }
        batch.next = at;
        if !batch.ends.is_empty() && !send(batch) {
            return Ok(false);
        }
        if at_end {
            return Ok(true);
        }
    }
}

/// Reads up to the end of the line, and gives the number of bytes.
fn skip_line(reader: &mut dyn BufRead) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf()?;
        let end = buffer.iter().position(|&b| b == b'\n').map(|i| i + 1);
        let length = end.unwrap_or(buffer.len());
        skipped += length as u64;
        reader.consume(length);
        if end.is_some() || length == 0 {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preprocess::input;

    fn read(name: &str, bytes: &[u8], max_line: u64) -> Result<Vec<Batch>, String> {
        let path = std::env::temp_dir().join(format!("ferrotron-reader-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = InputFile::new(path.clone(), bytes.len() as u64, Packing::Plain);
        let mut batches = Vec::new();
        let start = Place { file: 3, offset: 0, line: 1 };
        let result = read_file(&file, start, &Arc::default(), max_line, &mut |batch| {
            batches.push(batch);
            true
        });
        std::fs::remove_file(&path).unwrap();
        result.map(|_| batches).map_err(|e| e.to_string())
    }

    #[test]
    fn batches_hold_every_line_once() {
        let text: String = (0..50_000).map(|i| format!("line {i}\n")).collect();
        let batches = read("many", text.as_bytes(), 100).unwrap();
        assert!(batches.len() > 3);
        let mut next = 1;
        for batch in &batches {
            assert_eq!((batch.first_line, batch.file), (next, 3));
            for (number, line) in batch.lines() {
                assert_eq!(line, format!("line {}", number - 1).as_bytes());
                next = number + 1;
            }
        }
        assert_eq!(next, 50_001);
    }

    /// However a file is divided, each line is in one part, with its number in the whole file.
    #[test]
    fn parts_divide_a_file_between_lines() {
        let text: String = (0..40).map(|i| format!("{}\n", "x".repeat(i % 5))).collect::<String>() + "last";
        let path = std::env::temp_dir().join(format!("ferrotron-reader-parts-{}", std::process::id()));
        std::fs::write(&path, &text).unwrap();
        for count in [1, 2, 3, 7, 200] {
            let mut lines = Vec::new();
            for index in 0..count {
                let file = InputFile::new(path.clone(), text.len() as u64, Packing::Plain);
                for file in input::shard(vec![file], index, count) {
                    let start = Place { file: 0, offset: file.part.start, line: 1 };
                    read_file(&file, start, &Arc::default(), 100, &mut |batch| {
                        let numbered = |(n, line): (u64, &[u8])| (file.line_number(n).unwrap(), line.to_vec());
                        lines.extend(batch.lines().map(numbered));
                        true
                    })
                    .unwrap();
                }
            }
            let want: Vec<(u64, Vec<u8>)> =
                text.lines().map(|l| l.as_bytes().to_vec()).enumerate().map(|(i, l)| (i as u64 + 1, l)).collect();
            assert_eq!(lines, want, "{count}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_the_first_byte_order_mark_goes() {
        let batches = read("bom", b"\xef\xbb\xbfa\n\xef\xbb\xbfb", 100).unwrap();
        let lines: Vec<_> = batches[0].lines().map(|(_, line)| line.to_vec()).collect();
        assert_eq!(lines, [b"a".to_vec(), b"\xef\xbb\xbfb".to_vec()]);
        assert!(read("none", b"", 100).unwrap().is_empty());
        assert_eq!(read("mark", b"\xef\xbb\xbf", 100).unwrap()[0].ends, [0]);
    }

    #[test]
    fn a_line_over_the_limit_is_an_error() {
        assert_eq!(read("fits", b"0123456789\nab", 10).unwrap()[0].ends, [11, 13]);
        let e = read("long", b"a\n0123456789x\nab", 10).unwrap_err();
        assert!(e.contains(":2:1: the line is longer than 10 bytes"), "{e}");
        assert!(read("unended", b"0123456789x", 10).unwrap_err().contains(":1:1:"));
    }
}
