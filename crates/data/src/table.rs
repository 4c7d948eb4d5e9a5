//! The table printed before training: what each split takes from each dataset.

use std::fmt;

use crate::blend::{Blend, normalize};
use crate::build::{DataConfig, DataSource, Datasets, SplitDataset};
use crate::gpt::GptDataset;
use crate::sample::Dataset;
use crate::splits::SplitName;

/// What one split takes from one dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct DataRow {
    /// The split.
    pub split: SplitName,
    /// Prefix of the dataset, or what the data are.
    pub dataset: String,
    /// Share of the samples that was asked for, of 1; `None` when nothing was asked and the sizes decide.
    pub weight: Option<f64>,
    /// Documents of the split.
    pub documents: usize,
    /// Tokens of those.
    pub tokens: u64,
    /// Samples that one pass over them gives: `(tokens - extra) / S`.
    pub samples_per_epoch: f64,
    /// Samples that the run takes.
    pub samples: u64,
    /// How often the run goes through the documents for that.
    pub epochs: f64,
}

/// One row for each dataset of each split, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataTable {
    /// The rows.
    pub rows: Vec<DataRow>,
    /// S.
    pub sequence_length: usize,
}

/// The table of the datasets that [`crate::build_datasets`] made of `config`.
pub fn data_table(config: &DataConfig, datasets: &Datasets) -> DataTable {
    let mut table = DataTable { rows: Vec::new(), sequence_length: config.gpt.sequence_length };
    let sets = [&datasets.train, &datasets.valid, &datasets.test];
    for (i, split) in SplitName::ALL.into_iter().enumerate() {
        let Some(set) = sets[i] else { continue };
        let available = set.len() as u64;
        let taken = config.requested[i].map_or(available, |n| n.min(available));
        match &**set {
            SplitDataset::Gpt(one) => table.rows.push(row(split, one, Some(1.0), taken)),
            SplitDataset::Blend(blend) => {
                let mut samples = vec![0; blend.members().len()];
                for k in (0..taken).filter_map(|s| blend.source(usize::try_from(s).ok()?)).map(|(k, _)| k) {
                    samples[k] += 1;
                }
                let weights = weights(config, i);
                let members = blend.members().iter().zip(samples).enumerate();
                let weight = |k: usize| weights.as_ref().and_then(|w| w.get(k).copied());
                table.rows.extend(members.map(|(k, (member, samples))| row(split, member, weight(k), samples)));
            }
        }
    }
    table
}

/// The weights of a split's list, divided by their sum.
fn weights(config: &DataConfig, split: usize) -> Option<Vec<f64>> {
    let words = match &config.source {
        DataSource::Shared { paths, .. } => Some(paths),
        DataSource::PerSplit(lists) => lists[split].as_ref(),
        DataSource::Mock { .. } => None,
    };
    // The list was read without an error when the datasets were built.
    Blend::parse("", words?).ok()?.weights.map(|w| normalize(&w))
}

fn row(split: SplitName, dataset: &GptDataset, weight: Option<f64>, samples: u64) -> DataRow {
    let (tokens, s) = (dataset.tokens_per_epoch(), dataset.sequence_length() as f64);
    let samples_per_epoch = tokens.saturating_sub(dataset.extra_tokens()) as f64 / s;
    let epochs = if tokens == 0 { 0.0 } else { samples as f64 * s / tokens as f64 };
    let dataset_name = dataset.name().to_owned();
    let documents = dataset.documents().len();
    DataRow { split, dataset: dataset_name, weight, documents, tokens, samples_per_epoch, samples, epochs }
}

impl DataTable {
    /// What a reader of the table should not miss: data that repeat, and data shorter than a sample.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for r in &self.rows {
            let place = format!("{} ({})", r.dataset, r.split.as_str());
            if r.samples > 0 && r.samples_per_epoch < 1.0 {
                notes.push(format!(
                    "{place}: its {} tokens are less than one sample of {} and the label after it; they repeat inside \
                     a sample",
                    r.tokens, self.sequence_length
                ));
            }
            if r.epochs > 1.0 {
                notes.push(format!("{place}: {} samples take {:.2} passes over its data", r.samples, r.epochs));
            }
            if r.samples == 0 && r.weight.is_some_and(|w| w > 0.0) && self.taken(r.split) > 0 {
                let (w, all) = (r.weight.unwrap_or_default(), self.taken(r.split));
                notes.push(format!("{place}: its weight {w:.4} of {all} samples gives none"));
            }
        }
        notes
    }

    /// Samples of a split, of all its datasets.
    fn taken(&self, split: SplitName) -> u64 {
        self.rows.iter().filter(|r| r.split == split).map(|r| r.samples).sum()
    }
}

impl fmt::Display for DataTable {
    /// Columns, then the notes, one a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["split", "weight", "share", "documents", "tokens", "samples/epoch", "samples", "epochs", "dataset"];
        let mut lines = vec![head.map(str::to_owned)];
        for r in &self.rows {
            let share = r.samples as f64 / self.taken(r.split).max(1) as f64;
            lines.push([
                r.split.as_str().to_owned(),
                r.weight.map_or("-".to_owned(), |w| format!("{w:.4}")),
                format!("{share:.4}"),
                r.documents.to_string(),
                r.tokens.to_string(),
                format!("{:.2}", r.samples_per_epoch),
                r.samples.to_string(),
                format!("{:.2}", r.epochs),
                r.dataset.clone(),
            ]);
        }
        writeln!(f, "data, in samples of {} tokens:", self.sequence_length)?;
        let width = |column: usize| lines.iter().map(|l| l[column].chars().count()).max().unwrap_or(0);
        for line in &lines {
            write!(f, "  {:<w$}", line[0], w = width(0))?;
            for (column, cell) in line.iter().enumerate().take(head.len() - 1).skip(1) {
                write!(f, "  {cell:>w$}", w = width(column))?;
            }
            writeln!(f, "  {}", line[head.len() - 1])?;
        }
        for note in self.notes() {
            writeln!(f, "  note: {note}")?;
        }
        Ok(())
    }
}
