//! The tokenizer that does nothing: text is already ids.

use crate::tokenizer::{MEGATRON_CLASS, Tokenizer};
use crate::{Error, TokenizerSpec};
use serde_json::{Map, Value, json};

/// Whitespace-separated decimal integers. For `--vocab-size N`: ids `0..=N`, vocabulary `N + 1`, end of document `N`
/// (`_NullTokenizer` of Megatron's `training/tokenizer`, and `NullTokenizer` of megatron-core).
#[derive(Debug, Clone)]
pub struct NullTokenizer {
    vocab_size: u32,
    eod: u32,
    pad: Option<u32>,
}

impl NullTokenizer {
    /// Ids `0..=vocab_size`, the last of which ends documents.
    ///
    /// # Errors
    /// [`Error::Argument`] when the vocabulary exceeds what `.bin` files can store (ids of 31 bits).
    pub fn new(vocab_size: usize) -> Result<NullTokenizer, Error> {
        match u32::try_from(vocab_size) {
            Ok(n) if n < i32::MAX as u32 => Ok(NullTokenizer { vocab_size: n, eod: n, pad: None }),
            _ => Err(Error::Argument {
                flag: "--vocab-size",
                detail: format!("{vocab_size} is more than the 31 bits that a token may have"),
            }),
        }
    }

    /// From `--vocab-size`, `--null-tokenizer-eod-id` and `--null-tokenizer-pad-id` (-1: none).
    pub fn from_spec(spec: &TokenizerSpec) -> Result<NullTokenizer, Error> {
        let vocab = spec.vocab_size.ok_or(Error::MissingFlag { tokenizer: "NullTokenizer", flag: "--vocab-size" })?;
        let mut tokenizer = NullTokenizer::new(vocab)?;
        if let Some(eod) = spec.null_eod_id {
            tokenizer.eod = tokenizer.checked("--null-tokenizer-eod-id", eod)?;
        }
        if let Some(pad) = spec.null_pad_id.filter(|&pad| pad != -1) {
            tokenizer.pad = Some(tokenizer.checked("--null-tokenizer-pad-id", pad)?);
        }
        Ok(tokenizer)
    }

    fn checked(&self, flag: &'static str, id: i64) -> Result<u32, Error> {
        u32::try_from(id).ok().filter(|&id| id <= self.vocab_size).ok_or_else(|| Error::Argument {
            flag,
            detail: format!("{id} is not an id of NullTokenizer, which has 0..={} (--vocab-size)", self.vocab_size),
        })
    }
}

impl Tokenizer for NullTokenizer {
    fn name(&self) -> &str {
        "NullTokenizer"
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size as usize + 1
    }

    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        for word in text.split_whitespace() {
            match word.parse::<u32>() {
                Ok(id) if id <= self.vocab_size => out.push(id),
                _ => {
                    let shown: String = word.chars().take(24).collect();
                    return Err(Error::Encode {
                        tokenizer: "NullTokenizer".into(),
                        detail: format!("{shown:?} is not an integer in 0..={} (--vocab-size)", self.vocab_size),
                    });
                }
            }
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        Ok(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
    }

    fn eod(&self) -> Option<u32> {
        Some(self.eod)
    }

    fn pad(&self) -> Option<u32> {
        self.pad
    }

    fn bos(&self) -> Option<u32> {
        None
    }

    fn unique_identifiers(&self) -> Map<String, Value> {
        let mut ids = Map::new();
        ids.insert("class".into(), json!(MEGATRON_CLASS));
        ids.insert("tokenizer_path".into(), Value::Null);
        ids.insert("vocab_size".into(), json!(self.vocab_size.to_string()));
        if self.eod != self.vocab_size {
            ids.insert("eod_id".into(), json!(self.eod.to_string()));
        }
        ids.insert("pad_id".into(), json!(self.pad.map_or(-1, i64::from).to_string()));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_integers() {
        let t = NullTokenizer::new(100).unwrap();
        let mut ids = vec![];
        t.encode(" 1 2\t100\n0 ", &mut ids).unwrap();
        assert_eq!(ids, [1, 2, 100, 0]);
        assert_eq!(t.decode(&ids).unwrap(), "1 2 100 0");
        assert_eq!((t.vocab_size(), t.eod(), t.eos(), t.pad(), t.bos()), (101, Some(100), Some(100), None, None));
    }

    #[test]
    fn anything_else_is_an_error_that_names_the_word() {
        let t = NullTokenizer::new(100).unwrap();
        for bad in ["1 101", "1 -1", "1 x", "1 2.5", "1 99999999999"] {
            let e = t.encode(bad, &mut vec![]).unwrap_err().to_string();
            assert!(e.contains(bad.split(' ').next_back().unwrap()) && e.contains("0..=100"), "{e}");
        }
    }

    #[test]
    fn ids_from_flags_are_checked() {
        let spec =
            TokenizerSpec { vocab_size: Some(10), null_eod_id: Some(3), null_pad_id: Some(4), ..Default::default() };
        let t = NullTokenizer::from_spec(&spec).unwrap();
        assert_eq!((t.eod(), t.pad()), (Some(3), Some(4)));
        assert_eq!(
            serde_json::to_string(&t.unique_identifiers()).unwrap(),
            format!(
                r#"{{"class":"{MEGATRON_CLASS}","tokenizer_path":null,"vocab_size":"10","eod_id":"3","pad_id":"4"}}"#
            )
        );
        let spec = TokenizerSpec { vocab_size: Some(10), null_eod_id: Some(11), ..Default::default() };
        assert!(NullTokenizer::from_spec(&spec).unwrap_err().to_string().contains("11 is not an id"));
        assert!(NullTokenizer::from_spec(&TokenizerSpec::default()).unwrap_err().to_string().contains("--vocab-size"));
        assert!(NullTokenizer::new(usize::MAX).is_err());
    }
}
