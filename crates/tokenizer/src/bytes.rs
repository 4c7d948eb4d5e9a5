//! One token a byte: no files needed, any text can be expressed.

use crate::tokenizer::{MEGATRON_CLASS, Tokenizer};
use crate::{Error, TokenizerSpec};
use serde_json::{Map, Value, json};

/// UTF-8 bytes as ids.
///
/// | id | token |
/// |---|---|
/// | 0..=255 | the byte |
/// | 256 | end of document (also end of sequence) |
/// | 257 | padding |
/// | 258 | beginning of sequence |
///
/// The vocabulary is 259. Megatron's class of this name, which its command line cannot select, uses bytes 0 and 1 as
/// end and padding and a vocabulary of 512; here no byte of a text can be mistaken for a special token.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByteLevelTokenizer;

impl ByteLevelTokenizer {
    /// Id that ends a document.
    pub const EOD: u32 = 256;
    /// Padding id.
    pub const PAD: u32 = 257;
    /// Id that begins a sequence.
    pub const BOS: u32 = 258;

    /// The tokenizer; flags that cannot apply to it are refused.
    pub fn from_spec(spec: &TokenizerSpec) -> Result<ByteLevelTokenizer, Error> {
        if let Some(token) = &spec.eod_token {
            return Err(Error::Argument {
                flag: "--eod-token",
                detail: format!("{token:?} given, but ByteLevelTokenizer always ends documents with id {}", Self::EOD),
            });
        }
        if !spec.special_tokens.is_empty() {
            return Err(Error::Argument {
                flag: "--tokenizer-special-tokens",
                detail: "ByteLevelTokenizer has fixed special tokens (256 end of document, 257 padding, 258 beginning)"
                    .into(),
            });
        }
        Ok(ByteLevelTokenizer)
    }
}

impl Tokenizer for ByteLevelTokenizer {
    fn name(&self) -> &str {
        "ByteLevelTokenizer"
    }

    fn vocab_size(&self) -> usize {
        259
    }

    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        out.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn eod(&self) -> Option<u32> {
        Some(Self::EOD)
    }

    fn pad(&self) -> Option<u32> {
        Some(Self::PAD)
    }

    fn bos(&self) -> Option<u32> {
        Some(Self::BOS)
    }

    fn unique_identifiers(&self) -> Map<String, Value> {
        let mut ids = Map::new();
        ids.insert("class".into(), json!(MEGATRON_CLASS));
        ids.insert("tokenizer_path".into(), Value::Null);
        ids.insert("tokenizer_type".into(), json!("ByteLevelTokenizer"));
        ids.insert("vocab_size".into(), json!("259"));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_bytes() {
        let mut ids = vec![7];
        ByteLevelTokenizer.encode("aé\u{0}", &mut ids).unwrap();
        assert_eq!(ids, [7, 97, 0xc3, 0xa9, 0]);
    }

    #[test]
    fn special_and_broken_ids_decode_to_text() {
        let t = ByteLevelTokenizer;
        assert_eq!(t.decode(&[258, 104, 105, 256, 257, 9999]).unwrap(), "hi");
        assert_eq!(t.decode(&[0xff, 97]).unwrap(), "\u{fffd}a");
    }

    proptest! {
        #[test]
        fn any_text_round_trips(text in "\\PC*|[\\x00-\\x7f]{0,20}") {
            let mut ids = Vec::new();
            ByteLevelTokenizer.encode(&text, &mut ids).unwrap();
            prop_assert_eq!(ids.len(), text.len());
            prop_assert_eq!(ByteLevelTokenizer.decode(&ids).unwrap(), text);
        }
    }
}
