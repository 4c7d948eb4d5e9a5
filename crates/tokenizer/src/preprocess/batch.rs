//! What travels between reader, workers and writer.

use super::journal::Place;
use crate::{Error, LineError};

/// Consecutive lines of one file.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Place in the list of inputs.
    pub file: usize,
    /// Number of the first line, from 1 where this run's part of the file begins.
    pub first_line: u64,
    /// The lines with their ends.
    pub bytes: Vec<u8>,
    /// Where each line ends in `bytes`.
    pub ends: Vec<usize>,
    /// Where the input goes on after the last line.
    pub next: Place,
}

impl Batch {
    /// The lines with their numbers, without `\n` or `\r\n`.
    pub fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).zip(self.first_line..).map(|((start, &end), number)| {
            let line = &self.bytes[start..end];
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            (number, line.strip_suffix(b"\r").unwrap_or(line))
        })
    }
}

/// A batch for the workers, or the reader's failure in its place.
#[derive(Debug)]
pub(super) struct Work {
    /// Place in the order of the input, from 0.
    pub index: u64,
    pub batch: Result<Batch, Error>,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) struct Done {
    pub index: u64,
    /// Bytes to give back to the gate.
    pub cost: usize,
    pub encoded: Result<Encoded, Error>,
}

/// The documents of a batch as ids.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    /// One for each key.
    pub keys: Vec<KeyTokens>,
    pub documents: usize,
    pub blank_lines: u64,
    /// Input bytes, line ends included.
    pub bytes: u64,
    pub bad: Vec<BadLine>,
    /// Where the input goes on after this batch.
    pub next: Place,
}

/// Documents of one key, back to back.
#[derive(Debug, Default)]
pub(super) struct KeyTokens {
    pub tokens: Vec<u32>,
    /// Tokens of each sequence.
    pub lengths: Vec<usize>,
    /// Sequences of each document.
    pub sequences: Vec<usize>,
}

impl KeyTokens {
    /// Each document: its tokens, and the lengths of its sequences.
    pub fn documents(&self) -> impl Iterator<Item = (&[u32], &[usize])> {
        let (mut token, mut sequence) = (0, 0);
        self.sequences.iter().map(move |&count| {
            let lengths = &self.lengths[sequence..sequence + count];
            let tokens = &self.tokens[token..token + lengths.iter().sum::<usize>()];
            (token, sequence) = (token + tokens.len(), sequence + count);
            (tokens, lengths)
        })
    }
}

/// A line that cannot be a document.
#[derive(Debug)]
pub(super) struct BadLine {
    pub error: LineError,
    /// The line as it was read, without its end.
    pub raw: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_ends() {
        let bytes = b"a\r\n\nb\rc\nd".to_vec();
        let batch = Batch { file: 0, first_line: 7, bytes, ends: vec![3, 4, 8, 9], ..Default::default() };
        let lines: Vec<(u64, &[u8])> = batch.lines().collect();
        assert_eq!(lines, [(7, &b"a"[..]), (8, b""), (9, b"b\rc"), (10, b"d")]);
    }

    #[test]
    fn documents_are_cut_by_their_sequences() {
        let keys = KeyTokens { tokens: vec![1, 2, 3, 4], lengths: vec![1, 2, 1], sequences: vec![2, 0, 1] };
        let documents: Vec<(&[u32], &[usize])> = keys.documents().collect();
        assert_eq!(documents, [(&[1, 2, 3][..], &[1, 2][..]), (&[], &[]), (&[4], &[1])]);
    }
}
