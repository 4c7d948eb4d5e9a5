//! What a run has done.

use super::journal::{KeyState, Place, State};
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
    /// Documents that an interrupted run had already done; they are counted above, their time is not.
    pub resumed: u64,
    /// Input bytes of those.
    pub resumed_bytes: u64,
    /// Tokens of those.
    pub resumed_tokens: u64,
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
    /// Takes over the counts of an interrupted run.
    pub(super) fn go_on_from(&mut self, before: &KeyState) {
        self.sequences = before.sequences;
        self.tokens = before.tokens;
        self.longest = before.longest;
        self.empty = before.empty;
    }

    pub(super) fn count(&mut self, tokens: usize, sequences: usize) {
        self.sequences += sequences as u64;
        self.tokens += tokens as u64;
        self.longest = self.longest.max(tokens as u64);
        self.empty += u64::from(tokens == 0);
    }
}

impl Summary {
    /// Where an interrupted run goes on.
    pub(super) fn of(state: &State) -> Summary {
        Summary {
            documents: state.documents,
            blank_lines: state.blank_lines,
            dropped: state.dropped,
            bytes: state.bytes,
            resumed: state.documents,
            resumed_bytes: state.bytes,
            ..Default::default()
        }
    }

    /// What the journal notes; the files add their part.
    pub(super) fn state(&self, next: Place) -> State {
        let Summary { documents, blank_lines, dropped, bytes, .. } = *self;
        State { next, documents, blank_lines, dropped, bytes, ..Default::default() }
    }

    /// Input megabytes (2^20 bytes, as in Megatron's progress line) a second.
    pub fn megabytes_per_second(&self) -> f64 {
        (self.bytes - self.resumed_bytes) as f64 / 1024.0 / 1024.0 / self.seconds.max(1e-9)
    }

    /// Tokens of all keys a second.
    pub fn tokens_per_second(&self) -> f64 {
        let tokens: u64 = self.keys.iter().map(|k| k.tokens).sum();
        tokens.saturating_sub(self.resumed_tokens) as f64 / self.seconds.max(1e-9)
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
        if self.resumed > 0 {
            writeln!(f, "  {} documents were done by the run that was interrupted", self.resumed)?;
        }
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
