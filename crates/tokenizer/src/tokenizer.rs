//! What every tokenizer does.

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
