//! BPE: the adjacent pair whose union has the best score is joined, until no union is a piece.
//!
//! Source: `bpe_model.cc` (`SampleEncode` without dropout).

use super::proto::PieceType;
use super::vocab::{Ids, Vocab, is_cut};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// Where texts may be cut without changing an id.
#[derive(Debug, Clone)]
pub(super) struct Bpe {
    /// Between a character and a space (`true`), or between a space and a character.
    cut: Option<bool>,
    has_unused: bool,
}

/// A run of bytes that is one piece so far.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// 0 when it was joined to the one before.
    length: usize,
    prev: usize,
    next: usize,
    /// A user's symbol: never joined.
    frozen: bool,
}

const END: usize = usize::MAX;

/// A possible join. The best score comes first, then the leftmost.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Bpe {
    pub fn new(vocab: &Vocab) -> Bpe {
        let cut = [true, false].into_iter().find(|&before| vocab.cuts_at_spaces(before));
        Bpe { cut, has_unused: vocab.pieces.iter().any(|p| p.kind == PieceType::Unused) }
    }

    pub fn encode(&self, vocab: &Vocab, mut text: &[u8], ids: &mut Ids<'_>) {
        let mut work = Work::default();
        while !text.is_empty() {
            let end = match self.cut {
                Some(before) => (1..text.len()).find(|&at| is_cut(text, at, before)).unwrap_or(text.len()),
                None => text.len(),
            };
            let (word, rest) = text.split_at(end);
            work.join(vocab, word, self.has_unused);
            work.emit(vocab, word, ids);
            text = rest;
        }
    }
}

/// Memory that words share.
#[derive(Default)]
struct Work {
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Pair>,
    /// Length of the left half of pieces that are not used: they fall apart again in the end.
    halves: HashMap<Vec<u8>, usize>,
}

impl Work {
    fn join(&mut self, vocab: &Vocab, word: &[u8], has_unused: bool) {
        self.symbols.clear();
        self.agenda.clear();
        let mut start = 0;
        while start < word.len() {
            let (length, frozen) = vocab.symbol_or_char(&word[start..]);
            let here = self.symbols.len();
            let next = if start + length < word.len() { here + 1 } else { END };
            self.symbols.push(Symbol { start, length, prev: here.checked_sub(1).unwrap_or(END), next, frozen });
            start += length;
        }
        for right in 1..self.symbols.len() {
            self.offer(vocab, word, right - 1, right, has_unused);
        }
        while let Some(Pair { left, right, length, .. }) = self.agenda.pop() {
            let (l, r) = (self.symbols[left], self.symbols[right]);
            if l.length == 0 || r.length == 0 || l.length + r.length != length {
                continue;
            }
            self.symbols[left].length = length;
            self.symbols[left].next = r.next;
            if r.next != END {
                self.symbols[r.next].prev = left;
            }
            self.symbols[right].length = 0;
            self.offer(vocab, word, l.prev, left, has_unused);
            self.offer(vocab, word, left, r.next, has_unused);
        }
    }

    fn offer(&mut self, vocab: &Vocab, word: &[u8], left: usize, right: usize, has_unused: bool) {
        if left == END || right == END {
            return;
        }
        let (l, r) = (self.symbols[left], self.symbols[right]);
        if l.frozen || r.frozen {
            return;
        }
        let length = l.length + r.length;
        let piece = &word[l.start..l.start + length];
        let Some(id) = vocab.matchable.get(piece) else { return };
        self.agenda.push(Pair { score: vocab.score(id), left, right, length });
        if has_unused && vocab.kind(id) == PieceType::Unused {
            self.halves.insert(piece.to_vec(), l.length);
        }
    }

    fn emit(&self, vocab: &Vocab, word: &[u8], ids: &mut Ids<'_>) {
        let mut apart = Vec::new();
        let mut at = 0;
        while let Some(&Symbol { start, length, next, .. }) = self.symbols.get(at) {
            apart.push(&word[start..start + length]);
            while let Some(piece) = apart.pop() {
                let id = vocab.id(piece);
                match self.halves.get(piece) {
                    Some(&half) if vocab.kind(id) == PieceType::Unused => {
                        apart.extend([&piece[half..], &piece[..half]]);
                    }
                    _ => ids.push(piece, id),
                }
            }
            at = next;
        }
    }
}
