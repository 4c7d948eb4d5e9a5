//! Ids to text: U+2581 to spaces, byte pieces to characters.
//!
//! Source: `SentencePieceProcessor::Decode`.

use super::normalizer::Normalizer;
use super::proto::{ModelFile, PieceType};
use super::vocab::{Vocab, byte_of};
use crate::trie::Trie;

const SPACE: char = '\u{2581}';

/// What a decoder needs besides the pieces.
#[derive(Debug)]
pub(super) struct Decoder {
    unk_surface: String,
    /// A space that stands for the beginning of the text goes.
    drops_space: bool,
    /// All of its spaces go.
    drops_all: bool,
    denormalizer: Option<Normalizer>,
}

impl Decoder {
    pub fn new(file: &ModelFile) -> Result<Decoder, String> {
        let spec = &file.normalizer;
        Ok(Decoder {
            unk_surface: file.unk_surface.clone(),
            drops_space: spec.add_dummy_prefix || spec.remove_extra_whitespaces,
            drops_all: spec.remove_extra_whitespaces,
            denormalizer: file.denormalizer.as_ref().map(|d| Normalizer::new(d, false)).transpose()?,
        })
    }

    /// Ids beyond the vocabulary are left out.
    pub fn decode(&self, vocab: &Vocab, ids: &[u32]) -> String {
        let mut text = String::new();
        let mut bytes = Vec::new();
        let mut dropped = false;
        for &id in ids {
            let Some(piece) = vocab.pieces.get(id as usize) else { continue };
            if piece.kind == PieceType::Byte {
                bytes.extend(byte_of(&piece.text));
                continue;
            }
            flush(&mut bytes, &mut text);
            let at_beginning = text.is_empty() && !dropped;
            match piece.kind {
                PieceType::Control => {}
                PieceType::Unknown => text.push_str(&self.unk_surface),
                _ => {
                    let mut surface = piece.text.as_str();
                    if at_beginning && self.drops_space {
                        let rest = surface.strip_prefix(SPACE);
                        dropped = rest.is_some() && !self.drops_all;
                        surface = rest.unwrap_or(surface);
                    }
                    text.extend(surface.chars().map(|c| if c == SPACE { ' ' } else { c }));
                }
            }
        }
        flush(&mut bytes, &mut text);
        match &self.denormalizer {
            Some(rules) => String::from_utf8_lossy(&rules.normalize(&text, &Trie::new([]))).into_owned(),
            None => text,
        }
    }
}

/// Appends a run of bytes; each that is not part of a character becomes U+FFFD of its own.
fn flush(bytes: &mut Vec<u8>, text: &mut String) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    bytes.clear();
}
