//! The writers beside the log and TensorBoard, behind one door: HTML page, endpoint, console line, W&B and MLflow folders. One rank owns
//! them; each is off unless asked for.

use std::path::{Path, PathBuf};

use crate::MetricsFileError;
use crate::console::Console;
use crate::mlflow::MlflowRun;
use crate::prometheus::{Endpoint, EndpointError};
use crate::report::{Report, RunState};
use crate::step::StepMetrics;
use crate::tensorboard::Scalar;
use crate::timestamp::Timestamp;
use crate::trace::Trace;
use crate::wandb::{WandbNames, WandbRun, json_value};

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct SinkOptions {
    /// Name of the run on the page.
    pub title: String,
    /// Name and value of every setting that is not a default.
    pub configuration: Vec<(String, String)>,
    /// `--report`.
    pub report: Option<PathBuf>,
    /// `--prometheus-port`.
    pub prometheus_port: Option<u16>,
    /// `--console auto`: shown only where it disturbs nothing.
    pub console: bool,
    /// `--wandb-*`: the folder and the names.
    pub wandb: Option<(PathBuf, WandbNames)>,
    /// `--mlflow-dir` and `--mlflow-experiment`.
    pub mlflow: Option<(PathBuf, String)>,
}

/// A writer that cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A file.
    #[error(transparent)]
    File(#[from] MetricsFileError),
    /// The port.
    #[error(transparent)]
    Port(#[from] EndpointError),
}

/// The open writers.
#[derive(Default)]
pub struct Sinks {
    report: Option<Report>,
    endpoint: Option<Endpoint>,
    console: Option<Console>,
    wandb: Option<WandbRun>,
    mlflow: Option<MlflowRun>,
}

impl Sinks {
    /// Opens what is asked for.
    ///
    /// # Errors
    /// A file or port that cannot be had: known before training, not after its first iteration.
    pub fn open(o: &SinkOptions) -> Result<Sinks, SinkError> {
        let report = o.report.as_ref().map(|path| Report::create(path, &o.title, o.configuration.clone()));
        let wandb = o.wandb.as_ref().map(|(folder, names)| {
            let configuration: Vec<(String, String)> =
                o.configuration.iter().map(|(name, value)| (name.clone(), json_value(value))).collect();
            WandbRun::create(folder, names, &configuration, Timestamp::now())
        });
        let mlflow = o.mlflow.as_ref().map(|(folder, experiment)| {
            MlflowRun::create(folder, experiment, &o.title, &o.configuration, Timestamp::now())
        });
        Ok(Sinks {
            report: report.transpose()?,
            endpoint: o.prometheus_port.map(Endpoint::start).transpose()?,
            console: if o.console { Console::detect() } else { None },
            wandb: wandb.transpose()?,
            mlflow: mlflow.transpose()?,
        })
    }

    /// What to tell the user at start: where the page, the endpoint and the folder are.
    pub fn lines(&self, o: &SinkOptions) -> Vec<String> {
        let mut out = Vec::new();
        out.extend(o.report.as_ref().map(|path| format!("report: {}", path.display())));
        out.extend(self.endpoint.as_ref().map(|e| format!("metrics: http://{}/metrics", e.address())));
        let mlflow = |(folder, _): &(PathBuf, String)| {
            format!("to see the run: mlflow ui --backend-store-uri {}", folder.display())
        };
        out.extend(o.mlflow.as_ref().map(mlflow));
        out.extend(self.wandb.as_ref().map(|w| format!("to upload the run: wandb sync {}", w.folder().display())));
        out
    }

    /// An iteration is done. `scalars` are its TensorBoard points; none between `--tensorboard-log-interval`s.
    pub fn step(&mut self, s: &StepMetrics, scalars: &[Scalar]) -> Result<(), SinkError> {
        if let Some(report) = &mut self.report {
            report.step(s)?;
        }
        if let Some(wandb) = self.wandb.as_mut().filter(|_| !scalars.is_empty()) {
            wandb.scalars(scalars, s.iteration, s.consumed_samples)?;
        }
        if let Some(mlflow) = &mut self.mlflow {
            mlflow.scalars(scalars, Timestamp::now())?;
        }
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.step(s);
        }
        if let Some(console) = &mut self.console {
            console.step(s);
        }
        Ok(())
    }

    /// A validation is done.
    pub fn validation(
        &mut self,
        iteration: u64,
        consumed_samples: u64,
        losses: &[(String, f64)],
        scalars: &[Scalar],
    ) -> Result<(), SinkError> {
        if let Some(report) = &mut self.report {
            report.validation(iteration, losses);
        }
        if let Some(wandb) = &mut self.wandb {
            wandb.scalars(scalars, iteration, consumed_samples)?;
        }
        if let Some(mlflow) = &mut self.mlflow {
            mlflow.scalars(scalars, Timestamp::now())?;
        }
        Ok(())
    }

    /// The run has ended: the page's last version, the exit record, the end of the console's line, the port.
    pub fn finish(mut self, state: &RunState) -> Result<(), SinkError> {
        if let Some(console) = &mut self.console {
            console.finish();
        }
        if let Some(report) = self.report.take() {
            report.finish(state)?;
        }
        if let Some(wandb) = self.wandb.take() {
            wandb.finish(u8::from(matches!(state, RunState::Failed(_))))?;
        }
        if let Some(mlflow) = self.mlflow.take() {
            mlflow.finish(!matches!(state, RunState::Failed(_)))?;
        }
        Ok(())
    }
}

/// The iterations that a rank traces (`--profile`, `--profile-step-start`, `--profile-step-end`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileWindow {
    /// This rank.
    pub rank: usize,
    /// First traced iteration, from 0.
    pub start: u64,
    /// First iteration that is not traced any more.
    pub end: u64,
    /// The trace.
    pub path: PathBuf,
}

impl ProfileWindow {
    /// The window of a rank, if it is among `ranks`; the trace is `folder/trace-rank<N>.json`.
    pub fn of_rank(start: u64, end: u64, ranks: &[u64], rank: usize, folder: &Path) -> Option<ProfileWindow> {
        let traced = ranks.iter().any(|r| usize::try_from(*r).is_ok_and(|r| r == rank));
        traced.then(|| ProfileWindow { rank, start, end, path: folder.join(format!("trace-rank{rank}.json")) })
    }

    /// Whether an iteration, counted from 0, is traced.
    pub fn contains(&self, iteration: u64) -> bool {
        (self.start..self.end).contains(&iteration)
    }

    /// Begins the trace.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn trace(&self) -> Result<Trace, MetricsFileError> {
        Trace::create(&self.path, self.rank)
    }
}
