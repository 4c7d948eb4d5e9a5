//! Reading: both files are mapped, the whole index is checked once at open.

use std::path::Path;

use super::{HEADER_BYTES, MAGIC, TokenType, Tokens, VERSION, data_path, index_path};
use crate::error::{Error, Result};
use crate::mapped::MappedFile;

/// Whether the dataset was written with a mode per sequence; the file does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multimodal {
    /// Text only. A trailing block of modes is tolerated and ignored.
    No,
    /// One mode per sequence follows the index.
    Yes,
}

/// An open `.bin`/`.idx` pair. Holds no memory of its own beyond the two maps.
pub struct IndexedDataset {
    name: String,
    index: MappedFile,
    data: MappedFile,
    token_type: TokenType,
    sequences: usize,
    /// Documents + 1.
    boundaries: usize,
    multimodal: Multimodal,
    tokens: u64,
}

impl IndexedDataset {
    /// Opens `<prefix>.idx` and `<prefix>.bin` and checks the index from end to end against the data file.
    ///
    /// # Errors
    /// Names the file and the field when the magic, version, element type, counts, lengths, pointers or document
    /// boundaries are inconsistent. Never panics on, nor allocates in proportion to, what a file claims.
    pub fn open(prefix: impl AsRef<Path>, multimodal: Multimodal) -> Result<IndexedDataset> {
        let prefix = prefix.as_ref();
        let index = MappedFile::open(&index_path(prefix))?;
        let data = MappedFile::open(&data_path(prefix))?;
        let header = Header::parse(&index, multimodal)?;
        let mut dataset = IndexedDataset {
            name: prefix.display().to_string(),
            index,
            data,
            token_type: header.token_type,
            sequences: header.sequences,
            boundaries: header.boundaries,
            multimodal,
            tokens: 0,
        };
        dataset.tokens = dataset.check_sequences()?;
        dataset.check_documents()?;
        Ok(dataset)
    }

    /// Lengths are not negative, pointers are their running sum, and the sum is the size of `.bin`. Returns the
    /// number of tokens.
    fn check_sequences(&self) -> Result<u64> {
        let item = self.token_type.size() as u64;
        // Cannot overflow: each pointer is an i64 that equals the sum so far, so the sum passes 2^63 by at most one
        // length before the next pointer is refused.
        let mut tokens: u64 = 0;
        for i in 0..self.sequences {
            let length = self.raw_length(i);
            let length = u64::try_from(length).map_err(|_| {
                self.index_error("sequence_lengths", format!("length {length} of sequence {i} is negative"))
            })?;
            let (pointer, expected) = (self.raw_pointer(i), tokens * item);
            if u64::try_from(pointer) != Ok(expected) {
                return Err(self.index_error(
                    "sequence_pointers",
                    format!("sequence {i} begins at byte {pointer}, but the sequences before it end at {expected}"),
                ));
            }
            tokens += length;
        }
        let (expected, found) = (tokens * item, self.data.bytes().len() as u64);
        if expected != found {
            return Err(Error::format(
                self.data.path(),
                "size",
                format!(
                    "has {found} bytes, but its index describes {tokens} tokens of {item} bytes, {expected} bytes; \
                     the two files do not belong together or one is cut short"
                ),
            ));
        }
        Ok(tokens)
    }

    /// Document boundaries start at 0, never fall, and end at the number of sequences.
    fn check_documents(&self) -> Result<()> {
        let last = self.check_ascending()?;
        if last != self.sequences as i64 {
            let remedy = match last < self.sequences as i64 {
                true => "; the end of the last document is missing, and a corrected copy can be made",
                false => "",
            };
            return Err(self.index_error(
                "document_indices",
                format!("the last entry is {last}, but there are {} sequences{remedy}", self.sequences),
            ));
        }
        Ok(())
    }

    /// Document boundaries start at 0 and never fall; gives the last.
    fn check_ascending(&self) -> Result<i64> {
        let mut previous = 0;
        for d in 0..self.boundaries {
            let boundary = self.raw_boundary(d);
            if (d == 0 && boundary != 0) || boundary < previous {
                return Err(self.index_error(
                    "document_indices",
                    format!("entry {d} is {boundary}, but it must be at least {previous} and the first must be 0"),
                ));
            }
            previous = boundary;
        }
        Ok(previous)
    }

