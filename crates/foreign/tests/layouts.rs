//! Layouts and ages that no golden checkpoint has, made here: each element says where in the whole it belongs.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Py, Temp, dict, s, torch_file, write};
use ferrotron_base::ShardSpec;
use ferrotron_foreign::Megatron;

/// A whole model, by our names.
type Whole = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

const LAYERS: usize = 4;
const H: usize = 4;
const F: usize = 8;
const V: usize = 12;

/// A gated model; with `experts` of them in each layer.
fn whole(experts: usize) -> Whole {
    let mut all = Whole::new();
    let mut next = 1.0;
    let mut add = |name: String, shape: &[usize]| {
        let n: usize = shape.iter().product();
        all.insert(name, (shape.to_vec(), (0..n).map(|i| next + i as f32).collect()));
        next += n as f32;
    };
    add("embedding.word_embeddings.weight".into(), &[V, H]);
    add("output_layer.weight".into(), &[V, H]);
    add("decoder.final_layernorm.weight".into(), &[H]);
    for l in 0..LAYERS {
        let at = |name: &str| format!("decoder.layers.{l}.{name}");
        add(at("input_layernorm.weight"), &[H]);
        add(at("pre_mlp_layernorm.weight"), &[H]);
        add(at("self_attention.linear_qkv.weight"), &[3 * H, H]);
        add(at("self_attention.linear_qkv.bias"), &[3 * H]);
        add(at("self_attention.linear_proj.weight"), &[H, H]);
        let mlps: Vec<String> = match experts {
            0 => vec![at("mlp")],
            n => (0..n).map(|e| at(&format!("mlp.experts.local_experts.{e}"))).collect(),
        };
        for mlp in mlps {
            add(format!("{mlp}.linear_fc1.weight"), &[2 * F, H]);
            add(format!("{mlp}.linear_fc2.weight"), &[H, F]);
        }
    }
    all
}

/// What tensor rank `t` of `n` has, by Megatron's rules.
fn part(name: &str, (shape, v): &(Vec<usize>, Vec<f32>), t: usize, n: usize) -> (Vec<usize>, Vec<f32>) {
    let cols = shape.get(1).copied().unwrap_or(1);
    let rows = |first: usize, count: usize| v[first * cols..(first + count) * cols].to_vec();
    let part = shape[0] / n;
    if name.contains("linear_fc1") {
        let half = shape[0] / 2;
        let mut gate = rows(t * half / n, half / n);
        gate.extend(rows(half + t * half / n, half / n));
        (vec![part, cols], gate)
    } else if ["qkv", "word_emb", "output_layer"].iter().any(|p| name.contains(p)) {
        let shape = if shape.len() == 1 { vec![part] } else { vec![part, cols] };
        (shape, rows(t * part, part))
    } else if ["proj", "fc2"].iter().any(|p| name.contains(p)) {
        let width = cols / n;
        let of = |r: usize| v[r * cols + t * width..r * cols + (t + 1) * width].to_vec();
        (vec![shape[0], width], (0..shape[0]).flat_map(of).collect())
    } else {
        (shape.clone(), v.clone())
    }
}

/// How ranks and chunks divide the model.
#[derive(Clone, Copy)]
struct Layout {
    tp: usize,
    pp: usize,
    vpp: usize,
    ep: usize,
    /// Tensor-parallel ranks of an expert.
    etp: usize,
    experts: usize,
}

