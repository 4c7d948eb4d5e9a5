//! A Weights & Biases run folder, as its client writes it offline: `wandb sync FOLDER` uploads it. Nothing is ever sent from here.
//!
//! The file is read back in a test by the rules of its format, and was read by the client's own protocol classes (wandb 0.31).

mod log_file;

use std::path::{Path, PathBuf};

use log_file::LogFile;

use crate::MetricsFileError;
use crate::jsonl::{Metric, push_json_string};
use crate::proto::{put_bytes, put_int};
use crate::tensorboard::Scalar;
use crate::timestamp::Timestamp;

/// What a run is called. Empty texts leave the choice to the server's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WandbNames {
    /// `--wandb-project`.
    pub project: String,
    /// `--wandb-entity`.
    pub entity: String,
    /// `--wandb-exp-name`.
    pub name: String,
    /// Id of the run; the same id continues a run. Made from the time when empty.
    pub id: String,
}

/// A run folder being written.
#[derive(Debug)]
pub struct WandbRun {
    log: LogFile,
    folder: PathBuf,
    file: PathBuf,
    began: Timestamp,
    records: u64,
    /// Values of the step that is not written yet: training and validation of one iteration are one row.
    pending: Option<(u64, Vec<(String, f64)>)>,
}

impl WandbRun {
    /// Creates `parent/wandb/offline-run-<time>-<id>` with the run's configuration (name and JSON value).
    ///
    /// # Errors
    /// The folder or file cannot be created; an id that is no plain word.
    pub fn create(
        parent: &Path,
        names: &WandbNames,
        configuration: &[(String, String)],
        now: Timestamp,
    ) -> Result<WandbRun, MetricsFileError> {
        let id = if names.id.is_empty() { run_id(now) } else { names.id.clone() };
        let fail = |action, path: &Path, source| MetricsFileError { action, path: path.to_path_buf(), source };
        if !id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
            let why = std::io::Error::other(format!("the run id '{id}' may have letters, digits, - and _ only"));
            return Err(fail("name", parent, why));
        }
        let stamp: String = now.to_string()[..19].chars().filter(|c| !matches!(c, '-' | ':')).collect();
        let folder = parent.join("wandb").join(format!("offline-run-{}-{id}", stamp.replace(' ', "_")));
        std::fs::create_dir_all(folder.join("files")).map_err(|e| fail("create the folder of", &folder, e))?;
        let file = folder.join(format!("run-{id}.wandb"));
        let log = LogFile::create(&file).map_err(|e| fail("create", &file, e))?;
        let mut run = WandbRun { log, folder, file, began: now, records: 0, pending: None };
        run.header()?;
        run.run(names, &id, configuration)?;
        Ok(run)
    }

    /// The folder to give to `wandb sync`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes the points of an iteration as TensorBoard gets them. As in Megatron, the twins over samples are left out and
    /// `samples vs steps` is added.
    pub fn scalars(
        &mut self,
        scalars: &[Scalar],
        iteration: u64,
        consumed_samples: u64,
    ) -> Result<(), MetricsFileError> {
        let own = scalars.iter().filter(|s| !s.tag.ends_with(" vs samples"));
        let mut values: Vec<(String, f64)> = own.map(|s| (s.tag.clone(), f64::from(s.value))).collect();
        values.push(("samples vs steps".to_string(), consumed_samples as f64));
        match &mut self.pending {
            Some((step, pending)) if *step == iteration => {
                for (name, value) in values {
                    match pending.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, old)) => *old = value,
                        None => pending.push((name, value)),
                    }
                }
                Ok(())
            }
            _ => {
                self.flush(Timestamp::now())?;
                self.pending = Some((iteration, values));
                Ok(())
            }
        }
    }

    /// Writes what is pending and the exit record. A run without it is synced as well, and marked as crashed.
    pub fn finish(mut self, exit_code: u8) -> Result<(), MetricsFileError> {
        let now = Timestamp::now();
        self.flush(now)?;
        let mut exit = Vec::new();
        put_int(&mut exit, 1, u64::from(exit_code));
        put_int(&mut exit, 2, (now.seconds() - self.began.seconds()).max(0.0) as u64);
        self.record(18, &exit)
    }

    fn header(&mut self) -> Result<(), MetricsFileError> {
        let mut version = Vec::new();
        put_bytes(&mut version, 1, concat!("ferrotron ", env!("CARGO_PKG_VERSION")).as_bytes());
        // The oldest client that can read the record; the client's own constant.
        put_bytes(&mut version, 2, b"0.70.0");
        let mut header = Vec::new();
        put_bytes(&mut header, 1, &version);
        self.record(21, &header)
    }

    fn run(
        &mut self,
        names: &WandbNames,
        id: &str,
        configuration: &[(String, String)],
    ) -> Result<(), MetricsFileError> {
        let mut config = Vec::new();
        for (key, value) in std::iter::once(&("_wandb".to_string(), "{}".to_string())).chain(configuration) {
            let mut item = Vec::new();
            put_bytes(&mut item, 1, key.as_bytes());
            put_bytes(&mut item, 16, value.as_bytes());
            put_bytes(&mut config, 1, &item);
        }
        let mut run = Vec::new();
        put_bytes(&mut run, 1, id.as_bytes());
        for (field, text) in [(2, &names.entity), (3, &names.project), (8, &names.name)] {
            if !text.is_empty() {
                put_bytes(&mut run, field, text.as_bytes());
            }
        }
        put_bytes(&mut run, 4, &config);
        let mut start = Vec::new();
        let seconds = self.began.seconds();
        put_int(&mut start, 1, seconds.max(0.0) as u64);
        put_int(&mut start, 2, ((seconds - seconds.floor()) * 1e9) as u64);
        put_bytes(&mut run, 17, &start);
        self.record(17, &run)
    }

    fn flush(&mut self, now: Timestamp) -> Result<(), MetricsFileError> {
        let Some((step, values)) = self.pending.take() else { return Ok(()) };
        let times = [
            ("_timestamp", Metric::Float(now.seconds())),
            ("_runtime", Metric::Float((now.seconds() - self.began.seconds()).max(0.0))),
            ("_step", Metric::Int(step)),
        ];
        let values = values.iter().map(|(name, value)| (name.as_str(), Metric::Float(*value)));
        let (mut history, mut summary) = (Vec::new(), Vec::new());
        for (name, value) in values.chain(times) {
            let mut item = Vec::new();
            put_bytes(&mut item, 2, name.as_bytes());
            put_bytes(&mut item, 16, json(&value).as_bytes());
            put_bytes(&mut history, 1, &item);
            put_bytes(&mut summary, 1, &item);
        }
        let mut number = Vec::new();
        put_int(&mut number, 1, step);
        put_bytes(&mut history, 2, &number);
        self.record(2, &history)?;
        self.record(3, &summary)
    }

    /// A `Record` with its running number and one message in the field of its type.
    fn record(&mut self, field: u64, message: &[u8]) -> Result<(), MetricsFileError> {
        self.records += 1;
        let mut record = Vec::with_capacity(message.len() + 16);
        put_int(&mut record, 1, self.records);
        put_bytes(&mut record, field, message);
        let fail = |source| MetricsFileError { action: "write", path: self.file.clone(), source };
        self.log.write(&record).map_err(fail)
    }
}

