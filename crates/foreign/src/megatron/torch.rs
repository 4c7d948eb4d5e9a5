//! `--ckpt-format torch`: a file for each (tensor, pipeline, expert) rank. (megatron/training/checkpointing.py.)

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::names::{Name, Part, Split, in_layer, parse, split};
use super::param::{Param, Piece, Unit};
use super::{Contents, Layout, Run, run};
use crate::files::{Blob, Files};
use crate::pickle::{Pickle, Tensor, Value};
use crate::shard::{self, Shard};
use crate::{Error, Result};

/// Entries of a model, and dicts within dicts: one has thousands of parameters, in four levels.
const ENTRIES: usize = 1 << 20;
const LEVELS: usize = 6;
/// Layers, experts, virtual stages at most: more is damage.
const MOST: usize = 1 << 14;

type Tensors = HashMap<String, std::result::Result<Tensor, String>>;

/// Tensors of `model`, `model0`, `model1`, ... by the dict's key and the parameter's, with a slash between.
pub fn tensors(pickle: &Pickle) -> std::result::Result<Tensors, String> {
    let root = pickle.pairs(pickle.root()).ok_or("is no dict, as a checkpoint is")?;
    let (mut all, mut budget) = (HashMap::new(), ENTRIES);
    for (key, value) in root {
        let Some(key) = pickle.text(key).filter(|k| chunk(k).is_some()) else { continue };
        if pickle.pairs(value).is_none() {
            return Err(format!("{key:?} is {} where the model's parameters are expected", pickle.kind(value)));
        }
        collect(pickle, value, &format!("{key}/"), LEVELS, &mut budget, &mut all)?;
    }
    match all.is_empty() {
        true => Err("has no model: neither \"model\" nor \"model0\" has parameters".into()),
        false => Ok(all),
    }
}

/// The number in `model3`; 0 of `model`.
fn chunk(key: &str) -> Option<usize> {
    match key.strip_prefix("model")? {
        "" => Some(0),
        n if n.bytes().all(|b| b.is_ascii_digit()) => n.parse().ok().filter(|n| *n < MOST),
        _ => None,
    }
}

/// Dicts within dicts, as models before megatron-core have them, with dots between.
fn collect(
    pickle: &Pickle,
    v: &Value,
    prefix: &str,
    levels: usize,
    budget: &mut usize,
    all: &mut Tensors,
) -> std::result::Result<(), String> {
    for (key, value) in pickle.pairs(v).unwrap_or_default() {
        *budget = budget.checked_sub(1).ok_or("its model has too many entries")?;
        let Some(key) = pickle.text(key).filter(|k| k.len() < 256) else { continue };
        let name = format!("{prefix}{key}");
        if let Some(t) = pickle.tensor(value) {
            all.insert(name, Ok(t.clone()));
        } else if pickle.pairs(value).is_some() {
            let left = levels.checked_sub(1).ok_or("its model has dicts in too many levels")?;
            collect(pickle, value, &format!("{name}."), left, budget, all)?;
        } else {
            all.insert(name, Err(pickle.kind(value)));
        }
    }
    Ok(())
}

/// (tensor, pipeline, expert) ranks, and which of the two a single second number is.
type Place = (usize, usize, usize);

/// The numbers of `mp_rank_TT[_PPP][_EEE]`.
fn numbers(name: &str) -> Option<Vec<usize>> {
    let all: Option<Vec<usize>> = name.strip_prefix("mp_rank_")?.split('_').map(|n| n.parse().ok()).collect();
    all.filter(|n| n.len() <= 3 && n.iter().all(|n| *n < MOST))
}

/// The folders of the shards.
fn folders(dir: &Path) -> Result<BTreeMap<Vec<usize>, String>> {
    let io = |source| Error::Io { path: dir.into(), source };
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if let Some(numbers) = numbers(&name) {
            all.insert(numbers, name);
        }
    }
    Ok(all)
}

/// A file that is read, and the run that saved it.
fn open(blob: &Blob) -> Result<(Shard, Run)> {
    let (archive, pickle) = shard::open(blob.clone())?;
    let tensors = tensors(&pickle).map_err(|what| archive.wrong(what))?;
    let run = run(&pickle).map_err(|what| archive.wrong(what))?;
    Ok((Shard::new(archive, tensors), run))
}

