//! Writing: tokens stream to disk; only lengths and document boundaries (12 bytes a sequence) are kept in memory.

use std::path::{Path, PathBuf};

use super::{IndexedDataset, MAGIC, Multimodal, TokenType, Tokens, VERSION, data_path, index_path};
use crate::error::{Error, Result};
use crate::files::AtomicFile;

/// Writes `<prefix>.bin` and `<prefix>.idx`. Both appear only in [`IndexedWriter::finish`]; a writer that is dropped
/// leaves nothing behind.
pub struct IndexedWriter {
    prefix: PathBuf,
    token_type: TokenType,
    multimodal: Multimodal,
    data: AtomicFile,
    lengths: Vec<i32>,
    boundaries: Vec<i64>,
    modes: Vec<i8>,
    scratch: Vec<u8>,
}

impl IndexedWriter {
    /// Begins a text dataset.
    ///
    /// # Errors
    /// When the data file cannot be created.
    pub fn create(prefix: impl AsRef<Path>, token_type: TokenType) -> Result<IndexedWriter> {
        IndexedWriter::create_with(prefix.as_ref(), token_type, Multimodal::No)
    }

    /// Begins a dataset with a mode per sequence.
    ///
    /// # Errors
    /// When the data file cannot be created.
    pub fn create_multimodal(prefix: impl AsRef<Path>, token_type: TokenType) -> Result<IndexedWriter> {
        IndexedWriter::create_with(prefix.as_ref(), token_type, Multimodal::Yes)
    }

