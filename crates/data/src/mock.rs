//! `--mock-data`: documents made from numbers alone, for trying a configuration without a corpus.
//!
//! Like Megatron's `MockGPTLowLevelDataset`, documents of random length count upwards and end with the
//! end-of-document token, so that a model can learn them. Unlike there, each document starts at a random id and wraps
//! around inside the vocabulary (Megatron's counts from 1 to up to 4095 whatever the vocabulary is). The values are
//! ours, not Megatron's.

use ferrotron_base::mt19937::Mt19937;

use crate::build::MockConfig;
use crate::error::{Error, Result};
use crate::indexed::Tokens;

/// Documents that exist only as a rule. Takes 8 bytes of memory a document.
pub struct MockCorpus {
    /// Length and first id of each document.
    documents: Vec<(u32, u32)>,
    vocab_size: u32,
    eod: u32,
}

impl MockCorpus {
    /// `config.documents` documents of 1 to `config.max_length` tokens over ids below `vocab_size`.
    ///
    /// # Errors
    /// When there is no document, no length, or no id besides `eod`.
    pub fn new(config: &MockConfig, vocab_size: u32, eod: u32) -> Result<MockCorpus> {
        let error = |problem: String| Error::Setting { setting: "--mock-data", problem };
        if vocab_size < 2 || eod >= vocab_size {
            return Err(error(format!(
                "end-of-document id {eod} leaves nothing to count in a vocabulary of {vocab_size}"
            )));
        }
        if config.documents == 0 || config.max_length == 0 {
            return Err(error(format!("{} documents of up to {} tokens", config.documents, config.max_length)));
        }
        let mut random = Mt19937::new(config.seed);
        let document = |_| {
            // Both bounds are u32 values less one, so the draws fit.
            let length = 1 + random.interval(u64::from(config.max_length) - 1) as u32;
            (length, random.interval(u64::from(vocab_size) - 2) as u32)
        };
        Ok(MockCorpus { documents: (0..config.documents).map(document).collect(), vocab_size, eod })
    }
}

impl Tokens for MockCorpus {
    fn sequences(&self) -> usize {
        self.documents.len()
    }

    fn length(&self, i: usize) -> usize {
        self.documents.get(i).map_or(0, |d| d.0 as usize)
    }

    fn read(&self, i: usize, offset: usize, len: usize, out: &mut Vec<i32>) -> Result<()> {
        let length = self.length(i);
        let end = match offset.checked_add(len) {
            Some(end) if end <= length => end,
            _ => {
                let (file, index) = (self.name().to_owned(), offset.saturating_add(len));
                return Err(Error::OutOfRange { file, what: "token", index, len: length });
            }
        };
        let Some(&(_, first)) = self.documents.get(i) else { return Ok(()) };
        // Counting goes through all ids but the end of document.
        let countable = u64::from(self.vocab_size) - 1;
        out.extend((offset..end).map(|at| {
            let id = ((u64::from(first) + at as u64) % countable) as u32;
            (if at + 1 == length { self.eod } else { id + u32::from(id >= self.eod) }) as i32
        }));
        Ok(())
    }

    fn name(&self) -> &str {
        "mock data"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_count_inside_the_vocabulary_and_end() {
        let config = MockConfig { documents: 100, max_length: 30, seed: 1 };
        let corpus = MockCorpus::new(&config, 7, 3).unwrap();
        for i in 0..100 {
            let mut all = Vec::new();
            corpus.read(i, 0, corpus.length(i), &mut all).unwrap();
            assert_eq!(all.iter().position(|&id| id == 3), Some(all.len() - 1));
            assert!(all.iter().all(|id| (0..7).contains(id)));
            let next = [1, 2, 4, 0, 5, 6, 0];
            assert!(all[..all.len() - 1].windows(2).all(|w| w[1] == next[w[0] as usize]), "{all:?}");
            let mut part = Vec::new();
            corpus.read(i, all.len() / 2, all.len() - all.len() / 2, &mut part).unwrap();
            assert_eq!(part, all[all.len() / 2..]);
            assert!(corpus.read(i, all.len(), 1, &mut part).is_err());
        }
        assert!(MockCorpus::new(&config, 1, 0).is_err());
        assert!(MockCorpus::new(&config, 7, 7).is_err());
    }
}
