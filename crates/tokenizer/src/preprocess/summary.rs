//! What a run has done.

use std::fmt;
use std::path::PathBuf;

/// Counts of a finished run. Printed, it is the last thing `preprocess_data` says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Lines that became documents.
    pub documents: u64,
    /// Lines of white space, which are passed over.
    pub blank_lines: u64,
    /// Bad lines left out under `--skip-bad`.
    pub dropped: u64,
    /// Where the bad lines are, if there were any.
    pub bad_lines: Option<PathBuf>,
    /// Input bytes read.
    pub bytes: u64,
    /// Wall time, loading the tokenizer included.
    pub seconds: f64,
    /// One for each of `--json-keys`.
    pub keys: Vec<KeySummary>,
}

/// Counts of one dataset.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeySummary {
    /// The JSON key.
    pub key: String,
    /// Prefix of the dataset's `.bin` and `.idx`, as `--data-path` takes it.
    pub prefix: PathBuf,
    /// Sequences: what Megatron's GPT dataset calls documents.
    pub sequences: u64,
    /// Tokens, beginning and end of documents included.
    pub tokens: u64,
    /// Tokens of the longest document.
    pub longest: u64,
    /// Documents without tokens; they have no sequence.
    pub empty: u64,
}

impl KeySummary {
    pub(super) fn count(&mut self, tokens: usize, sequences: usize) {
        self.sequences += sequences as u64;
        self.tokens += tokens as u64;
        self.longest = self.longest.max(tokens as u64);
        self.empty += u64::from(tokens == 0);
    }
}

impl Summary {
    /// Input megabytes (2^20 bytes, as in Megatron's progress line) a second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1024.0 / 1024.0 / self.seconds.max(1e-9)
    }

    /// Tokens of all keys a second.
    pub fn tokens_per_second(&self) -> f64 {
        self.keys.iter().map(|k| k.tokens).sum::<u64>() as f64 / self.seconds.max(1e-9)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Done: {} documents in {:.1} s ({:.2} MB/s, {:.3} M tokens/s); {} bad lines dropped, {} blank lines",
            self.documents,
            self.seconds,
            self.megabytes_per_second(),
            self.tokens_per_second() / 1e6,
            self.dropped,
            self.blank_lines
        )?;
        for key in &self.keys {
            writeln!(
                f,
                "  {}.bin, .idx: {} sequences, {} tokens, longest document {}, {} empty",
                key.prefix.display(),
                key.sequences,
                key.tokens,
                key.longest,
                key.empty
            )?;
        }
        if let Some(path) = &self.bad_lines {
            writeln!(f, "  bad lines: {}", path.display())?;
        }
        if self.documents == 0 {
            writeln!(f, "warning: the input has no documents, so the datasets are empty")?;
        }
        Ok(())
    }
}