    fn create_with(prefix: &Path, token_type: TokenType, multimodal: Multimodal) -> Result<IndexedWriter> {
        Ok(IndexedWriter {
            data: AtomicFile::create(&data_path(prefix))?,
            prefix: prefix.to_owned(),
            token_type,
            multimodal,
            lengths: Vec::new(),
            boundaries: vec![0],
            modes: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Appends one sequence (mode 0 in a multimodal dataset).
    ///
    /// # Errors
    /// When an id does not fit the element type (Megatron wraps it silently), when the sequence has 2^31 tokens or
    /// more; nothing of the sequence is kept then. When writing fails, the dataset cannot be finished any more.
    pub fn add_sequence(&mut self, tokens: impl IntoIterator<Item = i64>) -> Result<()> {
        self.add_sequence_with_mode(tokens, 0)
    }

    /// Appends one sequence with its mode; the mode is dropped in a text dataset.
    ///
    /// # Errors
    /// As [`IndexedWriter::add_sequence`].
    pub fn add_sequence_with_mode(&mut self, tokens: impl IntoIterator<Item = i64>, mode: i8) -> Result<()> {
        self.scratch.clear();
        for (position, id) in tokens.into_iter().enumerate() {
            if !self.token_type.encode(id, &mut self.scratch) {
                return Err(Error::TokenRange {
                    file: self.prefix.display().to_string(),
                    sequence: self.lengths.len(),
                    position,
                    id: id.to_string(),
                    holder: self.token_type.name().to_owned(),
                });
            }
        }
        let tokens = self.scratch.len() / self.token_type.size();
        let length = i32::try_from(tokens).map_err(|_| {
            let sequence = self.lengths.len();
            let problem = format!("sequence {sequence} has {tokens} tokens, but at most {} fit the index", i32::MAX);
            Error::format(&index_path(&self.prefix), "sequence_lengths", problem)
        })?;
        self.data.write(&self.scratch)?;
        self.push(length, mode);
        Ok(())
    }

    /// Ends the current document: the sequences since the last call belong together. Documents may be empty.
    pub fn end_document(&mut self) {
        self.boundaries.push(self.lengths.len() as i64);
    }

    /// Appends all sequences and documents of another dataset (Megatron's `add_index`).
    ///
    /// # Errors
    /// When the element types differ, or only one of the two has modes.
    pub fn add_dataset(&mut self, other: &IndexedDataset) -> Result<()> {
        if other.token_type() != self.token_type {
            return Err(Error::format(
                &index_path(Path::new(other.name())),
                "dtype",
                format!(
                    "is {}, but {} holds {}",
                    other.token_type().name(),
                    self.prefix.display(),
                    self.token_type.name()
                ),
            ));
        }
        let first = self.lengths.len() as i64;
        for i in 0..other.sequences() {
            let mode = match (other.mode(i)?, self.multimodal) {
                (Some(mode), Multimodal::Yes) => mode,
                (None, Multimodal::No) => 0,
                _ => {
                    let problem = "only one of the merged datasets has them".to_owned();
                    return Err(Error::format(&index_path(Path::new(other.name())), "modes", problem));
                }
            };
            self.data.write(other.bytes(i, 0, other.length(i))?)?;
            // Lengths were read from an i32.
            self.push(other.length(i) as i32, mode);
        }
        for d in 0..other.documents() {
            self.boundaries.push(first + other.document(d)?.end as i64);
        }
        Ok(())
    }

    fn push(&mut self, length: i32, mode: i8) {
        self.lengths.push(length);
        if self.multimodal == Multimodal::Yes {
            self.modes.push(mode);
        }
    }

    /// Makes both files durable and visible, the data before the index that points into it.
    ///
    /// # Errors
    /// When sequences follow the last document's end, or writing fails.
    pub fn finish(self) -> Result<()> {
        let index = index_path(&self.prefix);
        let ended = self.boundaries.last().copied().unwrap_or(0);
        if ended != self.lengths.len() as i64 {
            return Err(Error::format(
                &index,
                "document_indices",
                format!("{} sequences follow the last end_document", self.lengths.len() as i64 - ended),
            ));
        }
        let mut out = AtomicFile::create(&index)?;
        out.write(MAGIC)?;
        out.write(&VERSION.to_le_bytes())?;
        out.write(&[self.token_type.code()])?;
        out.write(&(self.lengths.len() as u64).to_le_bytes())?;
        out.write(&(self.boundaries.len() as u64).to_le_bytes())?;
        for length in &self.lengths {
            out.write(&length.to_le_bytes())?;
        }
        let mut pointer: i64 = 0;
        for &length in &self.lengths {
            out.write(&pointer.to_le_bytes())?;
            pointer += i64::from(length) * self.token_type.size() as i64;
        }
        for boundary in &self.boundaries {
            out.write(&boundary.to_le_bytes())?;
        }
        for mode in &self.modes {
            out.write(&mode.to_le_bytes())?;
        }
        self.data.commit()?;
        out.commit()
    }
}

/// What [`merge`] made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Inputs.
    pub datasets: usize,
    /// Sequences in all.
    pub sequences: u64,
    /// Documents in all.
    pub documents: u64,
    /// Tokens in all.
    pub tokens: u64,
}

/// Concatenates datasets of one element type into `<prefix>.bin/.idx`, in the order given, without loading them.
///
/// # Errors
/// Before anything is written: there is no input, the output is one of the inputs, inputs are damaged or missing (all
/// of them are named), or they differ in element type (which ones have which).
pub fn merge(prefix: impl AsRef<Path>, inputs: &[PathBuf], multimodal: Multimodal) -> Result<Merged> {
    let prefix = prefix.as_ref();
    let refuse = |problem: String| Err(Error::Setting { setting: "merge", problem });
    if inputs.is_empty() {
        return refuse(format!("nothing to merge into {}", prefix.display()));
    }
    let real = |p: &Path| index_path(p).canonicalize().ok();
    if let Some(same) = inputs.iter().find(|i| i.as_path() == prefix || real(i).is_some() && real(i) == real(prefix)) {
        return refuse(format!("the output {} is one of the inputs ({})", prefix.display(), same.display()));
    }
    let mut merged = Merged { datasets: inputs.len(), ..Merged::default() };
    let mut problems = Vec::new();
    let mut types: Vec<(TokenType, &Path)> = Vec::new();
    for input in inputs {
        match IndexedDataset::open(input, multimodal) {
            Ok(dataset) => {
                types.push((dataset.token_type(), input));
                merged.sequences += dataset.sequences() as u64;
                merged.documents += dataset.documents() as u64;
                merged.tokens += dataset.tokens();
            }
            Err(e) => problems.push(e),
        }
    }
    match problems.len() {
        0 => {}
        1 => return Err(problems.remove(0)),
        n => {
            let told: Vec<String> = problems.iter().take(20).map(|e| format!("\n  {e}")).collect();
            return refuse(format!("{n} of {} inputs cannot be used:{}", inputs.len(), told.concat()));
        }
    }
    let token_type = types[0].0;
    if let Some(&(other, input)) = types.iter().find(|(t, _)| *t != token_type) {
        let count = types.iter().filter(|(t, _)| *t == token_type).count();
        return refuse(format!(
            "{} holds {}, but {} holds {} ({count} of {} inputs do): ids are stored in different sizes, because the \
             vocabularies differ or one was written by another program",
            input.display(),
            other.name(),
            inputs[0].display(),
            token_type.name(),
            inputs.len()
        ));
    }
    let mut writer = IndexedWriter::create_with(prefix, token_type, multimodal)?;
    for input in inputs {
        writer.add_dataset(&IndexedDataset::open(input, multimodal)?)?;
    }
    writer.finish()?;
    Ok(merged)
}
