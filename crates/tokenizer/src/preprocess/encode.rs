//! A worker's task: the lines of a batch to token ids.

use super::Job;
use super::batch::{BadLine, Batch, Encoded, KeyTokens};
use super::record::{self, Text};
use super::sentences;
use crate::{Error, LineError, Problem, TokenDType};
use std::borrow::Cow;

/// Parses and tokenizes every line. Bad lines leave no trace among the documents.
///
/// # Errors
/// When a bad line's number cannot be found out, because the file cannot be read any more.
pub(super) fn encode(job: &Job<'_>, batch: &Batch) -> Result<Encoded, Error> {
    let keys = &job.args.json_keys;
    let mut out = Encoded {
        keys: keys.iter().map(|_| KeyTokens::default()).collect(),
        bytes: batch.bytes.len() as u64,
        next: batch.next,
        ..Default::default()
    };
    let mut texts = Vec::with_capacity(keys.len());
    for (number, line) in batch.lines() {
        if line.iter().all(u8::is_ascii_whitespace) {
            out.blank_lines += 1;
            continue;
        }
        match encode_line(job, line, &mut texts, &mut out.keys) {
            Ok(()) => out.documents += 1,
            Err((column, problem)) => {
                let file = &job.files[batch.file];
                let line_number = file.line_number(number)?;
                let error = LineError { file: file.path.clone(), line: line_number, column, problem };
                out.bad.push(BadLine { error, raw: line.to_vec() });
                for key in &mut out.keys {
                    key.undo_to(out.documents);
                }
            }
        }
    }
    Ok(out)
}

fn encode_line<'a>(
    job: &Job<'_>,
    line: &'a [u8],
    texts: &mut Vec<Option<Text<'a>>>,
    out: &mut [KeyTokens],
) -> Result<(), (usize, Problem)> {
    let keys = &job.args.json_keys;
    record::parse(line, keys, texts)?;
    for ((key, text), out) in keys.iter().zip(texts.iter()).zip(out) {
        let split: Vec<Cow<'_, str>>;
        let sentences = match text {
            Some(Text::One(text)) if job.options.split_sentences => {
                split = sentences::split(text, job.options.keep_newlines);
                &split
            }
            Some(Text::One(text)) => std::slice::from_ref(text),
            Some(Text::Many(texts)) => texts,
            // `record::parse` refuses these.
            Some(Text::Other(_)) | None => &[],
        };
        out.push(job, sentences.iter().map(AsRef::as_ref)).map_err(|fault| {
            let column = std::str::from_utf8(line).map_or(1, |line| record::column_of(line, key));
            (column, fault.of_key(key, job))
        })?;
    }
    Ok(())
}

/// Why a document has no ids.
enum Fault {
    Refused(String),
    OutOfRange(u32),
}

impl Fault {
    fn of_key(self, key: &str, job: &Job<'_>) -> Problem {
        let key = key.into();
        match self {
            Fault::Refused(detail) => Problem::Encode { key, detail },
            Fault::OutOfRange(id) => {
                let vocab_size = job.tokenizer.vocab_size();
                Problem::IdOutOfRange { key, id, vocab_size, dtype: TokenDType::for_vocab(vocab_size) }
            }
        }
    }
}

impl KeyTokens {
    /// Appends a document. Sentences without tokens are no sequences, and a document without any gets neither
    /// beginning nor end, as in Megatron.
    fn push<'t>(&mut self, job: &Job<'_>, sentences: impl Iterator<Item = &'t str>) -> Result<(), Fault> {
        let (first_token, first_sequence) = (self.tokens.len(), self.lengths.len());
        self.tokens.extend(job.bos);
        let mut start = first_token;
        for sentence in sentences {
            let before = self.tokens.len();
            job.tokenizer.encode(sentence, &mut self.tokens).map_err(|e| Fault::Refused(e.to_string()))?;
            if self.tokens.len() > before {
                self.lengths.push(self.tokens.len() - start);
                start = self.tokens.len();
            }
        }
        match self.lengths[first_sequence..].last_mut() {
            None => self.tokens.truncate(first_token),
            Some(last) => {
                self.tokens.extend(job.eod);
                *last += usize::from(job.eod.is_some());
            }
        }
        self.sequences.push(self.lengths.len() - first_sequence);
        let largest = self.tokens[first_token..].iter().copied().max().unwrap_or(0);
        if largest as usize >= job.tokenizer.vocab_size() {
            return Err(Fault::OutOfRange(largest));
        }
        Ok(())
    }

    /// Forgets all after the first `documents`.
    fn undo_to(&mut self, documents: usize) {
        self.sequences.truncate(documents);
        self.lengths.truncate(self.sequences.iter().sum());
        self.tokens.truncate(self.lengths.iter().sum());
    }
}
