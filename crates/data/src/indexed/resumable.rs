//! Writing that survives a kill: everything goes to disk as it comes, so a writer can go on from any [`Mark`].
//!
//! Beside `<prefix>.bin` stand `<prefix>.len` (i32 length of each sequence) and `<prefix>.doc` (i64 sequences after
//! each document) until `<prefix>.idx` is made of them. Memory does not grow with the dataset.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{MAGIC, TokenType, VERSION, data_path, index_path};
use crate::error::{Error, Result};
use crate::files::with_suffix;

/// How far a dataset was written and made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Bytes of tokens.
    pub bytes: u64,
    /// Sequences.
    pub sequences: u64,
    /// Documents.
    pub documents: u64,
}

/// Bytes of a length in `.len`, and of a boundary in `.doc`.
const LENGTH_BYTES: u64 = 4;
const BOUNDARY_BYTES: u64 = 8;

/// Writes `<prefix>.bin` and, at the end, `<prefix>.idx`. A writer that is dropped leaves its files, to go on from;
/// [`ResumableWriter::remove`] takes them away.
pub struct ResumableWriter {
    prefix: PathBuf,
    token_type: TokenType,
    data: Part,
    lengths: Part,
    boundaries: Part,
    at: Mark,
    scratch: Vec<u8>,
}

/// One file that grows at its end.
struct Part {
    path: PathBuf,
    writer: BufWriter<File>,
}

impl Part {
    /// Opens the file, cuts it to `size` bytes and goes to its end. It must have that many, unless it begins anew.
    fn open(path: PathBuf, size: u64) -> Result<Part> {
        let error = |e| Error::io("open", &path, e);
        let mut file = OpenOptions::new().write(true).create(size == 0).truncate(false).open(&path).map_err(error)?;
        let there = file.metadata().map_err(error)?.len();
        if there < size {
            let problem = format!("{there} bytes are there, but {size} were written before the interruption");
            return Err(Error::format(&path, "size", problem));
        }
        file.set_len(size).and_then(|()| file.seek(SeekFrom::Start(size))).map_err(error)?;
        Ok(Part { writer: BufWriter::with_capacity(1 << 20, file), path })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|e| Error::io("write", &self.path, e))
    }

    fn sync(&mut self) -> Result<()> {
        self.writer.flush().map_err(|e| Error::io("write", &self.path, e))?;
        self.writer.get_ref().sync_data().map_err(|e| Error::io("sync", &self.path, e))
    }
}

fn lengths_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".len")
}

fn boundaries_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".doc")
}

impl ResumableWriter {
    /// Begins a dataset, or goes on with one: what was written after `from` is cut off.
    ///
    /// # Errors
    /// When a file cannot be opened, or has less than `from` says.
    pub fn open(prefix: impl AsRef<Path>, token_type: TokenType, from: Mark) -> Result<ResumableWriter> {
        let prefix = prefix.as_ref();
        let side = |count: u64, size: u64| {
            count.checked_mul(size).ok_or_else(|| Error::format(prefix, "mark", format!("{from:?} is out of range")))
        };
        Ok(ResumableWriter {
            data: Part::open(data_path(prefix), from.bytes)?,
            lengths: Part::open(lengths_path(prefix), side(from.sequences, LENGTH_BYTES)?)?,
            boundaries: Part::open(boundaries_path(prefix), side(from.documents, BOUNDARY_BYTES)?)?,
            prefix: prefix.to_owned(),
            token_type,
            at: from,
            scratch: Vec::new(),
        })
    }

    /// Appends a document: its sequences back to back, and their lengths, which sum to `tokens.len()`.
    ///
    /// # Errors
    /// When an id does not fit the element type, when a sequence has 2^31 tokens or more, or when writing fails.
    pub fn add_document(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<()> {
        self.scratch.clear();
        let fits = match self.token_type {
            TokenType::U16 => narrow(tokens, &mut self.scratch),
            other => tokens.iter().position(|&id| !other.encode(i64::from(id), &mut self.scratch)),
        };
        if let Some(position) = fits {
            return Err(Error::TokenRange {
                file: self.prefix.display().to_string(),
                sequence: usize::try_from(self.at.sequences).unwrap_or(usize::MAX),
                position,
                id: tokens[position].to_string(),
                holder: self.token_type.name().to_owned(),
            });
        }
        self.data.write(&self.scratch)?;
        self.at.bytes += self.scratch.len() as u64;
        for &length in lengths {
            let length = i32::try_from(length).map_err(|_| {
                let problem = format!(
                    "sequence {} has {length} tokens, but at most {} fit the index",
                    self.at.sequences,
                    i32::MAX
                );
                Error::format(&index_path(&self.prefix), "sequence_lengths", problem)
            })?;
            self.lengths.write(&length.to_le_bytes())?;
            self.at.sequences += 1;
        }
        self.boundaries.write(&self.at.sequences.to_le_bytes())?;
        self.at.documents += 1;
        Ok(())
    }

    /// Makes everything so far durable, and says how to go on from here.
    ///
    /// # Errors
    /// When writing fails.
    pub fn mark(&mut self) -> Result<Mark> {
        for part in [&mut self.data, &mut self.lengths, &mut self.boundaries] {
            part.sync()?;
        }
        Ok(self.at)
    }

    /// Makes `<prefix>.idx` and all files durable. The side files stay, so that an interruption before both files
    /// have their final names can still go on from the last mark; [`ResumableWriter::remove_side_files`] ends that.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> Result<()> {
        let Mark { sequences, documents, .. } = self.mark()?;
        let path = index_path(&self.prefix);
        let file = File::create(&path).map_err(|e| Error::io("create", &path, e))?;
        let mut out = Part { writer: BufWriter::with_capacity(1 << 20, file), path };
        out.write(MAGIC)?;
        out.write(&VERSION.to_le_bytes())?;
        out.write(&[self.token_type.code()])?;
        out.write(&sequences.to_le_bytes())?;
        out.write(&(documents + 1).to_le_bytes())?;
        let lengths = lengths_path(&self.prefix);
        each(&lengths, sequences, |length: [u8; 4]| out.write(&length))?;
        let mut pointer: i64 = 0;
        each(&lengths, sequences, |length: [u8; 4]| {
            out.write(&pointer.to_le_bytes())?;
            pointer += i64::from(i32::from_le_bytes(length)) * self.token_type.size() as i64;
            Ok(())
        })?;
        out.write(&0i64.to_le_bytes())?;
        each(&boundaries_path(&self.prefix), documents, |boundary: [u8; 8]| out.write(&boundary))?;
        out.sync()
    }