/// A number as the client's JSON, which writes NaN and Infinity bare.
fn json(value: &Metric) -> String {
    match value {
        Metric::Float(x) if x.is_nan() => "NaN".to_string(),
        Metric::Float(x) if x.is_infinite() => if *x > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
        value => {
            let mut out = String::new();
            value.push_json(&mut out);
            out
        }
    }
}

/// A setting as Python prints it, as a JSON value for the configuration: numbers and truths as such, to sort and filter by.
pub fn json_value(text: &str) -> String {
    let mut out = String::new();
    match (text, text.parse::<i64>(), text.parse::<f64>()) {
        ("True", ..) => out.push_str("true"),
        ("False", ..) => out.push_str("false"),
        ("None", ..) => out.push_str("null"),
        // 007 and +1 are names.
        (_, Ok(n), _) if n.to_string() == text => out.push_str(text),
        (_, Err(_), Ok(x)) if x.is_finite() => Metric::Float(x).push_json(&mut out),
        _ => push_json_string(text, &mut out),
    }
    out
}

/// Eight letters and digits from the time and the process, as unique as a folder name needs.
fn run_id(now: Timestamp) -> String {
    let mut n = (now.seconds() * 1e6) as u64 ^ u64::from(std::process::id()) << 40;
    let digit = |_| {
        let d = (n % 36) as u8;
        n /= 36;
        char::from(if d < 10 { b'0' + d } else { b'a' + d - 10 })
    };
    (0..8).map(digit).collect()
}
