//! A checkpoint of Megatron-LM: which file has what of each parameter, by our names.

mod arguments;
mod names;
mod param;
mod torch;
mod torch_dist;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use ferrotron_base::{DType, ShardSpec};
use ferrotron_checkpoint::{Foreign, Step, foreign, layout};
use ferrotron_models::ModelConfig;
use ferrotron_published::{POSITIONS, VOCABULARY, read_padded};
use serde_json::{Map, Value as Json};

use crate::pickle::{Pickle, Value};
use crate::{Error, Result};
use param::{Param, Unit};

/// How many ranks wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Layout {
    tp: usize,
    pp: usize,
    ep: usize,
}

/// What both formats come to.
#[derive(Debug, Default)]
struct Contents {
    layout: Layout,
    iteration: Option<u64>,
    arguments: Option<Map<String, Json>>,
    params: BTreeMap<String, Param>,
    units: Vec<Unit>,
    /// Parameters that no model of ours has.
    unknown: BTreeSet<String>,
}

/// The order of q, k and v rows is by heads since version 2.0 (megatron/training/checkpointing.py, `fix_query_key_value_ordering`).
fn version(pickle: &Pickle, root: &Value) -> std::result::Result<(), String> {
    let found = match pickle.get(root, "checkpoint_version") {
        Some(Value::Float(v)) => *v,
        Some(Value::Int(v)) => *v as f64,
        _ => 0.0, // as Megatron takes it
    };
    match found >= 2.0 {
        true => Ok(()),
        false => Err(format!(
            "has checkpoint_version {found}: before 2.0 the rows of query, key and value lie in another order; load and save it \
             once with a Megatron-LM of 2021 or later, which writes 3.0"
        )),
    }
}

/// What a file says of the run that saved it.
struct Run {
    arguments: Option<Map<String, Json>>,
    iteration: Option<u64>,
}

/// Arguments and iteration, of a version that is read.
fn run(pickle: &Pickle) -> std::result::Result<Run, String> {
    // A sharded object (`common_state`) is a list of one.
    let root = match pickle.items(pickle.root()) {
        Some([one]) => one,
        _ => pickle.root(),
    };
    version(pickle, root)?;
    let arguments = pickle.get(root, "args").map(|v| pickle.plain(v)).filter(|a| !a.is_empty());
    let iteration = pickle.get(root, "iteration").and_then(|v| u64::try_from(pickle.int(v)?).ok());
    Ok(Run { arguments, iteration })
}

/// A checkpoint of Megatron-LM. Files are read when a parameter is asked for, and of them what a rank holds.
#[derive(Debug)]
pub struct Megatron {
    dir: PathBuf,
    format: Foreign,
    step: Option<Step>,
    contents: Contents,
}

/// The folder of the checkpoint, and which it is.
fn find(dir: &Path, step: Option<u64>) -> Option<(Option<Step>, PathBuf, Foreign)> {
    let (step, folder) = match layout::resolve(dir, step) {
        Ok((step, folder)) => (Some(step), folder),
        Err(_) => (None, dir.to_path_buf()),
    };
    let format = foreign::detect(&folder)?;
    matches!(format, Foreign::MegatronTorch | Foreign::MegatronTorchDist).then_some((step, folder, format))
}

impl Megatron {
    /// True if the folder's tracker (or `--ckpt-step`) names a checkpoint of Megatron-LM in a format that is read, or the
    /// folder itself is one.
    pub fn is_one(dir: &Path, step: Option<u64>) -> bool {
        find(dir, step).is_some()
    }

    /// Opens the checkpoint that the tracker or `step` names. Of `torch` the first shard of each pipeline rank is read, of
    /// `torch_dist` the metadata.
    ///
    /// # Errors
    /// No such checkpoint; a file that is missing, truncated, damaged, hostile, or of a version that is not read; parameters
    /// that no model of ours has.
    pub fn open(dir: &Path, step: Option<u64>) -> Result<Megatron> {
        let none = || Error::file(dir, "has no checkpoint of Megatron-LM in format torch or torch_dist");
        let (step, dir, format) = find(dir, step).ok_or_else(none)?;
        let contents = match format {
            Foreign::MegatronTorch => torch::contents(&dir)?,
            _ => torch_dist::contents(&dir)?,
        };
        if !contents.unknown.is_empty() {
            let some: Vec<&str> = contents.unknown.iter().take(4).map(String::as_str).collect();
            let (n, some) = (contents.unknown.len(), some.join(", "));
            return Err(Error::file(&dir, format!("has {n} parameters that are of no model of this program: {some}")));
        }
        Ok(Megatron { dir, format, step, contents })
    }

    /// The folder with the shards.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The iteration after which it was saved, where it says one.
    pub fn iteration(&self) -> Option<u64> {
        let of_folder = match self.step {
            Some(Step::Iteration(n)) => Some(n),
            _ => None,
        };
        self.contents.iteration.or(of_folder)
    }

