//! A run in a folder as MLflow's file store keeps it: `mlflow ui --backend-store-uri FOLDER` shows it. Nothing is ever sent.
//!
//! `FOLDER/<experiment>/meta.yaml`, and below `<experiment>/<run>`: `meta.yaml`, a file for each parameter and tag with its value,
//! and one for each metric with lines of `time in ms, value, step`. (mlflow/store/tracking/file_store.py.)

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::MetricsFileError;
use crate::tensorboard::Scalar;
use crate::timestamp::Timestamp;

/// The experiment that every file store has.
pub const DEFAULT_EXPERIMENT: &str = "Default";
/// Most bytes of a parameter's value that MLflow reads.
const PARAMETER: usize = 6000;

/// How a run stands, as MLflow numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Running = 1,
    Finished = 3,
    Failed = 4,
}

/// A run being written.
#[derive(Debug)]
pub struct MlflowRun {
    folder: PathBuf,
    experiment: String,
    id: String,
    name: String,
    began: Timestamp,
    metrics: BTreeMap<String, File>,
}

impl MlflowRun {
    /// Creates a run of `experiment` below `root` with its parameters (name and value).
    ///
    /// # Errors
    /// A folder or file cannot be written.
    pub fn create(
        root: &Path,
        experiment: &str,
        name: &str,
        parameters: &[(String, String)],
        now: Timestamp,
    ) -> Result<MlflowRun, MetricsFileError> {
        let fail = |path: &Path, source| MetricsFileError { action: "write", path: path.to_path_buf(), source };
        let number = if experiment == DEFAULT_EXPERIMENT { "0".to_string() } else { number_of(experiment) };
        let at = root.join(&number);
        let id =
            format!("{:016x}{:016x}", (now.seconds() * 1e6) as u64, hash(&[name, &std::process::id().to_string()]));
        let folder = at.join(&id);
        for part in ["metrics", "params", "tags", "artifacts"] {
            std::fs::create_dir_all(folder.join(part)).map_err(|e| fail(&folder, e))?;
        }
        let meta = at.join("meta.yaml");
        if !meta.exists() {
            let place = std::path::absolute(&at).unwrap_or_else(|_| at.clone());
            let text = format!(
                "artifact_location: {}\ncreation_time: {ms}\nexperiment_id: '{number}'\nlast_update_time: {ms}\n\
                 lifecycle_stage: active\nname: {}\n",
                quoted(&format!("file://{}", place.display())),
                quoted(experiment),
                ms = millis(now)
            );
            std::fs::write(&meta, text).map_err(|e| fail(&meta, e))?;
        }
        let run = MlflowRun { folder, experiment: number, id, name: name.into(), began: now, metrics: BTreeMap::new() };
        for (key, value) in parameters {
            let mut value = value.replace(['\n', '\r'], " ");
            value.truncate(value.floor_char_boundary(PARAMETER));
            run.file("params", key, &value)?;
        }
        run.file("tags", "mlflow.runName", name)?;
        run.state(Status::Running, None)?;
        Ok(run)
    }

    /// The run's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes points as TensorBoard gets them, but for the twins over samples.
    pub fn scalars(&mut self, scalars: &[Scalar], now: Timestamp) -> Result<(), MetricsFileError> {
        for s in scalars.iter().filter(|s| !s.tag.ends_with(" vs samples")) {
            let path = self.folder.join("metrics").join(file_name(&s.tag));
            let line = format!("{} {:?} {}\n", millis(now), s.value, s.step);
            let written = match self.metrics.get_mut(&s.tag) {
                Some(file) => file.write_all(line.as_bytes()),
                None => OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| {
                    file.write_all(line.as_bytes())?;
                    self.metrics.insert(s.tag.clone(), file);
                    Ok(())
                }),
            };
            written.map_err(|source| MetricsFileError { action: "write", path, source })?;
        }
        Ok(())
    }

    /// Marks the run as ended, well or not. A run without it stays "running".
    pub fn finish(self, well: bool) -> Result<(), MetricsFileError> {
        self.state(if well { Status::Finished } else { Status::Failed }, Some(Timestamp::now()))
    }

    fn state(&self, status: Status, ended: Option<Timestamp>) -> Result<(), MetricsFileError> {
        let place = std::path::absolute(&self.folder).unwrap_or_else(|_| self.folder.clone()).join("artifacts");
        let text = format!(
            "artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\nlifecycle_stage: active\n\
             run_id: {id}\nrun_name: {}\nrun_uuid: {id}\nsource_name: ''\nsource_type: 4\nsource_version: ''\n\
             start_time: {}\nstatus: {}\ntags: []\nuser_id: ''\n",
            quoted(&format!("file://{}", place.display())),
            ended.map_or("null".to_string(), |t| millis(t).to_string()),
            self.experiment,
            quoted(&self.name),
            millis(self.began),
            status as u8,
            id = quoted(&self.id),
        );
        // A reader never sees half of it.
        let (path, part) = (self.folder.join("meta.yaml"), self.folder.join("meta.yaml.part"));
        let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &path));
        written.map_err(|source: io::Error| MetricsFileError { action: "write", path, source })
    }

    fn file(&self, kind: &str, key: &str, value: &str) -> Result<(), MetricsFileError> {
        let path = self.folder.join(kind).join(file_name(key));
        std::fs::write(&path, value).map_err(|source| MetricsFileError { action: "write", path, source })
    }
}

fn millis(t: Timestamp) -> i64 {
    (t.seconds() * 1000.0) as i64
}

/// A name as MLflow allows it: letters, digits and `_-. `, and no folder.
fn file_name(key: &str) -> String {
    let legal = |c: char| if c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ') { c } else { '_' };
    key.chars().map(legal).collect()
}

/// A YAML text.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''").replace(['\n', '\r'], " "))
}

/// FNV-1a.
fn hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|p| p.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Eighteen digits, as MLflow numbers experiments; equal names share one.
fn number_of(experiment: &str) -> String {
    format!("{}", 100_000_000_000_000_000 + hash(&[experiment]) % 900_000_000_000_000_000)
}
