//! A self-contained HTML page of a run (`--report PATH`): curves as inline SVG, the configuration, refreshed while training.
//!
//! The page is written to a temporary name and renamed, so a browser never sees half of it. Long runs are thinned: a curve
//! keeps at most [`MOST_POINTS`] points, each the mean of equally many iterations.

mod chart;
mod page;
mod series;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::MetricsFileError;
use crate::step::StepMetrics;
use crate::timestamp::Timestamp;

pub use series::{MOST_POINTS, Series};

/// Least time between two versions of the page.
const REFRESH: Duration = Duration::from_secs(5);

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The page reloads itself.
    Training,
    /// All iterations are done, or an exit flag ended it.
    Finished,
    /// It failed, with the reason.
    Failed(String),
}

/// The page and what is drawn on it.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
    title: String,
    configuration: Vec<(String, String)>,
    /// Name of each loss with its training curve and its validation curve.
    losses: Vec<(String, Series, Series)>,
    learning_rate: Series,
    grad_norm: Series,
    tokens_per_second: Series,
    tflops: Series,
    memory: Series,
    latest: StepMetrics,
    skipped: u64,
    written: Option<Instant>,
    refresh: Duration,
}

impl Report {
    /// A page at `path`, whose folder is created when missing. `configuration` is shown as a table: name and value.
    ///
    /// # Errors
    /// The page cannot be written; better known now than after the first iteration.
    pub fn create(path: &Path, title: &str, configuration: Vec<(String, String)>) -> Result<Report, MetricsFileError> {
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|source| MetricsFileError {
                action: "create the folder of",
                path: path.to_path_buf(),
                source,
            })?;
        }
        let mut report = Report {
            path: path.to_path_buf(),
            title: title.to_string(),
            configuration,
            losses: Vec::new(),
            learning_rate: Series::default(),
            grad_norm: Series::default(),
            tokens_per_second: Series::default(),
            tflops: Series::default(),
            memory: Series::default(),
            latest: StepMetrics::default(),
            skipped: 0,
            written: None,
            refresh: REFRESH,
        };
        report.write(&RunState::Training)?;
        Ok(report)
    }

    /// Takes note of an iteration; writes the page if the last version is older than five seconds.
    pub fn step(&mut self, s: &StepMetrics) -> Result<(), MetricsFileError> {
        let x = s.iteration as f64;
        for (name, loss) in &s.losses {
            self.loss(name).0.push(x, *loss);
        }
        self.learning_rate.push(x, s.learning_rate);
        self.tokens_per_second.push(x, s.tokens_per_second());
        for (series, value) in [
            (&mut self.grad_norm, s.grad_norm),
            (&mut self.tflops, s.tflops_per_device),
            (&mut self.memory, s.memory_allocated.map(|b| b as f64 / (1u64 << 30) as f64)),
        ] {
            if let Some(value) = value {
                series.push(x, value);
            }
        }
        self.skipped += u64::from(s.skipped);
        self.latest = s.clone();
        if self.written.is_none_or(|at| at.elapsed() >= self.refresh) {
            self.write(&RunState::Training)?;
        }
        Ok(())
    }

    /// Takes note of a validation at `iteration`.
    pub fn validation(&mut self, iteration: u64, losses: &[(String, f64)]) {
        for (name, loss) in losses {
            self.loss(name).1.push(iteration as f64, *loss);
        }
    }

    /// Writes the last version.
    pub fn finish(mut self, state: &RunState) -> Result<(), MetricsFileError> {
        self.write(state)
    }

    fn loss(&mut self, name: &str) -> (&mut Series, &mut Series) {
        let at = self.losses.iter().position(|(known, ..)| known == name).unwrap_or_else(|| {
            self.losses.push((name.to_string(), Series::default(), Series::default()));
            self.losses.len() - 1
        });
        let (_, train, valid) = &mut self.losses[at];
        (train, valid)
    }

    fn write(&mut self, state: &RunState) -> Result<(), MetricsFileError> {
        let text = page::page(self, state, Timestamp::now());
        let mut name = self.path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = self.path.with_file_name(name);
        let fail = |source| MetricsFileError { action: "write", path: self.path.clone(), source };
        std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &self.path)).map_err(fail)?;
        self.written = Some(Instant::now());
        Ok(())
    }
}
