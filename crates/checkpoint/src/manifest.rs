//! The JSON files of a checkpoint: `manifest.json` (once) and `shard_RRRRR.json` (one a rank).
//!
//! Both are an envelope `{format, version, checksum, body}`; the checksum covers the body as written, so that a flipped
//! byte or a careless edit is an error and not another number. Nothing in them depends on the clock: the same state
//! gives the same bytes.

use std::path::Path;

use ferrotron_base::{DType, ShardBox, ShardSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::checksum::Checksum;
use crate::layout::{self, MANIFEST};
use crate::{Error, Kind, Result, geometry};

/// Version of both files. Raised when an old program could misread a new file.
pub const VERSION: u32 = 1;

/// Longest JSON file that is read.
const MAX_JSON: u64 = 256 << 20;

const MANIFEST_FORMAT: &str = "ferrotron-checkpoint";
const SHARD_FORMAT: &str = "ferrotron-shard";

/// How many ranks saved, and how they were arranged. For the reader's information: loading does not need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldLayout {
    /// All ranks.
    pub world_size: usize,
    /// `--tensor-model-parallel-size`
    pub tensor_model_parallel_size: usize,
    /// `--pipeline-model-parallel-size`
    pub pipeline_model_parallel_size: usize,
    /// `--context-parallel-size`
    pub context_parallel_size: usize,
    /// `--expert-model-parallel-size`
    pub expert_model_parallel_size: usize,
    /// Data-parallel size.
    pub data_parallel_size: usize,
}

impl WorldLayout {
    /// One rank.
    pub fn single() -> WorldLayout {
        WorldLayout {
            world_size: 1,
            tensor_model_parallel_size: 1,
            pipeline_model_parallel_size: 1,
            context_parallel_size: 1,
            expert_model_parallel_size: 1,
            data_parallel_size: 1,
        }
    }
}

/// State that all ranks share: everything but tensors.
///
/// Numbers keep their bits (u64 and f64 round-trip), but JSON has no NaN or infinity: store such floats as `to_bits()`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    /// Iterations done.
    pub iteration: u64,
    /// Training samples consumed.
    pub consumed_samples: u64,
    /// How the writing ranks were arranged.
    pub layout: WorldLayout,
    /// The run's arguments by Megatron's names, for `--use-checkpoint-args`.
    pub arguments: Map<String, Value>,
    /// Scheduler, loss scaler, random numbers, data position: whatever the training loop needs to go on.
    pub state: Map<String, Value>,
}

/// Body of `manifest.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub common: Common,
    pub shards: Vec<ShardFile>,
}

/// A rank's two files.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardFile {
    pub rank: usize,
    pub file: String,
    pub bytes: u64,
    pub checksum: String,
    pub index: String,
    pub index_checksum: String,
}

/// Body of `shard_RRRRR.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardIndex {
    pub rank: usize,
    pub iteration: u64,
    /// Length and checksum of the safetensors file.
    pub bytes: u64,
    pub checksum: String,
    pub entries: Vec<IndexEntry>,
}

/// Where an entry of a shard belongs in its global tensor.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IndexEntry {
    /// Name inside the safetensors file.
    pub key: String,
    pub kind: String,
    pub name: String,
    pub dtype: String,
    /// Shape of the whole tensor.
    pub global: Vec<usize>,
    /// Boxes that, one after another, make the rank's local copy.
    pub boxes: Vec<IndexBox>,
    /// First element and number of elements, counted in the local copy.
    pub range: (usize, usize),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IndexBox {
    pub start: Vec<usize>,
    pub len: Vec<usize>,
}

impl IndexEntry {
    pub fn new(e: &crate::Entry<'_>) -> IndexEntry {
        let boxes = e.spec.boxes.iter().map(|b| IndexBox { start: b.start.clone(), len: b.len.clone() }).collect();
        IndexEntry {
            key: e.key(),
            kind: e.kind.name().into(),
            name: e.spec.name.clone(),
            dtype: e.dtype.name().into(),
            global: e.spec.global.clone(),
            boxes,
            range: (e.range.start, e.range.len()),
        }
    }

