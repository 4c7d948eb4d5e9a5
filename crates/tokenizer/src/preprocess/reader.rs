//! Files to batches of whole lines.

use super::batch::{Batch, Work};
use super::gate::Gate;
use super::input::InputFile;
use crate::{Error, LineError, Problem};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::Sender;

/// A batch is closed at this many bytes: tens of milliseconds of tokenizing, so that workers rarely wait for each
/// other and progress is smooth.
const BATCH_BYTES: usize = 128 << 10;

/// Most bytes of a line. It must be held in memory as a whole, several times over.
const MAX_LINE_BYTES: u64 = 512 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads all files in order and sends their lines, until done, failed, or the gate is closed. A failure is sent in
/// the place of the batch that it prevented, so that bad lines before it are reported first.
pub(super) fn read_all(files: &[InputFile], gate: &Gate, work: &Sender<Work>) {
    let mut index = 0;
    let mut send = |batch: Result<Batch, Error>| {
        let cost = batch.as_ref().map_or(0, |b| b.bytes.len());
        let sent = gate.enter(cost) && work.send(Work { index, batch }).is_ok();
        index += 1;
        sent
    };
    for (number, file) in files.iter().enumerate() {
        match read_file(number, file, MAX_LINE_BYTES, &mut |batch| send(Ok(batch))) {
            Ok(true) => {}
            Ok(false) => return,
            Err(e) => {
                send(Err(e));
                return;
            }
        }
    }
}

/// False when `send` wants no more.
fn read_file(
    number: usize,
    file: &InputFile,
    max_line: u64,
    send: &mut dyn FnMut(Batch) -> bool,
) -> Result<bool, Error> {
    let io = || Error::io("read", &file.path);
    let mut reader = BufReader::with_capacity(1 << 20, File::open(&file.path).map_err(io())?);
    let mut line = 1;
    loop {
        let mut batch = Batch { file: number, first_line: line, ..Default::default() };
        let mut at_end = false;
        while batch.bytes.len() < BATCH_BYTES {
            let start = batch.bytes.len();
            let read = (&mut reader).take(max_line + 2).read_until(b'\n', &mut batch.bytes).map_err(io())?;
            if read == 0 {
                at_end = true;
                break;
            }
            if batch.bytes[start..].strip_suffix(b"\n").map_or(read, <[u8]>::len) as u64 > max_line {
                let problem = Problem::TooLong { limit: max_line };
                return Err(LineError { file: file.path.clone(), line, column: 1, problem }.into());
            }
            if line == 1 && batch.bytes.starts_with(BYTE_ORDER_MARK) {
                batch.bytes.drain(..BYTE_ORDER_MARK.len());
            }
            batch.ends.push(batch.bytes.len());
            line += 1;
        }
        if !batch.ends.is_empty() && !send(batch) {
            return Ok(false);
        }
        if at_end {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, bytes: &[u8], max_line: u64) -> Result<Vec<Batch>, String> {
        let path = std::env::temp_dir().join(format!("ferrotron-reader-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = InputFile { path: path.clone(), bytes: bytes.len() as u64 };
        let mut batches = Vec::new();
        let result = read_file(3, &file, max_line, &mut |batch| {
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
