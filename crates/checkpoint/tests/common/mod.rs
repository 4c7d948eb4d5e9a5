//! A small model held by simulated ranks: every kind of shard, and values that say which element they are.
#![allow(dead_code)] // each test binary uses its part

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrotron_base::{DType, ShardBox, ShardSpec};
use ferrotron_checkpoint::{Checkpoint, Committed, Common, Entry, Kind, Result, Save, SaveOptions, WorldLayout};
use serde_json::{Map, json};

/// A folder that goes away with the test.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferrotron-ckpt-{}-{n}", std::process::id());
        // In memory where there is such a folder: these tests call fsync thousands of times.
        for base in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            let dir = base.join(&name);
            if std::fs::create_dir_all(&dir).is_ok() {
                return TempDir(dir);
            }
        }
        panic!("no folder for temporary files");
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl std::ops::Deref for TempDir {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What rank `t` of `tp` holds of each tensor: rows, three boxes (fused qkv), columns, a middle dim, replicas.
pub fn specs(t: usize, tp: usize) -> Vec<ShardSpec> {
    let part = |n: usize| (t * n / tp, n / tp);
    let rows = |global: &[usize], spans: &[(usize, usize)]| -> Vec<ShardBox> {
        spans.iter().map(|&(first, n)| ShardBox::rows(global, first + part(n).0, part(n).1)).collect()
    };
    let dim = |global: &[usize], d: usize| {
        let mut b = ShardBox::whole(global);
        (b.start[d], b.len[d]) = part(global[d]);
        vec![b]
    };
    let spec = |name: &str, global: &[usize], boxes| ShardSpec { name: name.into(), global: global.to_vec(), boxes };
    vec![
        spec("embedding.weight", &[48, 8], rows(&[48, 8], &[(0, 48)])),
        spec("qkv.weight", &[72, 8], rows(&[72, 8], &[(0, 48), (48, 12), (60, 12)])),
        spec("qkv.bias", &[72], rows(&[72], &[(0, 48), (48, 12), (60, 12)])),
        spec("proj.weight", &[8, 48], dim(&[8, 48], 1)),
        spec("conv.weight", &[6, 12, 5], dim(&[6, 12, 5], 1)),
        ShardSpec::whole("norm.weight", &[8]),
        ShardSpec::whole("scale", &[]),
    ]
}

/// Value of element `flat` of a tensor, different for each (kind, name, version).
pub fn value(kind: Kind, name: &str, version: u64, flat: usize) -> f32 {
    let salt = name.bytes().fold(kind as u64 + 31 * version, |h, b| (h * 131 + u64::from(b)) % 9973);
    (salt * 1000 + flat as u64) as f32
}

/// The local copy by the definition in `base` (independent of this crate's geometry).
pub fn local(kind: Kind, spec: &ShardSpec, version: u64) -> Vec<f32> {
    let mut out = vec![f32::NAN; spec.local_numel()];
    spec.for_each_run(|g, l, n| (0..n).for_each(|i| out[l + i] = value(kind, &spec.name, version, g + i)));
    out
}

/// Share `d` of `dp` of a local copy: unequal, cutting rows, as flat buffers do.
pub fn share(n: usize, d: usize, dp: usize) -> Range<usize> {
    let cut = |d: usize| if d == dp { n } else { (n * d / dp + d).min(n) };
    cut(d)..cut(d + 1)
}

pub fn common_state(iteration: u64, tp: usize, dp: usize) -> Common {
    let obj = |v: serde_json::Value| v.as_object().cloned().unwrap_or_else(Map::new);
    Common {
        iteration,
        consumed_samples: iteration * 16,
        layout: WorldLayout {
            world_size: tp * dp,
            tensor_model_parallel_size: tp,
            data_parallel_size: dp,
            ..WorldLayout::single()
        },
        arguments: obj(json!({"num_layers": 2, "lr": 1.5e-4, "bf16": true, "save": null})),
        state: obj(json!({"opt_param_scheduler": {"num_steps": iteration * 16}, "loss_scale": 65536.0})),
    }
}

pub struct World {
    pub tp: usize,
    pub dp: usize,
    /// Goes into every value.
    pub version: u64,
}

impl World {
    /// Parameters once per tensor rank, optimizer state in ranges over the data-parallel ranks (ZeRO-1).
    pub fn save(&self, root: &Path, iteration: u64, unique: &str, options: &SaveOptions) -> Result<Committed> {
        let save = Save::begin(root, iteration, unique, options.clone())?;
        for rank in 0..self.tp * self.dp {
            self.write_rank(&save, rank)?;
        }
        save.commit(common_state(iteration, self.tp, self.dp), 0..self.tp * self.dp)
    }

    pub fn write_rank(&self, save: &Save, rank: usize) -> Result<()> {
        let (t, d) = (rank % self.tp, rank / self.tp);
        let mut held = vec![];
        for spec in specs(t, self.tp) {
            let n = spec.local_numel();
            if d == 0 {
                held.push((Kind::Param, spec.clone(), 0..n, local(Kind::Param, &spec, self.version)));
            }
            for kind in [Kind::ExpAvg, Kind::ExpAvgSq] {
                let range = share(n, d, self.dp);
                let data = local(kind, &spec, self.version)[range.clone()].to_vec();
                held.push((kind, spec.clone(), range, data));
            }
        }
        let entries = held
            .iter()
            .filter(|(_, _, range, _)| !range.is_empty())
            .map(|(kind, spec, range, data)| Entry { range: range.clone(), ..Entry::f32(*kind, spec.clone(), data) });
        save.write_shard(rank, entries.collect())
    }

    /// Loads everything as this world's ranks would and compares each element.
    pub fn check(&self, ckpt: &Checkpoint) -> Result<()> {
        for rank in 0..self.tp * self.dp {
            let (t, d) = (rank % self.tp, rank / self.tp);
            for spec in specs(t, self.tp) {
                for kind in [Kind::Param, Kind::ExpAvg, Kind::ExpAvgSq] {
                    let n = spec.local_numel();
                    let range = if kind == Kind::Param { 0..n } else { share(n, d, self.dp) };
                    let mut got = vec![f32::NAN; range.len()];
                    ckpt.read_f32(&spec, range.clone(), kind, &mut got)?;
                    let want = &local(kind, &spec, self.version)[range.clone()];
                    assert_eq!(got, want, "{kind} {} {range:?} on rank {rank}", spec.name);
                }
            }
        }
        Ok(())
    }
}

pub fn bytes_of(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// One rank's checkpoint of one tensor.
pub fn save_one(root: &Path, spec: &ShardSpec, dtype: DType, data: &[u8]) {
    let save = Save::begin(root, 1, "t", SaveOptions::default()).unwrap();
    let data = ferrotron_checkpoint::Source::Bytes(data);
    let entry = Entry { kind: Kind::Param, spec: spec.clone(), range: 0..spec.local_numel(), dtype, data };
    save.write_shard(0, vec![entry]).unwrap();
    save.commit(common_state(1, 1, 1), [0]).unwrap();
}