    /// The entry in checked types. All sizes are known to be addressable afterwards.
    pub fn check(self) -> std::result::Result<CheckedEntry, String> {
        let name = &self.name;
        let kind = Kind::parse(&self.kind).ok_or_else(|| format!("{name:?} has the unknown kind {:?}", self.kind))?;
        let dtype =
            DType::parse(&self.dtype).ok_or_else(|| format!("{name:?} has the unknown type {:?}", self.dtype))?;
        let boxes = self.boxes.into_iter().map(|b| ShardBox { start: b.start, len: b.len }).collect();
        let spec = ShardSpec { name: self.name, global: self.global, boxes };
        let local = geometry::check_spec(&spec, dtype).map_err(|why| format!("{:?}: {why}", spec.name))?;
        let (first, len) = self.range;
        let end = first.checked_add(len).filter(|&end| end <= local);
        let end = end.ok_or_else(|| format!("{:?}: range {first}+{len} of a local copy of {local}", spec.name))?;
        Ok(CheckedEntry { key: self.key, kind, spec, range: first..end, dtype })
    }
}

/// An [`IndexEntry`] that makes sense by itself.
pub(crate) struct CheckedEntry {
    pub key: String,
    pub kind: Kind,
    pub spec: ShardSpec,
    pub range: std::ops::Range<usize>,
    pub dtype: DType,
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    format: &'a str,
    version: u32,
    checksum: &'a str,
    #[serde(borrow)]
    body: &'a RawValue,
}

fn seal(format: &str, body: &RawValue) -> std::result::Result<String, serde_json::Error> {
    let checksum = Checksum::of(body.get().as_bytes()).to_string();
    serde_json::to_string(&Envelope { format, version: VERSION, checksum: &checksum, body }).map(|s| s + "\n")
}

fn encode(format: &str, body: &impl Serialize, pretty: bool, path: &Path) -> Result<String> {
    let text = if pretty { serde_json::to_string_pretty(body) } else { serde_json::to_string(body) };
    text.and_then(RawValue::from_string).and_then(|raw| seal(format, &raw)).map_err(|e| Error::Io {
        doing: "encode",
        path: path.into(),
        source: e.into(),
    })
}

fn decode<T: DeserializeOwned>(format: &str, path: &Path, text: &[u8]) -> Result<T> {
    let bad = |why: String| Error::damaged(path, why);
    let text = str::from_utf8(text).map_err(|e| bad(format!("it is no text: {e}")))?;
    let envelope: Envelope<'_> = serde_json::from_str(text).map_err(|e| bad(format!("it is no {format} file: {e}")))?;
    if envelope.format != format {
        return Err(bad(format!("it is a {:?} file, not {format:?}", envelope.format)));
    }
    if envelope.version > VERSION {
        return Err(Error::NewerVersion {
            path: path.into(),
            found: envelope.version.into(),
            supported: VERSION.into(),
        });
    }
    let sum = Checksum::of(envelope.body.get().as_bytes()).to_string();
    if envelope.checksum != sum {
        return Err(bad(format!(
            "its body has checksum {sum} but it says {} (truncated or edited?)",
            envelope.checksum
        )));
    }
    // What the checksum does not cover must be as this program writes it.
    if seal(format, envelope.body).ok().as_deref() != Some(text) {
        return Err(bad("its envelope is not as written by this program".into()));
    }
    serde_json::from_str(envelope.body.get()).map_err(|e| bad(format!("its body does not fit: {e}")))
}

impl Manifest {
    pub fn encode(&self, path: &Path) -> Result<String> {
        encode(MANIFEST_FORMAT, self, true, path)
    }

    /// Reads and checks `folder/manifest.json`.
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        let m: Manifest = decode(MANIFEST_FORMAT, &path, &layout::read_limited(&path, MAX_JSON)?)?;
        for (i, s) in m.shards.iter().enumerate() {
            // Names follow from the rank: a manifest cannot point outside its folder.
            if s.file != layout::shard_file(s.rank) || s.index != layout::shard_index(s.rank) {
                return Err(Error::damaged(
                    &path,
                    format!("rank {} with files {:?} and {:?}", s.rank, s.file, s.index),
                ));
            }
            if i > 0 && m.shards[i - 1].rank >= s.rank {
                return Err(Error::damaged(&path, format!("shards out of order at rank {}", s.rank)));
            }
        }
        Ok(m)
    }
}

impl ShardIndex {
    pub fn encode(&self, path: &Path) -> Result<String> {
        encode(SHARD_FORMAT, self, false, path)
    }

    /// Reads and checks a shard's index, and gives the checksum of the file.
    pub fn read(path: &Path) -> Result<(ShardIndex, Checksum)> {
        let bytes = layout::read_limited(path, MAX_JSON)?;
        Ok((decode(SHARD_FORMAT, path, &bytes)?, Checksum::of(&bytes)))
    }
}
