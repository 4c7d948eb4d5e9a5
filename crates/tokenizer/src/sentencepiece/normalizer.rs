//! Text to the form that pieces are looked up in: rules applied, extra whitespace gone, spaces written as U+2581.
//!
//! Source: `normalizer.cc` of SentencePiece.

use super::charsmap::Charsmap;
use super::proto::NormalizerSpec;
use crate::trie::Trie;

/// How a space is written inside pieces: U+2581.
pub(super) const SPACE: &[u8] = "\u{2581}".as_bytes();

/// Applies a `NormalizerSpec`.
#[derive(Debug, Clone)]
pub(super) struct Normalizer {
    rules: Option<Charsmap>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    space: &'static [u8],
    whitespace_as_suffix: bool,
}

impl Normalizer {
    pub fn new(spec: &NormalizerSpec, whitespace_as_suffix: bool) -> Result<Normalizer, String> {
        Ok(Normalizer {
            rules: Charsmap::parse(&spec.charsmap)?,
            add_dummy_prefix: spec.add_dummy_prefix,
            remove_extra_whitespaces: spec.remove_extra_whitespaces,
            space: if spec.escape_whitespaces { SPACE } else { b" " },
            whitespace_as_suffix,
        })
    }

    /// The normalized text. `symbols` are the user's symbols, which no rule touches.
    pub fn normalize(&self, text: &str, symbols: &Trie) -> Vec<u8> {
        let mut input = text.as_bytes();
        if self.remove_extra_whitespaces {
            while let (b" ", taken) = self.prefix(input, symbols) {
                input = &input[taken..];
            }
        }
        if input.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(input.len() + input.len() / 2 + SPACE.len());
        if self.add_dummy_prefix && !self.whitespace_as_suffix {
            out.extend_from_slice(self.space);
        }
        let mut after_space = self.remove_extra_whitespaces;
        while !input.is_empty() {
            let (mut part, taken) = self.prefix(input, symbols);
            while after_space && let Some(rest) = part.strip_prefix(b" ") {
                part = rest;
            }
            for &byte in part {
                match byte {
                    b' ' => out.extend_from_slice(self.space),
                    byte => out.push(byte),
                }
            }
            if let Some(&last) = part.last() {
                after_space = last == b' ';
            }
            after_space &= self.remove_extra_whitespaces;
            input = &input[taken..];
        }
        if self.remove_extra_whitespaces {
            while out.ends_with(self.space) {
                out.truncate(out.len() - self.space.len());
            }
        }
        if self.add_dummy_prefix && self.whitespace_as_suffix {
            out.extend_from_slice(self.space);
        }
        out
    }

    /// What the beginning of `input` becomes, and how many bytes of it that stands for; never 0 unless it is empty.
    fn prefix<'a>(&'a self, input: &'a [u8], symbols: &Trie) -> (&'a [u8], usize) {
        if let Some(length) = symbols.longest(input) {
            return (&input[..length], length);
        }
        if let Some((length, text)) = self.rules.as_ref().and_then(|rules| rules.longest(input)) {
            // A rule may end inside a character only in a damaged file; the byte after it is then one of its own.
            return (text, length);
        }
        let length = char_length(input);
        (&input[..length], length)
    }
}

/// Bytes of the first character, by its first byte alone as in SentencePiece; at most what is there.
pub(super) fn char_length(text: &[u8]) -> usize {
    let length = match text.first() {
        None => 0,
        Some(0x00..=0xbf) => 1,
        Some(0xc0..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..) => 4,
    };
    length.min(text.len())
}