fn size(arguments: Option<&Map<String, Json>>, name: &str) -> Option<usize> {
    arguments?.get(name)?.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// Reads what there is: which file has what of each parameter.
pub fn contents(dir: &Path) -> Result<Contents> {
    let files = Arc::new(Files::default());
    let folders = folders(dir)?;
    let none = || Error::file(dir, "has no folder mp_rank_XX");
    let first = folders.values().next().ok_or_else(none)?;
    let file = |folder: &str| Blob::whole(&files, dir.join(folder).join("model_optim_rng.pt"));
    let (_, Run { arguments, iteration }) = open(&file(first)?)?;
    let said = |name: &str| size(arguments.as_ref(), name);

    let pipelined = said("pipeline_model_parallel_size").is_none_or(|n| n > 1);
    let mut places = BTreeMap::new();
    for (numbers, folder) in &folders {
        let place: Place = match numbers[..] {
            [t] => (t, 0, 0),
            [t, p] if pipelined => (t, p, 0),
            [t, e] => (t, 0, e),
            [t, p, e] => (t, p, e),
            _ => continue,
        };
        if places.insert(place, folder.clone()).is_some() {
            return Err(Error::file(dir, format!("has two folders for the rank of {folder}")));
        }
    }
    let most = |f: &dyn Fn(&Place) -> usize| places.keys().map(f).max().unwrap_or(0) + 1;
    let layout = Layout {
        tp: said("tensor_model_parallel_size").unwrap_or_else(|| most(&|p| p.0)).clamp(1, MOST),
        pp: most(&|p| p.1),
        ep: most(&|p| p.2),
    };
    if said("pipeline_model_parallel_size").is_some_and(|n| n != layout.pp) {
        let what = format!("has shards of {} pipeline ranks, and arguments of another number", layout.pp);
        return Err(Error::file(dir, what));
    }
    let expert_tp = said("expert_tensor_parallel_size").unwrap_or(layout.tp);
    if layout.ep > 1 && ![1, layout.tp].contains(&expert_tp) {
        let what =
            format!("--expert-tensor-parallel-size {expert_tp} of {} tensor-parallel ranks is not read", layout.tp);
        return Err(Error::file(dir, what));
    }

    let mut c = Contents { layout, iteration, ..Contents::default() };
    let mut units = BTreeMap::new();
    let mut heads = vec![];
    for p in 0..layout.pp {
        let find = |t: usize| (0..layout.ep).map(|e| (t, p, e)).find(|place| places.contains_key(place));
        heads.push(
            find(0).ok_or_else(|| Error::file(dir, format!("has no shard of tensor rank 0, pipeline rank {p}")))?,
        );
    }
    for (place, folder) in &places {
        let blob = file(folder)?;
        units.insert(*place, c.units.len());
        c.units.push(match heads.contains(place) {
            true => Unit::opened(open(&blob)?.0, blob),
            false => Unit::model(blob),
        });
    }
    let group = Group { dir, layout, expert_tp, units };
    let mut params = BTreeMap::new();
    let stages: Vec<Stage> =
        heads.iter().map(|head| Group::stage(&c.units[group.units[head]])).collect::<Result<_>>()?;
    let chunks = stages.iter().map(|s| s.layers.len()).max().unwrap_or(0);
    let mut before = 0;
    // Chunk c of stage p is virtual stage c pp + p.
    for chunk in 0..chunks {
        for (p, stage) in stages.iter().enumerate() {
            for key in stage.keys.iter().filter(|k| k.chunk == chunk) {
                group.param(p, key, before, &mut params)?;
            }
            c.unknown.extend(stage.unknown.iter().cloned());
            before += stage.layers.get(chunk).copied().unwrap_or(0);
        }
    }
    if said("num_layers").is_some_and(|n| n != before) {
        return Err(Error::file(dir, format!("its shards have {before} layers, its arguments another number")));
    }
    c.params = params;
    c.arguments = arguments;
    Ok(c)
}

/// A parameter of a stage's first shard.
struct Key {
    chunk: usize,
    /// The tensor's key.
    tensor: String,
    shape: Vec<usize>,
    name: Name,
    /// Its rows are two halves.
    gated: bool,
    /// Experts of the layer in this shard.
    experts: usize,
}

/// What a stage's first shard has.
struct Stage {
    keys: Vec<Key>,
    /// Layers of each chunk.
    layers: Vec<usize>,
    unknown: Vec<String>,
}

struct Group<'a> {
    dir: &'a Path,
    layout: Layout,
    expert_tp: usize,
    units: BTreeMap<Place, usize>,
}

