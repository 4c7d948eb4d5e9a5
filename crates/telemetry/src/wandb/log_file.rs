//! The file inside a Weights & Biases run folder: LevelDB's log format with zlib's CRC-32.
//!
//! Seven bytes of head (`:W&B`, 0xBEE1, version 0), then blocks of 32 KiB. A record is cut into pieces that do not cross a
//! block; each has a head of CRC over type and data (u32), length (u16), type (1 whole, 2 first, 3 middle, 4 last), little-endian.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

const BLOCK: usize = 32 * 1024;
const HEAD: usize = 7;
const FILE_HEAD: [u8; 7] = [b':', b'W', b'&', b'B', 0xE1, 0xBE, 0];

/// Appends records.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    at: usize,
    table: [u32; 256],
}

impl LogFile {
    /// Creates a file that is not there yet.
    pub fn create(path: &Path) -> io::Result<LogFile> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&FILE_HEAD)?;
        Ok(LogFile { file, at: FILE_HEAD.len(), table: table() })
    }

    /// Appends a record; it reaches the operating system at once.
    pub fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(record.len() + 2 * HEAD);
        let mut rest = record;
        let mut first = true;
        loop {
            let mut left = BLOCK - (self.at + bytes.len()) % BLOCK;
            if left < HEAD {
                bytes.extend(std::iter::repeat_n(0, left));
                left = BLOCK;
            }
            let (piece, later) = rest.split_at(rest.len().min(left - HEAD));
            let kind: u8 = match (first, later.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            bytes.extend(crc32(&self.table, kind, piece).to_le_bytes());
            bytes.extend((piece.len() as u16).to_le_bytes());
            bytes.push(kind);
            bytes.extend(piece);
            (rest, first) = (later, false);
            if rest.is_empty() {
                break;
            }
        }
        self.at += bytes.len();
        self.file.write_all(&bytes)
    }
}

fn table() -> [u32; 256] {
    std::array::from_fn(|i| {
        (0..8).fold(i as u32, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 })
    })
}

/// CRC-32 as zlib's, over the kind and the data.
fn crc32(table: &[u32; 256], kind: u8, data: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| crc >> 8 ^ table[((crc ^ u32::from(*byte)) & 0xFF) as usize];
    !data.iter().fold(step(!0, &kind), step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_zlibs() {
        // The check value of CRC-32: "123456789" gives 0xCBF43926.
        assert_eq!(crc32(&table(), b'1', b"23456789"), 0xCBF4_3926);
    }

    #[test]
    fn records_of_all_sizes_are_framed() {
        let path = std::env::temp_dir().join(format!("ferrotron-wandb-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut log = LogFile::create(&path).unwrap();
        // The sizes around a block's end, where a head does not fit any more, and records over several blocks.
        let sizes = [0, 1, BLOCK - 3 * HEAD - 9, 1, 3, 100_000, BLOCK - HEAD, 5];
        let records: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, n)| vec![i as u8; *n]).collect();
        for record in &records {
            log.write(record).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (mut at, mut whole, mut found) = (HEAD, Vec::<u8>::new(), Vec::new());
        while at < bytes.len() {
            let left = BLOCK - at % BLOCK;
            if left < HEAD {
                assert!(bytes[at..at + left].iter().all(|b| *b == 0));
                at += left;
                continue;
            }
            let length = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
            let (kind, data) = (bytes[at + 6], &bytes[at + HEAD..at + HEAD + length]);
            assert!(at % BLOCK + HEAD + length <= BLOCK, "a piece crosses a block");
            assert_eq!(bytes[at..at + 4], crc32(&table(), kind, data).to_le_bytes());
            whole.extend(data);
            if kind == 1 || kind == 4 {
                found.push(std::mem::take(&mut whole));
            }
            at += HEAD + length;
        }
        assert_eq!(found, records);
    }
}