    /// Removes what only a writer that goes on would need.
    pub fn remove_side_files(prefix: impl AsRef<Path>) {
        for path in [lengths_path(prefix.as_ref()), boundaries_path(prefix.as_ref())] {
            // Nothing more can be done about a file that cannot be removed, and nothing reads it.
            let _ = fs::remove_file(path);
        }
    }

    /// Removes every file of an unfinished dataset.
    pub fn remove(prefix: impl AsRef<Path>) {
        ResumableWriter::remove_side_files(prefix.as_ref());
        for path in [data_path(prefix.as_ref()), index_path(prefix.as_ref())] {
            let _ = fs::remove_file(path);
        }
    }
}

/// Ids as u16; the place of the first that does not fit.
fn narrow(tokens: &[u32], out: &mut Vec<u8>) -> Option<usize> {
    out.reserve(2 * tokens.len());
    for (i, &id) in tokens.iter().enumerate() {
        let Ok(id) = u16::try_from(id) else { return Some(i) };
        out.extend_from_slice(&id.to_le_bytes());
    }
    None
}

/// Gives the first `count` elements of a side file to `f`.
fn each<const N: usize>(path: &Path, count: u64, mut f: impl FnMut([u8; N]) -> Result<()>) -> Result<()> {
    let error = |e| Error::io("read", path, e);
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(error)?);
    let mut element = [0; N];
    for _ in 0..count {
        reader.read_exact(&mut element).map_err(error)?;
        f(element)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::indexed::IndexedWriter;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ferrotron-resumable-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    type Document = (Vec<u32>, Vec<usize>);

    fn documents() -> Vec<Document> {
        (0..200u32).map(|i| ((0..i % 7).map(|k| i * 10 + k).collect(), vec![(i % 7) as usize])).map(split).collect()
    }

    /// Some documents have two sequences, empty ones have none.
    fn split((tokens, _): Document) -> Document {
        let lengths = match tokens.len() {
            0 => vec![],
            n if n % 2 == 0 => vec![n / 2, n / 2],
            n => vec![n],
        };
        (tokens, lengths)
    }

    /// The same bytes as the writer that keeps lengths in memory, interrupted anywhere or not at all.
    #[test]
    fn an_interrupted_writer_gives_the_same_files() {
        let dir = folder("same");
        for token_type in [TokenType::U16, TokenType::I32] {
            let mut whole = IndexedWriter::create(dir.join("whole"), token_type).unwrap();
            for (tokens, lengths) in documents() {
                let mut rest = tokens.as_slice();
                for n in lengths {
                    whole.add_sequence(rest[..n].iter().map(|&id| i64::from(id))).unwrap();
                    rest = &rest[n..];
                }
                whole.end_document();
            }
            whole.finish().unwrap();
            for stop in [0, 1, 77, 199] {
                let parts = dir.join("parts");
                let mut first = ResumableWriter::open(&parts, token_type, Mark::default()).unwrap();
                let mut mark = Mark::default();
                for (i, (tokens, lengths)) in documents().into_iter().enumerate() {
                    if i == stop {
                        mark = first.mark().unwrap();
                    }
                    // What comes after the mark is lost work.
                    first.add_document(&tokens, &lengths).unwrap();
                }
                drop(first);
                assert_eq!(mark.documents, stop as u64);
                let mut second = ResumableWriter::open(&parts, token_type, mark).unwrap();
                for (tokens, lengths) in documents().into_iter().skip(stop) {
                    second.add_document(&tokens, &lengths).unwrap();
                }
                second.finish().unwrap();
                for suffix in ["bin", "idx"] {
                    let read = |name: &str| fs::read(dir.join(format!("{name}.{suffix}"))).unwrap();
                    assert!(read("whole") == read("parts"), "{token_type:?} {stop} {suffix}");
                }
                ResumableWriter::remove(&parts);
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_an_error() {
        let dir = folder("errors");
        let mark = Mark { bytes: 4, sequences: 1, documents: 1 };
        let open = |mark| ResumableWriter::open(dir.join("p"), TokenType::U16, mark);
        assert!(open(mark).is_err(), "no file");
        let mut writer = open(Mark::default()).unwrap();
        let e = writer.add_document(&[1, 70_000], &[2]).unwrap_err().to_string();
        assert!(e.contains("70000"), "{e}");
        writer.add_document(&[1], &[1]).unwrap();
        writer.mark().unwrap();
        let e = open(mark).err().unwrap().to_string();
        assert!(e.contains("2 bytes are there, but 4 were written"), "{e}");
        assert!(open(Mark { sequences: u64::MAX, bytes: 0, documents: 0 }).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
