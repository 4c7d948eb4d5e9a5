//! `--ckpt-format torch_dist`: torch.distributed.checkpoint's metadata and files, names as megatron-core stacks them.
//! (megatron/core/dist_checkpointing/strategies/torch.py; torch/distributed/checkpoint/filesystem.py.)

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::names::{Name, Part, in_layer, parse};
use super::param::{Param, Piece, Unit};
use super::{Contents, Layout, run};
use crate::files::{Blob, Files, length};
use crate::pickle::{Pickle, Value, load};
use crate::{Error, Result, shard};

/// Most bytes of `.metadata`.
const METADATA: u64 = 1 << 30;
/// Pieces of parameters at most.
const PIECES: usize = 1 << 22;

/// Where a value lies.
struct Stored {
    file: String,
    start: u64,
    len: u64,
}

/// Of a state's key: everything that concerns no weight.
fn is_weight(key: &str) -> bool {
    !["optimizer", "chained_", "rng_state", "rerun_state", "opt_param_scheduler"].iter().any(|p| key.starts_with(p))
}

/// Reads what there is: which file has what of each parameter.
pub fn contents(dir: &Path) -> Result<Contents> {
    let files = Arc::new(Files::default());
    let blob = Blob::whole(&files, dir.join(".metadata"))?;
    if blob.len() > METADATA {
        return Err(blob.wrong(format!("has {} bytes; at most {METADATA} are read", blob.len())));
    }
    let mut bytes = vec![0; blob.len() as usize];
    blob.read(0, &mut bytes)?;
    let pickle = load(&bytes).map_err(|what| blob.wrong(what))?;
    drop(bytes);
    let wrong = |what: &str| blob.wrong(format!("is no metadata of torch.distributed.checkpoint: {what}"));
    let root = pickle.root();
    let states = pickle.get(root, "state_dict_metadata").and_then(|v| pickle.pairs(v));
    let states = states.ok_or_else(|| wrong("it has no state_dict_metadata"))?;
    let stored = stored(&pickle).map_err(|what| wrong(&what))?;

    let mut c = Contents::default();
    let mut common = None;
    let reader = Reader {
        dir,
        files: &files,
        pickle: &pickle,
        stored: &stored,
        lengths: RefCell::default(),
        left: Cell::new(PIECES),
    };
    for (key, value) in states {
        let Some(key) = pickle.text(key).filter(|k| is_weight(k)) else { continue };
        if key.starts_with("common_state") {
            common = Some(reader.blob(key, &[])?);
        } else {
            reader.param(key, value, &mut c)?;
        }
    }
    // Megatron-LM until core 0.18 has what is not sharded in a file of its own.
    let separate = dir.join("common.pt");
    let common = match common {
        Some(blob) => Some(blob),
        None if separate.is_file() => Some(Blob::whole(&files, separate)?),
        None => None,
    };
    if let Some(blob) = common {
        let (archive, pickle) = shard::open(blob)?;
        let run = run(&pickle).map_err(|what| archive.wrong(what))?;
        (c.arguments, c.iteration) = (run.arguments, run.iteration);
    }
    let said = |name: &str| c.arguments.as_ref()?.get(name)?.as_u64();
    let size = |name: &str| said(name).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    c.layout = Layout {
        tp: size("tensor_model_parallel_size"),
        pp: size("pipeline_model_parallel_size"),
        ep: size("expert_model_parallel_size"),
    };
    Ok(c)
}

/// What `storage_data` says, by key and offsets.
fn stored(pickle: &Pickle) -> std::result::Result<HashMap<(String, Vec<usize>), Stored>, String> {
    let pairs = pickle.get(pickle.root(), "storage_data").and_then(|v| pickle.pairs(v));
    let mut all = HashMap::new();
    for (index, info) in pairs.ok_or("it has no storage_data")? {
        let key = pickle.get(index, "fqn").and_then(|v| pickle.text(v)).ok_or("an index without a name")?;
        if !is_weight(key) {
            continue;
        }
        let damaged = || format!("where {key:?} lies");
        let offset = match pickle.get(index, "offset") {
            None | Some(Value::None) => vec![],
            Some(v) => pickle.sizes(v).ok_or_else(damaged)?,
        };
        let number = |name: &str| u64::try_from(pickle.int(pickle.get(info, name)?)?).ok();
        let file = pickle.get(info, "relative_path").and_then(|v| pickle.text(v)).ok_or_else(damaged)?;
        if file.contains(['/', '\\']) || file.starts_with("..") {
            return Err(format!("{key:?} lies in {file:?}, outside of the folder"));
        }
        if pickle.get(info, "transform_descriptors").is_some_and(|v| *v != Value::None) {
            return Err(format!("{key:?} is stored compressed, which is not read"));
        }
        let (start, len) = number("offset").zip(number("length")).ok_or_else(damaged)?;
        all.insert((key.into(), offset), Stored { file: file.into(), start, len });
    }
    Ok(all)
}

