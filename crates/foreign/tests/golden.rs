//! Checkpoints that Megatron-LM wrote: every parameter, whole and as tensor-parallel ranks of ours hold it, to the bit.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::golden;
use ferrotron_base::{ShardBox, ShardSpec};
use ferrotron_checkpoint::SafetensorsFile;
use ferrotron_foreign::Megatron;

/// What rank `t` of `n` holds of a parameter: rows, columns, or rows of each half.
fn spec(name: &str, shape: &[usize], t: usize, n: usize, gated: bool) -> ShardSpec {
    let is = |parts: &[&str]| parts.iter().any(|p| name.contains(p));
    let rows = |halves: usize| -> Vec<ShardBox> {
        let (half, part) = (shape[0] / halves, shape[0] / halves / n);
        (0..halves).map(|h| ShardBox::rows(shape, h * half + t * part, part)).collect()
    };
    let boxes = if is(&["linear_qkv", "word_embeddings", "output_layer"]) {
        rows(1)
    } else if is(&["linear_fc1"]) {
        rows(if gated { 2 } else { 1 })
    } else if is(&["linear_proj.weight", "linear_fc2.weight"]) {
        let part = shape[1] / n;
        vec![ShardBox { start: vec![0, t * part], len: vec![shape[0], part] }]
    } else {
        vec![ShardBox::whole(shape)]
    };
    ShardSpec { name: name.into(), global: shape.to_vec(), boxes }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every tensor of `full` (names after `prefix`, a later file's before an earlier one's) is what is read, as one rank and as each of two.
fn check(dir: &Path, full: &[PathBuf], prefix: &str) -> usize {
    let checkpoint = Megatron::open(dir, None).unwrap();
    let mut all = BTreeMap::new();
    for full in full.iter().map(|path| SafetensorsFile::open(path).unwrap()) {
        for t in full.tensors() {
            if let Some(name) = t.name.strip_prefix(prefix) {
                all.insert(name.to_string(), (t.shape.clone(), full.read_f32(&t.name).unwrap()));
            }
        }
    }
    let gated = all.keys().any(|k| k.ends_with("fc1.weight")) && !all.keys().any(|k| k.ends_with("fc1.bias"));
    for (name, (shape, want)) in &all {
        for (t, n) in [(0, 1), (0, 2), (1, 2)] {
            let spec = spec(name, shape, t, n, gated);
            let mut got = vec![f32::NAN; spec.local_numel()];
            checkpoint.read_f32(&spec, 0..got.len(), &mut got).unwrap();
            let mut wanted = vec![0.0; got.len()];
            spec.for_each_run(|g, l, n| wanted[l..l + n].copy_from_slice(&want[g..g + n]));
            assert_eq!(bits(&got), bits(&wanted), "{}: {name}, rank {t} of {n}", dir.display());
            // and a range within
            let (first, end) = (got.len() / 3, got.len() - got.len() / 5);
            let mut part = vec![f32::NAN; end - first];
            checkpoint.read_f32(&spec, first..end, &mut part).unwrap();
            assert_eq!(bits(&part), bits(&wanted[first..end]), "{name}, elements {first}..{end}");
        }
    }
    let names: Vec<&str> = checkpoint.parameters().map(|(n, _)| n).filter(|n| !all.contains_key(*n)).collect();
    // a table shared by two stages is saved on both
    assert!(names.iter().all(|n| *n == "output_layer.weight"), "{names:?} are not in the reference");
    all.len()
}

#[test]
fn both_formats_are_read_to_the_bit() {
    for (name, description) in [
        ("llama_torch", "torch, TP 2 x PP 2, iteration 3"),
        ("llama_torch_dist", "torch_dist, TP 2 x PP 2, iteration 3"),
    ] {
        let dir = golden(name);
        assert!(Megatron::is_one(&dir, None), "{name}");
        // 2 of a vocabulary, 1 norm, 4 layers of 6
        assert_eq!(check(&dir, &[golden("llama.safetensors")], ""), 27, "{name}");
        assert_eq!(Megatron::open(&dir, None).unwrap().describe(), description);
    }
    assert!(!Megatron::is_one(&golden("llama_torch"), Some(4)), "--ckpt-step of none");
    assert!(Megatron::is_one(&golden("llama_torch/iter_0000003"), None), "the folder itself");
}

/// A wider set, where there is one: `FERROTRON_MEGATRON_CHECKPOINTS` names a folder with `ckpt/LAYOUT_MODEL_FORMAT` and
/// `full/LAYOUT_MODEL.safetensors`.
#[test]
fn a_wider_set_is_read_to_the_bit() {
    let Some(root) = std::env::var_os("FERROTRON_MEGATRON_CHECKPOINTS").map(PathBuf::from) else { return };
    let mut read = vec![];
    for e in std::fs::read_dir(root.join("ckpt")).unwrap().flatten() {
        let name = e.file_name().to_string_lossy().into_owned();
        let model = name.splitn(3, '_').take(2).collect::<Vec<_>>().join("_");
        let mut full = vec![root.join(format!("full/{model}.safetensors"))];
        full.extend(Some(root.join(format!("full/{name}_differing.safetensors"))).filter(|p| p.is_file()));
        let n = check(&e.path(), &full, "weights.");
        println!("{name}: {n} parameters, {}", Megatron::open(&e.path(), None).unwrap().describe());
        read.push(name);
    }
    assert!(!read.is_empty());
}

#[test]
fn the_arguments_are_the_runs() {
    for name in ["llama_torch", "llama_torch_dist"] {
        let args = Megatron::open(&golden(name), None).unwrap().arguments().unwrap();
        let get = |key: &str| args.get(key).cloned().unwrap_or_default();
        assert_eq!(get("num_layers"), 4);
        assert_eq!(get("padded_vocab_size"), 120);
        assert_eq!(get("swiglu"), true);
        assert_eq!(get("normalization"), "RMSNorm");
        assert_eq!(get("layernorm_epsilon"), 1e-5);
        assert!(args.len() > 500 && !args.contains_key("model_type"), "objects are left out");
    }
}