    /// The bytes of an index whose last document was given its end, and how many sequences that end adds; 0 when
    /// nothing was wrong.
    pub(super) fn open_for_repair(prefix: &Path, multimodal: Multimodal) -> Result<(Vec<u8>, u64)> {
        let index = MappedFile::open(&index_path(prefix))?;
        let mut bytes = index.bytes().to_vec();
        let Header { token_type, sequences, boundaries } = Header::parse(&index, multimodal)?;
        let (name, data) = (prefix.display().to_string(), MappedFile::open(&data_path(prefix))?);
        let dataset = IndexedDataset { name, index, data, token_type, sequences, boundaries, multimodal, tokens: 0 };
        dataset.check_sequences()?;
        let last = dataset.check_ascending()?;
        // The end of the boundaries, after which modes may follow.
        let end = HEADER_BYTES + 12 * sequences + 8 * boundaries;
        let missing = match sequences as i64 - last {
            0 => return Ok((bytes, 0)),
            n if n > 0 => n as u64,
            _ => {
                let problem = format!("the last entry is {last}, but there are only {sequences} sequences");
                return Err(dataset.index_error("document_indices", problem));
            }
        };
        bytes.splice(end..end, (sequences as i64).to_le_bytes());
        bytes[26..34].copy_from_slice(&(boundaries as u64 + 1).to_le_bytes());
        Ok((bytes, missing))
    }

    /// How tokens are stored.
    pub fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// Number of documents (groups of sequences). Not what samples are made from: see [`Tokens::sequences`].
    pub fn documents(&self) -> usize {
        self.boundaries - 1
    }

    /// The sequences of document `d`.
    ///
    /// # Errors
    /// When there is no such document.
    pub fn document(&self, d: usize) -> Result<std::ops::Range<usize>> {
        if d >= self.documents() {
            return Err(self.out_of_range("document", d, self.documents()));
        }
        // Checked at open: boundaries ascend from 0 to the number of sequences.
        Ok(self.raw_boundary(d) as usize..self.raw_boundary(d + 1) as usize)
    }

    /// Tokens in all sequences.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Byte of `.bin` where sequence `i` begins.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn pointer(&self, i: usize) -> Result<u64> {
        if i >= self.sequences {
            return Err(self.out_of_range("sequence", i, self.sequences));
        }
        Ok(self.raw_pointer(i) as u64)
    }

    /// The mode of sequence `i`; `None` when the dataset was not opened as multimodal.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn mode(&self, i: usize) -> Result<Option<i8>> {
        if i >= self.sequences {
            return Err(self.out_of_range("sequence", i, self.sequences));
        }
        let at = HEADER_BYTES + 12 * self.sequences + 8 * self.boundaries + i;
        Ok((self.multimodal == Multimodal::Yes).then(|| self.index.bytes()[at] as i8))
    }

    /// The stored bytes of tokens `offset..offset + len` of sequence `i`.
    ///
    /// # Errors
    /// When they do not lie inside the sequence. Megatron reads on into the next one.
    pub fn bytes(&self, i: usize, offset: usize, len: usize) -> Result<&[u8]> {
        let begin = self.pointer(i)?;
        let length = self.length(i);
        match offset.checked_add(len) {
            Some(end) if end <= length => {}
            _ => return Err(self.out_of_range("token", offset.saturating_add(len), length)),
        }
        let item = self.token_type.size();
        let begin = begin as usize + offset * item;
        Ok(&self.data.bytes()[begin..begin + len * item])
    }

    /// Appends tokens `offset..offset + len` of sequence `i` as 64-bit ids.
    ///
    /// # Errors
    /// When they do not lie inside the sequence, or a float is not a whole number.
    pub fn read_i64(&self, i: usize, offset: usize, len: usize, out: &mut Vec<i64>) -> Result<()> {
        let bytes = self.bytes(i, offset, len)?;
        out.reserve(len);
        let decoded = self.token_type.decode(bytes, |id| {
            out.push(id);
            true
        });
        decoded.map_err(|(at, value)| self.token_range(i, offset + at, value, "a token id"))
    }

    fn raw_length(&self, i: usize) -> i32 {
        i32::from_le_bytes(self.index_bytes(HEADER_BYTES + 4 * i))
    }

    fn raw_pointer(&self, i: usize) -> i64 {
        i64::from_le_bytes(self.index_bytes(HEADER_BYTES + 4 * self.sequences + 8 * i))
    }

    fn raw_boundary(&self, d: usize) -> i64 {
        i64::from_le_bytes(self.index_bytes(HEADER_BYTES + 12 * self.sequences + 8 * d))
    }

    fn index_bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        array_at(self.index.bytes(), at)
    }

    fn index_error(&self, field: &'static str, problem: String) -> Error {
        Error::format(self.index.path(), field, problem)
    }

    fn out_of_range(&self, what: &'static str, index: usize, len: usize) -> Error {
        Error::OutOfRange { file: self.name.clone(), what, index, len }
    }

    fn token_range(&self, sequence: usize, position: usize, id: String, holder: &str) -> Error {
        Error::TokenRange { file: self.name.clone(), sequence, position, id, holder: holder.to_owned() }
    }
}