/// Writes a checkpoint; `rename` gives the name in the files.
fn save(dir: &Path, all: &Whole, l: Layout, rename: &dyn Fn(&str) -> String) {
    let per_chunk = LAYERS / (l.pp * l.vpp);
    let per_rank = if l.experts > 0 { l.experts / l.ep } else { 0 };
    for (t, p, e) in (0..l.tp).flat_map(|t| (0..l.pp).flat_map(move |p| (0..l.ep).map(move |e| (t, p, e)))) {
        // whole experts: each tensor rank is an expert rank of its own
        if l.etp < l.tp && t % l.ep != e {
            continue;
        }
        let (mut floats, mut models) = (vec![], vec![]);
        for chunk in 0..l.vpp {
            let stage = chunk * l.pp + p;
            let mut items = vec![];
            for (name, value) in all {
                let local = match name.strip_prefix("decoder.layers.") {
                    Some(rest) => {
                        let (n, rest) = rest.split_once('.').unwrap();
                        let n: usize = n.parse().unwrap();
                        if n / per_chunk != stage {
                            continue;
                        }
                        format!("decoder.layers.{}.{rest}", n % per_chunk)
                    }
                    None if name.starts_with("embedding") && stage != 0 => continue,
                    None if !name.starts_with("embedding") && stage + 1 != l.pp * l.vpp => continue,
                    None => name.clone(),
                };
                let expert =
                    name.split_once("local_experts.").map(|(_, r)| r.split('.').next().unwrap().parse::<usize>());
                let (local, (shape, values)) = match expert {
                    Some(n) => {
                        let n = n.unwrap();
                        if n / per_rank != e {
                            continue;
                        }
                        let to = local.replace(&format!("experts.{n}."), &format!("experts.{}.", n % per_rank));
                        (to, part(name, value, t % l.etp, l.etp))
                    }
                    None => (local, part(name, value, t, l.tp)),
                };
                items.push((rename(&local), Py::Tensor(floats.len(), shape)));
                items.push((format!("{local}._extra_state"), Py::None));
                floats.extend(values);
            }
            let key = if l.vpp > 1 { format!("model{chunk}") } else { "model".into() };
            models.push((key, Py::Dict(items)));
        }
        let int = |n: usize| Py::Int(n as i64);
        let args = [
            ("tensor_model_parallel_size", int(l.tp)),
            ("pipeline_model_parallel_size", int(l.pp)),
            ("expert_tensor_parallel_size", int(l.etp)),
            ("num_layers", int(LAYERS)),
            ("save", s("ckpt")),
        ];
        models.push(("args".into(), Py::Namespace(args.iter().map(|(k, v)| (k.to_string(), v.clone())).collect())));
        models.push(("checkpoint_version".into(), Py::Float(3.0)));
        models.push(("iteration".into(), Py::Int(7)));
        let pp = if l.pp > 1 { format!("_{p:03}") } else { String::new() };
        let ep = if l.ep > 1 { format!("_{e:03}") } else { String::new() };
        let file = format!("iter_0000007/mp_rank_{t:02}{pp}{ep}/model_optim_rng.pt");
        write(dir, &file, &torch_file(&Py::Dict(models), &floats));
    }
    write(dir, "latest_checkpointed_iteration.txt", b"7");
}

fn check(dir: &Path, all: &Whole, what: &str) {
    let checkpoint = Megatron::open(dir, None).unwrap();
    assert_eq!(checkpoint.parameters().count(), all.len(), "{what}");
    for (name, (shape, want)) in all {
        let mut got = vec![0.0; want.len()];
        checkpoint.read_f32(&ShardSpec::whole(name.clone(), shape), 0..want.len(), &mut got).unwrap();
        assert_eq!(&got, want, "{what}: {name}");
    }
}

#[test]
fn every_layout() {
    let dense = Layout { tp: 1, pp: 1, vpp: 1, ep: 1, etp: 1, experts: 0 };
    let moe = Layout { experts: 4, ..dense };
    for (i, l) in [
        dense,
        Layout { tp: 4, etp: 4, ..dense },
        Layout { pp: 4, ..dense },
        Layout { tp: 2, etp: 2, pp: 2, vpp: 2, ..dense },
        Layout { pp: 1, vpp: 4, ..dense },
        Layout { ep: 2, ..moe },
        Layout { ep: 4, pp: 2, ..moe },
        Layout { tp: 2, etp: 2, ep: 2, pp: 2, vpp: 2, ..moe },
        Layout { tp: 2, etp: 1, ep: 2, ..moe },
        Layout { tp: 4, etp: 1, ep: 2, pp: 2, ..moe },
        Layout { tp: 2, etp: 2, ..moe },
    ]
    .into_iter()
    .enumerate()
    {
        let t = Temp::new(&format!("layout{i}"));
        let all = whole(l.experts);
        save(&t.0, &all, l, &str::to_string);
        check(&t.0, &all, &format!("layout {i}"));
    }
}

/// Names of fused layers and grouped experts, and of the models before megatron-core.
#[test]
fn every_age_of_names() {
    let fused = |name: &str| {
        name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
            .replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
    };
    let grouped = |name: &str| match name.split_once("local_experts.") {
        Some((before, rest)) => {
            let (n, tail) = rest.split_once('.').unwrap();
            format!("{before}{tail}{n}")
        }
        None => name.to_string(),
    };
    let old = |name: &str| {
        let within = [
            ("decoder.layers", "language_model.encoder.layers"),
            ("decoder.final_layernorm", "language_model.encoder.final_norm"),
            ("embedding", "language_model.embedding"),
            ("output_layer", "language_model.output_layer"),
            ("input_layernorm", "input_norm"),
            ("pre_mlp_layernorm", "post_attention_norm"),
            ("linear_qkv", "query_key_value"),
            ("linear_proj", "dense"),
            ("linear_fc1", "dense_h_to_4h"),
            ("linear_fc2", "dense_4h_to_h"),
        ];
        within
            .iter()
            .fold(name.replace("word_embeddings", "word_EMB"), |n, (a, b)| n.replacen(a, b, 1))
            .replace("EMB", "embeddings")
    };
    let l = Layout { tp: 2, pp: 2, vpp: 1, ep: 1, etp: 2, experts: 0 };
    for (what, experts, rename) in
        [("fused", 0, &fused as &dyn Fn(&str) -> String), ("grouped", 4, &grouped), ("old", 0, &old)]
    {
        let t = Temp::new(&format!("names-{what}"));
        let all = whole(experts);
        save(&t.0, &all, Layout { experts, ..l }, rename);
        check(&t.0, &all, what);
    }
}