struct Reader<'a> {
    dir: &'a Path,
    files: &'a Arc<Files>,
    pickle: &'a Pickle,
    stored: &'a HashMap<(String, Vec<usize>), Stored>,
    /// Of files.
    lengths: RefCell<HashMap<String, u64>>,
    /// Pieces that may still come.
    left: Cell<usize>,
}

impl Reader<'_> {
    fn wrong(&self, what: String) -> Error {
        Error::file(&self.dir.join(".metadata"), what)
    }

    fn blob(&self, key: &str, offset: &[usize]) -> Result<Blob> {
        let at = self.stored.get(&(key.to_string(), offset.to_vec()));
        let at = at.ok_or_else(|| self.wrong(format!("does not say where {key:?} at {offset:?} lies")))?;
        let path = self.dir.join(&at.file);
        // Thousands of parts lie in a file: it is asked for its length once.
        let known = self.lengths.borrow().get(&at.file).copied();
        let there = match known {
            Some(there) => there,
            None => {
                let there = length(&path)?;
                self.lengths.borrow_mut().insert(at.file.clone(), there);
                there
            }
        };
        Blob::part(self.files, path, there, at.start, at.len)
    }

    /// A key's parameter, or those of all layers and experts.
    fn param(&self, key: &str, value: &Value, c: &mut Contents) -> Result<()> {
        let pickle = self.pickle;
        let Some(chunks) = pickle.get(value, "chunks").and_then(|v| pickle.items(v)) else {
            return Ok(()); // no tensor
        };
        let name = match parse(key) {
            Name::Ignored => return Ok(()),
            Name::Unknown => {
                c.unknown.insert(key.into());
                return Ok(());
            }
            name => name,
        };
        let size = pickle.get(value, "size").and_then(|v| pickle.sizes(v));
        let size = size.ok_or_else(|| self.wrong(format!("does not say the size of {key:?}")))?;
        // Leading dims that count layers and experts.
        let (layers, experts) = match &name {
            Name::Layer(index, part) => (index.is_none(), matches!(part, Part::Expert(None, _))),
            _ => (false, false),
        };
        let lead = usize::from(layers) + usize::from(experts);
        let odd = || self.wrong(format!("{key:?} has size {size:?}"));
        if size.len() <= lead || size.len() > lead + 2 {
            return Err(odd());
        }
        size.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).ok_or_else(odd)?;
        let mut params: BTreeMap<String, Param> = BTreeMap::new();
        for chunk in chunks {
            let of =
                |what: &str| pickle.get(chunk, what).and_then(|v| pickle.sizes(v)).filter(|s| s.len() == size.len());
            let (at, len) = of("offsets").zip(of("sizes")).ok_or_else(odd)?;
            let inside = |d: usize| at[d].checked_add(len[d]).is_some_and(|end| end <= size[d]);
            if !(0..size.len()).all(inside) {
                return Err(self.wrong(format!("{key:?} of size {size:?} has a part {len:?} at {at:?}")));
            }
            if len.contains(&0) {
                continue;
            }
            let stacked: usize = len[..lead].iter().product();
            let left = self.left.get().checked_sub(stacked);
            self.left.set(left.ok_or_else(|| self.wrong("has too many parts".into()))?);
            let unit = c.units.len();
            c.units.push(Unit::tensor(self.blob(key, &at)?));
            let box_of = |d: usize| if d < size.len() { at[d]..at[d] + len[d] } else { 0..1 };
            let numel: usize = len[lead..].iter().product();
            for i in 0..stacked {
                let name = match &name {
                    Name::Plain(name) => name.clone(),
                    Name::Layer(index, part) => {
                        let per_layer = if experts { len[lead - 1] } else { 1 };
                        let layer = index.unwrap_or_else(|| at[0] + i / per_layer);
                        let expert = match part {
                            Part::Expert(Some(e), _) => *e,
                            Part::Expert(None, _) => at[lead - 1] + i % per_layer,
                            Part::Dense(_) => 0,
                        };
                        in_layer(layer, part, expert)
                    }
                    _ => continue,
                };
                let param =
                    params.entry(name).or_insert_with(|| Param { shape: size[lead..].to_vec(), pieces: vec![] });
                let (rows, cols) = (box_of(lead), box_of(lead + 1));
                let (key, shape, base) = (String::new(), len.clone(), i * numel);
                param.pieces.push(Piece { rows, cols, unit, key, shape, base });
            }
        }
        c.params.append(&mut params);
        Ok(())
    }
}
