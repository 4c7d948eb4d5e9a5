//! Bytes of an input file: as they are, or unpacked from gzip or zstd by their first bytes, whatever the name says.

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the bytes of a file are packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Packing {
    #[default]
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// By the first four bytes.
    pub fn of(head: &[u8]) -> Packing {
        match head {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            // A frame, or a skippable frame before one.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Packing::Zstd,
            _ => Packing::Plain,
        }
    }
}

/// A file whose bytes are counted as they are read: how far the input is.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Opens a file at byte `offset` of what it unpacks to. The bytes read from disk are added to `read`.
pub(super) fn open(
    path: &Path,
    packing: Packing,
    offset: u64,
    read: &Arc<AtomicU64>,
) -> io::Result<Box<dyn BufRead + Send>> {
    const BUFFER: usize = 1 << 20;
    let mut file = File::open(path)?;
    if packing == Packing::Plain && offset > 0 {
        file.seek(SeekFrom::Start(offset))?;
    }
    let raw = BufReader::with_capacity(BUFFER, Counted { file, read: Arc::clone(read) });
    let mut unpacked: Box<dyn BufRead + Send> = match packing {
        Packing::Plain => return Ok(Box::new(raw)),
        Packing::Gzip => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(raw))),
        Packing::Zstd => Box::new(BufReader::with_capacity(BUFFER, Zstd { raw: Some(raw), frame: None })),
    };
    let skipped = io::copy(&mut (&mut unpacked).take(offset), &mut io::sink())?;
    match skipped == offset {
        true => Ok(unpacked),
        false => {
            Err(Error::new(ErrorKind::UnexpectedEof, format!("it has {skipped} bytes, but {offset} were read before")))
        }
    }
}

/// All frames of a zstd file, with their checksums verified.
struct Zstd<R: BufRead> {
    /// Set between frames.
    raw: Option<R>,
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Zstd<R> {
    /// Begins the next frame; false at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        let Some(mut raw) = self.raw.take() else { return Ok(false) };
        loop {
            if raw.fill_buf()?.is_empty() {
                return Ok(false);
            }
            // The decoder takes the reader whole, even when it only finds out that the frame is to be skipped.
            match skippable(&mut raw)? {
                Some(length) => {
                    let skipped = io::copy(&mut (&mut raw).take(length), &mut io::sink())?;
                    if skipped != length {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                None => break,
            }
        }
        let broken = |e: FrameDecoderError| match e {
            FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::MagicNumberReadError(e)) => e,
            e => Error::new(ErrorKind::InvalidData, e.to_string()),
        };
        self.frame = Some(StreamingDecoder::new(raw).map_err(broken)?);
        Ok(true)
    }
}

/// Length of the content of a skippable frame, whose head is taken; `None` for any other.
fn skippable(raw: &mut impl BufRead) -> io::Result<Option<u64>> {
    // The buffer has a megabyte: a head of 8 bytes is split only when the file is.
    let &[a, 0x2a, 0x4d, 0x18, b, c, d, e, ..] = raw.fill_buf()? else { return Ok(None) };
    if a & 0xf0 != 0x50 {
        return Ok(None);
    }
    raw.consume(8);
    Ok(Some(u64::from(u32::from_le_bytes([b, c, d, e]))))
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else {
                match self.next_frame()? {
                    true => continue,
                    false => return Ok(0),
                }
            };
            let n = frame.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            let Some((raw, decoder)) = self.frame.take().map(StreamingDecoder::into_parts) else { continue };
            let (stored, computed) = (decoder.get_checksum_from_data(), decoder.get_calculated_checksum());
            if stored.is_some() && stored != computed {
                return Err(Error::new(ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"));
            }
            self.raw = Some(raw);
        }
    }
}