/// Dicts within dicts, and a table that the last stage has again.
#[test]
fn nested_dicts_are_names_with_dots() {
    let t = Temp::new("nested");
    let table = |first| dict(&[("weight", Py::Tensor(first, vec![3, 2]))]);
    let model = dict(&[
        ("language_model", dict(&[("embedding", dict(&[("word_embeddings", table(0))]))])),
        ("word_embeddings_for_head", table(0)),
    ]);
    let file = torch_file(&dict(&[("model", model), ("checkpoint_version", Py::Int(2))]), &[1., 2., 3., 4., 5., 6.]);
    write(&t.0, "release/mp_rank_00/model_optim_rng.pt", &file);
    write(&t.0, "latest_checkpointed_iteration.txt", b"release");
    let c = Megatron::open(&t.0, None).unwrap();
    assert_eq!((c.iteration(), c.describe()), (None, "torch, TP 1 x PP 1".to_string()));
    assert!(c.arguments().unwrap_err().to_string().contains("has no arguments"));
    // more rows than there are: copies of the last; fewer: the first
    for (rows, want) in [(2, vec![1., 2., 3., 4.]), (5, vec![1., 2., 3., 4., 5., 6., 5., 6., 5., 6.])] {
        let spec = ShardSpec::whole("embedding.word_embeddings.weight", &[rows, 2]);
        let mut got = vec![0.0; rows * 2];
        c.read_f32(&spec, 0..rows * 2, &mut got).unwrap();
        assert_eq!(got, want);
    }
    let wrong = ShardSpec::whole("embedding.word_embeddings.weight", &[3, 4]);
    let e = c.read_f32(&wrong, 0..12, &mut [0.0; 12]).unwrap_err().to_string();
    assert!(e.contains("has shape [3, 2] there, [3, 4] in this model"), "{e}");
    let e = c.read_f32(&ShardSpec::whole("x", &[1]), 0..1, &mut [0.0]).unwrap_err().to_string();
    assert!(e.contains("has no parameter x"), "{e}");
}

/// A shard that is not there, and layers that do not add up.
#[test]
fn an_incomplete_checkpoint_is_told() {
    let l = Layout { tp: 2, pp: 2, vpp: 1, ep: 1, etp: 2, experts: 0 };
    let t = Temp::new("incomplete");
    save(&t.0, &whole(0), l, &str::to_string);
    let gone = t.0.join("iter_0000007/mp_rank_01_001");
    let bytes = std::fs::read(gone.join("model_optim_rng.pt")).unwrap();
    std::fs::remove_dir_all(&gone).unwrap();
    let e = Megatron::open(&t.0, None).unwrap_err().to_string();
    assert!(e.contains("lacks the shard of tensor rank 1, pipeline rank 1"), "{e}");
    write(&t.0, "iter_0000007/mp_rank_01_001/model_optim_rng.pt", &bytes);
    Megatron::open(&t.0, None).unwrap();
    for rank in ["00_001", "01_001"] {
        std::fs::remove_dir_all(t.0.join(format!("iter_0000007/mp_rank_{rank}"))).unwrap();
    }
    let e = Megatron::open(&t.0, None).unwrap_err().to_string();
    assert!(e.contains("shards of 1 pipeline ranks"), "{e}");
}

/// A parameter that no model here has is not passed over.
#[test]
fn unknown_parameters_are_told() {
    let t = Temp::new("unknown");
    let l = Layout { tp: 1, pp: 1, vpp: 1, ep: 1, etp: 1, experts: 0 };
    let rename = |name: &str| name.replace("mlp.linear_fc2", "mlp.shared_experts.gate");
    save(&t.0, &whole(0), l, &rename);
    let e = Megatron::open(&t.0, None).unwrap_err().to_string();
    assert!(e.contains("has 4 parameters that are of no model") && e.contains("shared_experts"), "{e}");
}