impl Group<'_> {
    fn stage(unit: &Unit) -> Result<Stage> {
        let shard = unit.shard()?;
        let shapes: HashMap<&str, &[usize]> = shard.shapes().collect();
        let (mut keys, mut layers, mut unknown) = (vec![], BTreeMap::new(), vec![]);
        let mut experts: HashMap<(usize, usize), usize> = HashMap::new();
        for (&key, &shape) in &shapes {
            let Some((model, rest)) = key.split_once('/') else { continue };
            let Some(chunk) = chunk(model) else { continue };
            let name = parse(rest);
            match &name {
                Name::Ignored => continue,
                Name::Unknown => {
                    unknown.push(rest.to_string());
                    continue;
                }
                Name::Plain(_) => {}
                Name::Layer(Some(layer), part) if *layer < MOST => {
                    let n = layers.entry(chunk).or_insert(0);
                    *n = (layer + 1).max(*n);
                    if let Part::Expert(Some(e), _) = part {
                        let n = experts.entry((chunk, *layer)).or_insert(0);
                        *n = (e.min(&MOST) + 1).max(*n);
                    }
                }
                Name::Layer(..) => return Err(shard.wrong(format!("has a parameter of no layer: {rest:?}"))),
            }
            keys.push(Key { chunk, tensor: key.into(), shape: shape.into(), name, gated: false, experts: 0 });
        }
        for key in &mut keys {
            // fc1 has two rows for each column of fc2 where the MLP is gated.
            let of_fc2 =
                |from: &str, to: &str| shapes.get(key.tensor.replacen(from, to, 1).as_str()).and_then(|s| s.get(1));
            let second = [("linear_fc1", "linear_fc2"), ("dense_h_to_4h", "dense_4h_to_h")]
                .into_iter()
                .find(|(from, _)| key.tensor.contains(from))
                .and_then(|(from, to)| {
                    of_fc2(from, to).or_else(|| of_fc2(&format!("{from}.bias"), &format!("{to}.weight")))
                });
            let rows = key.shape.first().copied().unwrap_or(0);
            key.gated = second.is_some_and(|n| n.checked_mul(2) == Some(rows));
            if let Name::Layer(Some(layer), _) = key.name {
                key.experts = experts.get(&(key.chunk, layer)).copied().unwrap_or(0);
            }
        }
        let count = keys.iter().map(|k| k.chunk + 1).max().unwrap_or(0);
        let layers = (0..count).map(|c| layers.get(&c).copied().unwrap_or(0)).collect();
        Ok(Stage { keys, layers, unknown })
    }

    /// The parameter of a key, and of the same key on all expert ranks, with the pieces of all tensor ranks.
    fn param(&self, p: usize, key: &Key, before: usize, all: &mut BTreeMap<String, Param>) -> Result<()> {
        let mut add = |name: String, expert: Option<usize>| -> Result<()> {
            let param = self.pieces(p, key, &name, expert)?;
            // A table shared by two stages is on both, the same numbers.
            all.entry(name).or_insert(param);
            Ok(())
        };
        match &key.name {
            Name::Plain(name) => add(name.clone(), None),
            Name::Layer(Some(layer), part @ Part::Dense(_)) => add(in_layer(before + layer, part, 0), None),
            Name::Layer(Some(layer), part @ Part::Expert(Some(local), _)) => (0..self.layout.ep)
                .try_for_each(|e| add(in_layer(before + layer, part, e * key.experts + local), Some(e))),
            _ => Ok(()),
        }
    }

    fn pieces(&self, p: usize, key: &Key, name: &str, expert: Option<usize>) -> Result<Param> {
        let ranks = if expert.is_some() { self.expert_tp } else { self.layout.tp };
        let how = if ranks == 1 { Split::Whole } else { split(name) };
        let rows = key.shape.first().copied().unwrap_or(1);
        let cols = if key.shape.len() < 2 { 1 } else { key.shape[1..].iter().product() };
        let (mut shape, mut pieces) = (key.shape.clone(), vec![]);
        let whole = rows.checked_mul(ranks).zip(cols.checked_mul(ranks));
        let (all_rows, all_cols) =
            whole.ok_or_else(|| Error::file(self.dir, format!("{name} has an impossible shape {:?}", key.shape)))?;
        let mut add = |t: usize, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>, base: usize| {
            let unit = self.unit(t, p, expert)?;
            pieces.push(Piece { rows, cols, unit, key: key.tensor.clone(), shape: key.shape.clone(), base });
            Ok::<(), Error>(())
        };
        match how {
            Split::Whole => add(0, 0..rows, 0..cols, 0)?,
            Split::Cols => {
                for t in 0..ranks {
                    add(t, 0..rows, t * cols..(t + 1) * cols, 0)?;
                }
                if let Some(last) = shape.last_mut() {
                    *last = all_cols;
                }
            }
            Split::Rows | Split::Halves => {
                let halves = if how == Split::Halves && key.gated { 2 } else { 1 };
                let part = rows / halves;
                for (h, t) in (0..halves).flat_map(|h| (0..ranks).map(move |t| (h, t))) {
                    let first = h * part * ranks + t * part;
                    add(t, first..first + part, 0..cols, h * part * cols)?;
                }
                if let Some(first) = shape.first_mut() {
                    *first = all_rows;
                }
            }
        }
        Ok(Param { shape, pieces })
    }

    /// The unit of a tensor rank, for dense parameters of any expert rank, for an expert rank's of any tensor rank if experts
    /// are not split.
    fn unit(&self, t: usize, p: usize, expert: Option<usize>) -> Result<usize> {
        let found = match expert {
            None => (0..self.layout.ep).find_map(|e| self.units.get(&(t, p, e))),
            Some(e) if self.expert_tp == 1 => (0..self.layout.tp).find_map(|t| self.units.get(&(t, p, e))),
            Some(e) => self.units.get(&(t, p, e)),
        };
        let missing = || {
            let rank = expert.map_or(String::new(), |e| format!(", expert rank {e}"));
            let what = format!("lacks the shard of tensor rank {t}, pipeline rank {p}{rank} (mp_rank_{t:02}...)");
            Error::file(self.dir, what)
        };
        found.copied().ok_or_else(missing)
    }
}
