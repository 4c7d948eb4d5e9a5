//! Unigram: the most probable way to cut a text into pieces.
//!
//! Source: `unigram_model.cc` (`EncodeOptimized`). Scores are added in single precision from the beginning of the text,
//! as there, so that near ties fall the same way. Ids are given out wherever all ways meet, so memory does not
//! grow with the text.

use super::normalizer::char_length;
use super::proto::PieceType;
use super::vocab::{Ids, Vocab};

/// How much worse than the worst piece an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Numbers that scores are made of.
#[derive(Debug, Clone)]
pub(super) struct Unigram {
    unknown_score: f32,
    max_score: f32,
}

/// The best way to a place: the piece that ends there and where it begins.
#[derive(Clone, Copy)]
struct End {
    id: u32,
    score: f32,
    start: usize,
}

/// Stands for "no way leads here".
const NOWHERE: usize = usize::MAX;

impl Unigram {
    pub fn new(vocab: &Vocab) -> Unigram {
        let normal = vocab.pieces.iter().filter(|p| p.kind == PieceType::Normal);
        // The library starts its maximum at the smallest positive number.
        let (min, max) =
            normal.fold((f32::MAX, f32::MIN_POSITIVE), |(min, max), p| (min.min(p.score), max.max(p.score)));
        Unigram { unknown_score: min - UNKNOWN_PENALTY, max_score: max }
    }

    pub fn encode(&self, vocab: &Vocab, text: &[u8], ids: &mut Ids<'_>) {
        // `ends[i]` is about byte `base + i`; nothing before `base` can change any more.
        let (mut base, mut at) = (0, 0);
        let mut ends = vec![End { id: 0, score: 0.0, start: 0 }];
        let mut path = Vec::new();
        while at < text.len() {
            if at > base && ends.len() == at - base + 1 {
                emit(text, base, &ends, &mut path, ids);
                ends[0] = ends[at - base];
                ends.truncate(1);
                base = at;
            }
            let before = ends[at - base].score;
            let width = char_length(&text[at..]);
            let mut offer = |length: usize, id: u32, candidate: f32| {
                let end = at + length - base;
                if ends.len() <= end {
                    ends.resize(end + 1, End { id: 0, score: 0.0, start: NOWHERE });
                }
                if ends[end].start == NOWHERE || candidate > ends[end].score {
                    ends[end] = End { id, score: candidate, start: at };
                }
            };
            let mut has_single = false;
            for (length, id) in vocab.matchable.prefixes(&text[at..]) {
                let score = match vocab.kind(id) {
                    PieceType::Unused => continue,
                    PieceType::UserDefined => length as f32 * self.max_score - 0.1,
                    _ => vocab.score(id),
                };
                offer(length, id, score + before);
                has_single |= length == width;
            }
            if !has_single {
                offer(width, vocab.unk, self.unknown_score + before);
            }
            at += width;
        }
        emit(text, base, &ends, &mut path, ids);
    }
}

/// Gives out the best way from `base` to the end of `ends`.
fn emit(text: &[u8], base: usize, ends: &[End], path: &mut Vec<(usize, usize, u32)>, ids: &mut Ids<'_>) {
    let mut end = base + ends.len() - 1;
    while end > base {
        let End { id, start, .. } = ends[end - base];
        path.push((start, end, id));
        end = start;
    }
    while let Some((start, end, id)) = path.pop() {
        ids.push(&text[start..end], id);
    }
}
