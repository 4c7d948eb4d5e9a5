//! Writes a folder with a published model from a checkpoint.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use ferrotron_base::{DType, ShardSpec};
use ferrotron_checkpoint::convert::convert;
use ferrotron_checkpoint::safetensors::{TensorSource, write_file};
use ferrotron_checkpoint::{Checkpoint, Kind, Source as Data};
use ferrotron_models::ModelConfig;
use ferrotron_models::hf::{HfTensor, Source, disassemble};
use serde_json::{Map, Value, json};

use crate::{Error, Family, Result, VOCABULARY};

/// A checkpoint whose parameters can be published, by our names.
pub trait Parameters {
    /// Shape of a parameter over all ranks, and the type that it is kept in; `None` if there is no such.
    fn parameter(&self, name: &str) -> Option<(Vec<usize>, DType)>;

    /// The first elements of a whole parameter of that shape, as many as `out` has, in f32.
    ///
    /// # Errors
    /// What cannot be read.
    fn read(&self, name: &str, shape: &[usize], out: &mut [f32]) -> Result<()>;

    /// Its folder, for errors.
    fn folder(&self) -> &Path;
}

impl Parameters for Checkpoint {
    fn parameter(&self, name: &str) -> Option<(Vec<usize>, DType)> {
        self.get(Kind::Param, name).map(|t| (t.global.to_vec(), t.dtype))
    }

    fn read(&self, name: &str, shape: &[usize], out: &mut [f32]) -> Result<()> {
        Ok(self.read_f32(&ShardSpec::whole(name, shape), 0..out.len(), Kind::Param, out)?)
    }

    fn folder(&self) -> &Path {
        self.dir()
    }
}

/// How a model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Type of the elements; `None` keeps the checkpoint's.
    pub dtype: Option<DType>,
    /// Rows of the vocabulary; `None` keeps them all, padding too.
    pub vocab: Option<usize>,
    /// Most bytes of a file, of which each holds one tensor at least.
    pub file_bytes: u64,
}

/// A published tensor to be: its name, shape, and which of our parameters it comes from.
struct Planned {
    key: String,
    shape: Vec<usize>,
    ours: usize,
}

/// Writes a checkpoint's weights into a new folder, as the family that has such a model. Gives the names of its files.
///
/// # Errors
/// A model that no family has, a parameter that the checkpoint lacks, a folder that is there, files that cannot be written.
/// Nothing is left of what was begun.
pub fn write(
    checkpoint: &impl Parameters,
    model: &ModelConfig,
    dir: &Path,
    e: Export,
) -> Result<(Family, Vec<String>)> {
    let family = Family::of_model(model)?;
    let failed = |path: &Path, what: String| Error::File { path: path.into(), what };
    if dir.exists() {
        return Err(failed(dir, "is there already: give a folder that is not".into()));
    }
    let partial = dir.with_extension("partial");
    let _ = fs::remove_dir_all(&partial); // of a run that was killed
    fs::create_dir_all(&partial).map_err(|e| failed(&partial, e.to_string()))?;
    let done = files(checkpoint, model, family, &partial, e).and_then(|names| {
        fs::rename(&partial, dir).map_err(|e| failed(dir, e.to_string()))?;
        Ok((family, names))
    });
    if done.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    done
}

fn files(checkpoint: &impl Parameters, c: &ModelConfig, family: Family, dir: &Path, e: Export) -> Result<Vec<String>> {
    let mapping = family.mapping(c);
    let mut planned = vec![];
    let mut stored = DType::F32;
    for (i, (name, source)) in mapping.iter().enumerate() {
        let missing =
            || ferrotron_checkpoint::Error::NoSuchTensor { path: checkpoint.folder().into(), name: name.clone() };
        let (shape, kept) = checkpoint.parameter(name).ok_or_else(missing)?;
        stored = kept;
        let shape = trimmed(name, &shape, e.vocab);
        // shapes alone: a tensor of no values
        for (key, shape) in shapes(c, source, &shape) {
            planned.push(Planned { key, shape, ours: i });
        }
    }
    let dtype = e.dtype.unwrap_or(stored);
    let bytes = |p: &Planned| (p.shape.iter().product::<usize>() * dtype.size()) as u64;
    let mut groups: Vec<Vec<Planned>> = vec![];
    let (mut size, mut total) = (0, 0);
    for p in planned {
        let n = bytes(&p);
        total += n;
        match groups.last_mut() {
            Some(group) if size + n <= e.file_bytes => {
                size += n;
                group.push(p);
            }
            _ => {
                size = n;
                groups.push(vec![p]);
            }
        }
    }
    let last = RefCell::new((usize::MAX, vec![]));
    let count = groups.len();
    let (mut names, mut map) = (vec![], Map::new());
    for (i, group) in groups.iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let tensors = group.iter().map(|p| {
            let last = &last;
            let (ours, source) = &mapping[p.ours];
            let fill = move |at: usize, out: &mut [u8]| {
                let mut held = last.borrow_mut();
                if held.0 != p.ours {
                    *held = (p.ours, parameter(checkpoint, c, ours, source, e.vocab)?);
                }
                let none = || format!("{} is not in {ours}", p.key);
                let (_, tensor) = held.1.iter().find(|(key, _)| *key == p.key).ok_or_else(none)?;
                let values = &tensor.values[at / dtype.size()..][..out.len() / dtype.size()];
                let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                convert(DType::F32, &raw, dtype, out);
                Ok(())
            };
            TensorSource { name: p.key.clone(), dtype, shape: p.shape.clone(), data: Data::Fill(Box::new(fill)) }
        });
        write_file(&dir.join(&name), &[("format", "pt")], tensors.collect())?;
        map.extend(group.iter().map(|p| (p.key.clone(), Value::from(name.clone()))));
        names.push(name);
    }
    if count > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        names.push(write_json(dir, "model.safetensors.index.json", &index)?);
    }
    let vocab = e.vocab.map_or(c.vocab, |v| v.min(c.vocab));
    names.push(write_json(dir, "config.json", &family.config(c, vocab, dtype))?);
    Ok(names)
}

fn write_json(dir: &Path, name: &str, value: &Value) -> Result<String> {
    let path = dir.join(name);
    fs::write(&path, format!("{value:#}\n")).map_err(|e| Error::File { path, what: e.to_string() })?;
    Ok(name.to_string())
}

/// Shape of a parameter without the padding of a vocabulary.
fn trimmed(name: &str, global: &[usize], vocab: Option<usize>) -> Vec<usize> {
    let mut shape = global.to_vec();
    if let Some(vocab) = vocab.filter(|_| VOCABULARY.contains(&name)) {
        shape[0] = shape[0].min(vocab);
    }
    shape
}

/// Names and shapes of what one of our parameters becomes.
fn shapes(c: &ModelConfig, source: &Source, shape: &[usize]) -> Vec<(String, Vec<usize>)> {
    disassemble(c, source, shape, &[]).into_iter().map(|(key, t)| (key, t.shape)).collect()
}

/// One of our parameters, whole, as published tensors.
fn parameter(
    checkpoint: &impl Parameters,
    c: &ModelConfig,
    name: &str,
    source: &Source,
    vocab: Option<usize>,
) -> Result<Vec<(String, HfTensor)>> {
    let global = checkpoint.parameter(name).map_or(vec![], |(shape, _)| shape);
    let shape = trimmed(name, &global, vocab);
    // Rows beyond those that are kept come last.
    let mut values = vec![0f32; shape.iter().product()];
    checkpoint.read(name, &global, &mut values)?;
    Ok(disassemble(c, source, &shape, &values))
}
