//! A folder with a published model.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ferrotron_base::{DType, ShardSpec};
use ferrotron_checkpoint::{Foreign, SafetensorsFile, foreign};
use ferrotron_models::ModelConfig;
use ferrotron_models::hf::{HfError, HfTensor, Source, assemble, runs};
use serde_json::Value;

use crate::compare::compare;
use crate::padded::{POSITIONS, VOCABULARY, read_padded};
use crate::{Error, Family, Result};

/// Most bytes of a `config.json` or an index.
const LIMIT: u64 = 64 << 20;

/// A published model. Files stay open, and are read when a parameter is asked for.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    family: Family,
    model: ModelConfig,
    files: Vec<SafetensorsFile>,
    /// Which file has a tensor.
    places: BTreeMap<String, usize>,
    sources: BTreeMap<String, Source>,
}

/// A JSON file of bounded size.
fn read_json(path: &Path) -> Result<Value> {
    let failed = |what: String| Error::File { path: path.into(), what };
    let file = std::fs::File::open(path).map_err(|e| failed(e.to_string()))?;
    let mut text = vec![];
    file.take(LIMIT + 1).read_to_end(&mut text).map_err(|e| failed(e.to_string()))?;
    if text.len() as u64 > LIMIT {
        return Err(failed(format!("has more than {LIMIT} bytes, which no such file has")));
    }
    serde_json::from_slice(&text).map_err(|e| failed(format!("is not JSON: {e}")))
}

impl Folder {
    /// True for a folder of this kind: `config.json` and weights as safetensors or pickles.
    pub fn is_one(dir: &Path) -> bool {
        dir.join("config.json").is_file() && foreign::detect(dir) == Some(Foreign::HuggingFace)
    }