    /// Format, layout and iteration, for the log: `torch, TP 2 x PP 2, iteration 3`.
    pub fn describe(&self) -> String {
        let Layout { tp, pp, ep } = self.contents.layout;
        let format = self.format.short().trim_start_matches("--ckpt-format ");
        let expert = if ep > 1 { format!(" x EP {ep}") } else { String::new() };
        let at = self.iteration().map_or(String::new(), |n| format!(", iteration {n}"));
        format!("{format}, TP {tp} x PP {pp}{expert}{at}")
    }

    /// The arguments of the run that saved it, for `--use-checkpoint-args`.
    ///
    /// # Errors
    /// It has none.
    pub fn arguments(&self) -> Result<Map<String, Json>> {
        let none = || Error::file(&self.dir, "has no arguments (args): give the model's flags");
        self.contents.arguments.as_ref().map(arguments::ours).ok_or_else(none)
    }

    /// Checks that the weights are those of the model `ours`; gives what differs beside them.
    ///
    /// # Errors
    /// [`Error::Differs`] with all differences.
    pub fn check(&self, ours: &ModelConfig) -> Result<Vec<String>> {
        let vocab = self.contents.params.get(VOCABULARY[0]).and_then(|p| p.shape.first()).copied();
        let theirs = match &self.contents.arguments {
            Some(a) => arguments::model(a, ours),
            None => ours.clone(),
        };
        // Rows that only fill up are no difference; those of tokens are.
        let tokens =
            self.contents.arguments.as_ref().and_then(arguments::tokens).filter(|n| vocab.is_none_or(|v| *n <= v));
        let needed = ModelConfig { vocab: tokens.unwrap_or(0), ..theirs };
        let (differences, mut noted) = ferrotron_published::compare(&needed, ours);
        if !differences.is_empty() {
            let dir = self.dir.clone();
            return Err(ferrotron_published::Error::Differs { dir, differences }.into());
        }
        match vocab {
            Some(n) if n > ours.vocab => noted.push(format!(
                "the vocabulary has {n} rows there, {} here: the last {} are left out (--padded-vocab-size {n} keeps them)",
                ours.vocab,
                n - ours.vocab
            )),
            Some(n) if n < ours.vocab => noted.push(format!(
                "the vocabulary has {n} rows there, {} here: the last {} start as copies of row {}",
                ours.vocab,
                ours.vocab - n,
                n - n.min(1)
            )),
            _ => {}
        }
        Ok(noted)
    }

    /// Elements `range` of what a rank holds of one of our parameters, in f32. Rows of a padded vocabulary beyond that of the
    /// checkpoint are its last row, as Megatron's converter has them.
    ///
    /// # Errors
    /// A parameter that is missing, of another shape, or unreadable.
    pub fn read_f32(&self, spec: &ShardSpec, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let missing = || Error::file(&self.dir, format!("has no parameter {}", spec.name));
        let param = self.contents.params.get(&spec.name).ok_or_else(missing)?;
        let (theirs, ours) = (&param.shape, &spec.global);
        let same_cols = theirs.len() == ours.len() && theirs.get(1..) == ours.get(1..) && theirs.first() > Some(&0);
        let fits = match spec.name.as_str() {
            name if VOCABULARY.contains(&name) => same_cols,
            POSITIONS => same_cols && theirs.first() >= ours.first(),
            _ => theirs == ours,
        };
        if !fits {
            let what = format!("{} has shape {theirs:?} there, {ours:?} in this model", spec.name);
            return Err(Error::file(&self.dir, what));
        }
        read_padded(spec, &range, param.numel(), out, |first, out| self.read(spec, param, first, out))
    }

    fn read(&self, spec: &ShardSpec, param: &Param, first: usize, out: &mut [f32]) -> Result<()> {
        match param.read(&self.contents.units, first, out)? {
            None => Ok(()),
            Some(at) => {
                let cols = param.cols().max(1);
                let index = [at / cols, at % cols];
                Err(Error::file(&self.dir, format!("has {} only in part: element {index:?} is nowhere", spec.name)))
            }
        }
    }

    /// The type that its run kept parameters in, by its arguments.
    fn dtype(&self) -> DType {
        let on = |name: &str| self.contents.arguments.as_ref().is_some_and(|a| a.get(name) == Some(&Json::Bool(true)));
        match (on("bf16"), on("fp16")) {
            (true, _) => DType::BF16,
            (_, true) => DType::F16,
            _ => DType::F32,
        }
    }

    /// Names and shapes of its parameters, by our names.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.contents.params.iter().map(|(name, p)| (name.as_str(), p.shape.as_slice()))
    }
}

impl ferrotron_published::Parameters for Megatron {
    fn parameter(&self, name: &str) -> Option<(Vec<usize>, DType)> {
        self.contents.params.get(name).map(|p| (p.shape.clone(), self.dtype()))
    }

    fn read(&self, name: &str, shape: &[usize], out: &mut [f32]) -> ferrotron_published::Result<()> {
        let failed = |e: Error| ferrotron_published::Error::File { path: self.dir.clone(), what: e.to_string() };
        self.read_f32(&ShardSpec::whole(name, shape), 0..out.len(), out).map_err(failed)
    }

    fn folder(&self) -> &Path {
        &self.dir
    }
}
