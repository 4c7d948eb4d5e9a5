//! The pieces of a model, and what may be asked about them.

use super::normalizer::{SPACE, char_length};
use super::proto::{ModelFile, Piece, PieceType};
use crate::trie::Trie;
use std::collections::HashMap;

/// Pieces by id and by text.
#[derive(Debug)]
pub(super) struct Vocab {
    pub pieces: Vec<Piece>,
    /// Pieces that text can match: normal, user-defined and unused ones.
    pub matchable: Trie,
    /// All others: control symbols, unknown, bytes.
    reserved: HashMap<String, u32>,
    /// The user's symbols, which always match and never merge.
    pub symbols: Trie,
    pub unk: u32,
    /// Ids of the 256 bytes, when the model falls back to them.
    bytes: Option<Box<[u32; 256]>>,
}

impl Vocab {
    /// # Errors
    /// What is wrong with the pieces, as a clause.
    pub fn new(file: &mut ModelFile) -> Result<Vocab, String> {
        let pieces = std::mem::take(&mut file.pieces);
        if pieces.len() > i32::MAX as usize {
            return Err(format!("it has {} pieces", pieces.len()));
        }
        let of_kind = |wanted: &'static [PieceType]| {
            let chosen = pieces.iter().enumerate().filter(move |(_, p)| wanted.contains(&p.kind));
            chosen.map(|(id, p)| (p.text.as_bytes(), id as u32))
        };
        let matchable = Trie::new(of_kind(&[PieceType::Normal, PieceType::UserDefined, PieceType::Unused]));
        let symbols = Trie::new(of_kind(&[PieceType::UserDefined]));
        let mut reserved = HashMap::new();
        let (mut unk, mut bytes, mut byte_count) = (None, Box::new([u32::MAX; 256]), 0);
        for (id, piece) in pieces.iter().enumerate() {
            let id = id as u32;
            let twice = || format!("the piece {:?} occurs twice", piece.text);
            match piece.kind {
                PieceType::Normal | PieceType::UserDefined | PieceType::Unused => {
                    if matchable.get(piece.text.as_bytes()) != Some(id) {
                        return Err(twice());
                    }
                    continue;
                }
                PieceType::Unknown => {
                    if let Some(first) = unk.replace(id) {
                        return Err(format!("both {first} and {id} are the unknown piece"));
                    }
                }
                PieceType::Byte => {
                    let byte = byte_of(&piece.text).ok_or_else(|| format!("{:?} is not a byte", piece.text))?;
                    byte_count += u32::from(bytes[usize::from(byte)] == u32::MAX);
                    bytes[usize::from(byte)] = id;
                }
                PieceType::Control => {}
            }
            if reserved.insert(piece.text.clone(), id).is_some() {
                return Err(twice());
            }
        }
        if file.byte_fallback != (byte_count > 0) || file.byte_fallback && byte_count < 256 {
            return Err(format!("byte_fallback is {}, but it has {byte_count} of the 256 bytes", file.byte_fallback));
        }
        let bytes = file.byte_fallback.then_some(bytes);
        let unk = unk.ok_or("it has no unknown piece")?;
        Ok(Vocab { pieces, matchable, reserved, symbols, unk, bytes })
    }

    pub fn kind(&self, id: u32) -> PieceType {
        self.pieces[id as usize].kind
    }

    pub fn score(&self, id: u32) -> f32 {
        self.pieces[id as usize].score
    }

    /// The id of a piece; the unknown one for any other text.
    pub fn id(&self, piece: &[u8]) -> u32 {
        // Few pieces are reserved, and most texts are not one of them: the cheap test first.
        let reserved = (!self.reserved.is_empty()).then(|| std::str::from_utf8(piece).ok()).flatten();
        reserved.and_then(|p| self.reserved.get(p).copied()).or_else(|| self.matchable.get(piece)).unwrap_or(self.unk)
    }

    /// The id of a control symbol (`<s>`, `</s>`, `<pad>`), if it is one.
    pub fn control(&self, piece: &str) -> Option<u32> {
        self.reserved.get(piece).copied().filter(|&id| self.kind(id) == PieceType::Control)
    }

    /// Bytes up to the end of the user's symbol or the character that `text` begins with, and whether it is a symbol.
    pub fn symbol_or_char(&self, text: &[u8]) -> (usize, bool) {
        match self.symbols.longest(text) {
            Some(length) => (length, true),
            None => (char_length(text), false),
        }
    }

    /// Whether `text` may be cut wherever a space stands after (`before`) or before (not `before`) something else:
    /// no piece reaches over such a place.
    pub fn cuts_at_spaces(&self, before: bool) -> bool {
        self.pieces.iter().all(|piece| {
            let bytes = piece.text.as_bytes();
            piece.kind != PieceType::Unused && (1..bytes.len()).all(|at| !is_cut(bytes, at, before))
        })
    }
}

/// Whether `at` is a place between a character and a space (`before`), or between a space and a character.
pub(super) fn is_cut(text: &[u8], at: usize, before: bool) -> bool {
    let (space_left, space_right) = (text[..at].ends_with(SPACE), text[at..].starts_with(SPACE));
    let on_boundary = text.get(at).is_none_or(|b| b & 0xc0 != 0x80);
    on_boundary && if before { space_right && !space_left } else { space_left && !space_right }
}

/// The byte that a piece such as `<0x0A>` stands for.
pub(super) fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Collects ids as the processor does: unknown text becomes its bytes, or one unknown id for a whole run.
pub(super) struct Ids<'a> {
    vocab: &'a Vocab,
    out: &'a mut Vec<u32>,
    after_unknown: bool,
}

impl<'a> Ids<'a> {
    pub fn new(vocab: &'a Vocab, out: &'a mut Vec<u32>) -> Ids<'a> {
        Ids { vocab, out, after_unknown: false }
    }

    pub fn push(&mut self, piece: &[u8], id: u32) {
        let unknown = id == self.vocab.unk;
        match &self.vocab.bytes {
            Some(bytes) if unknown => self.out.extend(piece.iter().map(|&b| bytes[usize::from(b)])),
            _ if unknown && self.after_unknown => {}
            _ => self.out.push(id),
        }
        self.after_unknown = unknown;
    }
}