    /// Reads `config.json` and the headers of the safetensors files.
    ///
    /// # Errors
    /// Files that cannot be read, an unknown family, a tensor of the index that is in no file.
    pub fn open(dir: &Path) -> Result<Folder> {
        let (family, model) = configuration(dir)?;
        let mut files = vec![];
        let mut places = BTreeMap::new();
        for name in weights(dir)? {
            let file = SafetensorsFile::open(dir.join(&name))?;
            for tensor in file.names() {
                places.insert(tensor.to_string(), files.len());
            }
            files.push(file);
        }
        let sources = family.mapping(&model).into_iter().collect();
        Ok(Folder { dir: dir.into(), family, model, files, places, sources })
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The model that `config.json` states.
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// Its safetensors files.
    pub fn files(&self) -> &[SafetensorsFile] {
        &self.files
    }

    /// Checks that the weights are those of `ours`; gives what differs beside them.
    ///
    /// # Errors
    /// [`Error::Differs`] with all differences.
    pub fn check(&self, ours: &ModelConfig) -> Result<Vec<String>> {
        let (differences, noted) = compare(&self.model, ours);
        match differences.is_empty() {
            true => Ok(noted),
            false => Err(Error::Differs { dir: self.dir.clone(), differences }),
        }
    }

    fn model_error(&self, source: HfError) -> Error {
        Error::Model { dir: self.dir.clone(), source }
    }

    /// A published tensor's file. GPT-2's are published with and without `transformer.` before their names.
    fn find(&self, key: &str) -> std::result::Result<(&SafetensorsFile, String), HfError> {
        let bare = key.strip_prefix("transformer.").unwrap_or(key);
        let found = [key, bare].into_iter().find_map(|k| Some((&self.files[*self.places.get(k)?], k.to_string())));
        found.ok_or_else(|| HfError::Missing(key.into()))
    }

    fn elements(&self, key: &str) -> std::result::Result<usize, HfError> {
        let (file, key) = self.find(key)?;
        Ok(file.get(&key).map_or(0, |t| t.numel()))
    }

    /// Elements `range` of what a rank holds of one of our parameters, in f32. Rows of a padded vocabulary beyond the
    /// published one are its last row, as Megatron's converter has them.
    ///
    /// # Errors
    /// A tensor that is missing, of another size, or unreadable.
    pub fn read_f32(&self, spec: &ShardSpec, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let missing = || self.model_error(HfError::Missing(format!("for {}", spec.name)));
        let source = self.sources.get(&spec.name).ok_or_else(missing)?;
        let total: usize = spec.global.iter().product();
        let there = self.expect(spec, source, total)?;
        let mut whole = None;
        read_padded(spec, &range, there, out, |first, out| {
            self.piece(source, first..first + out.len(), out, &mut whole)
        })
    }

    /// Elements of ours that the published tensors give: all, or fewer of a padded vocabulary, or more positions.
    fn expect(&self, spec: &ShardSpec, source: &Source, total: usize) -> Result<usize> {
        let keys: &[String] = match source {
            Source::Same(k) | Source::Transposed(k) | Source::FusedQkv(k) => std::slice::from_ref(k),
            Source::Stacked(keys) => keys,
            Source::Qkv(keys) => keys,
        };
        let mut there = 0;
        for key in keys {
            there += self.elements(key).map_err(|e| self.model_error(e))?;
        }
        let fits = match spec.name.as_str() {
            POSITIONS => there >= total,
            name if VOCABULARY.contains(&name) => there <= total && there == self.model.vocab * self.model.hidden,
            _ => there == total,
        };
        match fits {
            true => Ok(there),
            false => Err(self.model_error(HfError::Size { key: keys.join(", "), expected: total, got: there })),
        }
    }

    /// Elements of our whole tensor that are there.
    fn piece(&self, source: &Source, range: Range<usize>, out: &mut [f32], whole: &mut Option<Vec<f32>>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if let Some(values) = whole {
            out.copy_from_slice(&values[range]);
            return Ok(());
        }
        let mut found = vec![];
        let size = |key: &str| self.elements(key);
        let mut note = |key: &str, first: usize, n: usize| found.push((key.to_string(), first, n));
        let lies = runs(&self.model, source, range.clone(), &size, &mut note).map_err(|e| self.model_error(e))?;
        if !lies {
            let get = |key: &str| self.tensor(key).ok();
            *whole = Some(assemble(&self.model, source, &get).map_err(|e| self.model_error(e))?);
            return self.piece(source, range, out, whole);
        }
        let mut at = 0;
        for (key, first, n) in found {
            self.read(&key, first, &mut out[at..at + n])?;
            at += n;
        }
        Ok(())
    }

    /// Elements of a published tensor.
    fn read(&self, key: &str, first: usize, out: &mut [f32]) -> Result<()> {
        let (file, key) = self.find(key).map_err(|e| self.model_error(e))?;
        let mut bytes = vec![0; out.len() * 4];
        file.read_into(&key, first, DType::F32, &mut bytes)?;
        let (values, _) = bytes.as_chunks::<4>();
        out.iter_mut().zip(values).for_each(|(v, b)| *v = f32::from_le_bytes(*b));
        Ok(())
    }

    /// A whole published tensor.
    fn tensor(&self, key: &str) -> Result<HfTensor> {
        let (file, key) = self.find(key).map_err(|e| self.model_error(e))?;
        Ok(HfTensor { shape: file.shape(&key)?.to_vec(), values: file.read_f32(&key)? })
    }
}

/// Family and model of a folder.
pub(crate) fn configuration(dir: &Path) -> Result<(Family, ModelConfig)> {
    let config = read_json(&dir.join("config.json"))?;
    Family::of_config(&config).map_err(|source| Error::Model { dir: dir.into(), source })
}

/// Names of the weights' files: those of the index, or the one there is.
fn weights(dir: &Path) -> Result<Vec<String>> {
    let (index, single) = (dir.join("model.safetensors.index.json"), dir.join("model.safetensors"));
    if single.is_file() {
        return Ok(vec!["model.safetensors".into()]);
    }
    if !index.is_file() {
        let what = "has no model.safetensors and no index of several: weights as pickles (pytorch_model.bin) can run code \
                    and are not read; convert them with transformers' save_pretrained(safe_serialization=True)";
        return Err(Error::File { path: dir.into(), what: what.into() });
    }
    let wrong = |what: &str| Error::File { path: index.clone(), what: what.into() };
    let read = read_json(&index)?;
    let map = read.get("weight_map").and_then(Value::as_object).ok_or_else(|| wrong("has no weight_map"))?;
    let mut names: Vec<String> = vec![];
    for name in map.values() {
        let name = name.as_str().ok_or_else(|| wrong("names a file by something that is no text"))?;
        if name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(wrong("names a file outside its folder"));
        }
        if !names.iter().any(|n| n == name) {
            names.push(name.into());
        }
    }
    names.sort();
    Ok(names)
}