impl Tokens for IndexedDataset {
    fn sequences(&self) -> usize {
        self.sequences
    }

    fn length(&self, i: usize) -> usize {
        // Checked at open: never negative.
        if i < self.sequences { self.raw_length(i) as usize } else { 0 }
    }

    fn read(&self, i: usize, offset: usize, len: usize, out: &mut Vec<i32>) -> Result<()> {
        let bytes = self.bytes(i, offset, len)?;
        out.reserve(len);
        let (first, mut too_large) = (out.len(), None);
        let decoded = self.token_type.decode(bytes, |id| match i32::try_from(id) {
            Ok(id) => {
                out.push(id);
                true
            }
            Err(_) => {
                too_large = Some(id);
                false
            }
        });
        decoded.map_err(|(at, value)| self.token_range(i, offset + at, value, "a token id"))?;
        match too_large {
            Some(id) => Err(self.token_range(i, offset + out.len() - first, id.to_string(), "a 32-bit token id")),
            None => Ok(()),
        }
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// What the first 34 bytes say, once it is known to fit the file's size.
struct Header {
    token_type: TokenType,
    sequences: usize,
    boundaries: usize,
}

impl Header {
    fn parse(index: &MappedFile, multimodal: Multimodal) -> Result<Header> {
        let bytes = index.bytes();
        let error = |field, problem: String| Error::format(index.path(), field, problem);
        if bytes.len() < HEADER_BYTES {
            return Err(error(
                "header",
                format!("has {} bytes, but the header alone takes {HEADER_BYTES}", bytes.len()),
            ));
        }
        if &bytes[..9] != MAGIC {
            return Err(error("magic", format!("is {:02x?}, not that of an .idx file", &bytes[..9])));
        }
        let version = u64::from_le_bytes(array_at(bytes, 9));
        if version != VERSION {
            return Err(error("version", format!("is {version}, but only {VERSION} exists")));
        }
        let code = bytes[17];
        let token_type = TokenType::from_code(code)
            .ok_or_else(|| error("dtype", format!("code {code} is unknown; codes are 1 to 8")))?;
        let sequences = u64::from_le_bytes(array_at(bytes, 18));
        let boundaries = u64::from_le_bytes(array_at(bytes, 26));
        if boundaries == 0 {
            return Err(error("document count", "is 0, but document_indices always begins with a 0".to_owned()));
        }
        let (s, d) = (u128::from(sequences), u128::from(boundaries));
        let without_modes = HEADER_BYTES as u128 + 12 * s + 8 * d;
        let found = bytes.len() as u128;
        let fits = match multimodal {
            Multimodal::Yes => found == without_modes + s,
            Multimodal::No => found == without_modes || found == without_modes + s,
        };
        if !fits {
            let expected = if multimodal == Multimodal::Yes { without_modes + s } else { without_modes };
            return Err(error(
                "size",
                format!(
                    "has {found} bytes, but {sequences} sequences and {boundaries} document boundaries take {expected}"
                ),
            ));
        }
        // Both are below the file's size, which is a usize.
        Ok(Header { token_type, sequences: sequences as usize, boundaries: boundaries as usize })
    }
}

/// `N` bytes at `at`; zeros where the file has none, which the size check at open excludes.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}
