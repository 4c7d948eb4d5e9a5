//! What every tokenizer does, and the vocabulary padding of the embedding.

use crate::Error;
use serde_json::{Map, Value};
use std::fmt::Debug;

/// The class name that Megatron (main) writes into the cache description of a dataset for any text tokenizer built
/// from the command line. The index cache is shared with Megatron only if this string is the same.
pub(crate) const MEGATRON_CLASS: &str = "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText";

/// Text to token ids and back. Implementations are immutable: one value serves all threads.
pub trait Tokenizer: Send + Sync + Debug {
    /// Name as `--tokenizer-type` spells it.
    fn name(&self) -> &str;

    /// Number of rows the embedding needs before padding: special and added tokens included, every id is below it.
    fn vocab_size(&self) -> usize;

    /// Appends the ids of `text` to `out`. `out` keeps what it had; after an error its tail is unspecified.
    ///
    /// # Errors
    /// [`Error::Encode`] when the text is outside what the tokenizer can express.
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error>;

    /// Text of `ids`. Ids that stand for no token are left out, bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Decode`] when the tokenizer's own decoder fails.
    fn decode(&self, ids: &[u32]) -> Result<String, Error>;

    /// Id that ends a document (`--append-eod`, `--reset-position-ids`, `--eod-mask-loss`), if there is one.
    fn eod(&self) -> Option<u32>;

    /// Padding id, if the tokenizer defines one.
    fn pad(&self) -> Option<u32>;

    /// Id that begins a sequence, if there is one.
    fn bos(&self) -> Option<u32>;

    /// Id that ends a sequence, if there is one.
    fn eos(&self) -> Option<u32> {
        self.eod()
    }

    /// True when [`Tokenizer::encode`] itself puts the beginning-of-sequence id in front of every text.
    fn adds_bos(&self) -> bool {
        false
    }

    /// What identifies the tokenizer in a dataset's cache description, in Megatron's order and spelling
    /// (`megatron/core/tokenizers/text/text_tokenizer.py`: the class, the path, then each argument as Python prints it).
    fn unique_identifiers(&self) -> Map<String, Value>;
}

/// Rows of the embedding: the smallest multiple of `divisible_by * tensor_parallel` that holds `vocab` ids
/// (`--make-vocab-size-divisible-by`; Megatron's `vocab_size_with_padding`).
///
/// # Errors
/// [`Error::Argument`] when a factor is zero or the result does not fit.
///
/// ```
/// assert_eq!(ferrotron_tokenizer::padded_vocab_size(50257, 128, 2).unwrap(), 50432);
/// ```
pub fn padded_vocab_size(vocab: usize, divisible_by: usize, tensor_parallel: usize) -> Result<usize, Error> {
    let overflow = || Error::Argument {
        flag: "--make-vocab-size-divisible-by",
        detail: format!(
            "a vocabulary of {vocab} cannot be padded to a multiple of {divisible_by} x {tensor_parallel} \
             (--tensor-model-parallel-size): both factors must be positive and the product must fit"
        ),
    };
    let unit = divisible_by.checked_mul(tensor_parallel).filter(|&u| u > 0).ok_or_else(overflow)?;
    vocab.checked_next_multiple_of(unit).ok_or_else(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_megatrons() {
        for (vocab, by, tp, want) in [
            (50257, 128, 1, 50304),
            (50257, 128, 8, 51200),
            (32000, 128, 1, 32000),
            (151_669, 128, 4, 152_064),
            (1, 1, 1, 1),
            (0, 128, 2, 0),
        ] {
            assert_eq!(padded_vocab_size(vocab, by, tp).unwrap(), want, "{vocab} {by} {tp}");
        }
    }

    #[test]
    fn impossible_padding_is_an_error() {
        for (vocab, by, tp) in [(10, 0, 1), (10, 1, 0), (10, usize::MAX, 2), (usize::MAX, 2, 1)] {
            assert!(padded_vocab_size(vocab, by, tp).unwrap_err().to_string().contains("divisible"));
        }
    }
}
