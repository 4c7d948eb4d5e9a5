//! `torch_dist` as other versions of megatron-core write it than the golden one: what is not sharded as an object of its own,
//! layers that differ and have names of their own, parts over several layers and experts.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::{Py, Temp, dict, pickle, s, torch_file, write};
use ferrotron_base::ShardSpec;
use ferrotron_foreign::Megatron;

const METADATA: &str = "torch.distributed.checkpoint.metadata";

fn sizes(all: &[usize]) -> Py {
    Py::Tuple(all.iter().map(|n| Py::Int(*n as i64)).collect())
}

fn object(module: &'static str, name: &'static str, all: &[(&str, Py)]) -> Py {
    Py::Object(module, name, all.iter().map(|(k, v)| (k.to_string(), v.clone())).collect())
}

/// A checkpoint that is being made.
#[derive(Default)]
struct Made {
    states: Vec<(String, Py)>,
    places: Vec<(Py, Py)>,
    file: Vec<u8>,
}

impl Made {
    fn store(&mut self, key: &str, offset: Py, blob: &[u8]) {
        let index = object(METADATA, "MetadataIndex", &[("fqn", s(key)), ("offset", offset), ("index", Py::None)]);
        let place = [
            ("relative_path", s("__0_0.distcp")),
            ("offset", Py::Int(self.file.len() as i64)),
            ("length", Py::Int(blob.len() as i64)),
        ];
        let place = object("torch.distributed.checkpoint.filesystem", "_StorageInfo", &place);
        self.places.push((index, place));
        self.file.extend(blob);
    }

    /// A tensor whose element i is i, in parts (first index, extent).
    fn tensor(&mut self, key: &str, size: &[usize], parts: &[(&[usize], &[usize])]) {
        let mut chunks = vec![];
        for (at, len) in parts {
            let mut values = vec![];
            for i in 0..len.iter().product::<usize>() {
                // from an index within the part to one of the whole
                let (mut rest, mut flat, mut step) = (i, 0, 1);
                for d in (0..size.len()).rev() {
                    flat += (at[d] + rest % len[d]) * step;
                    rest /= len[d];
                    step *= size[d];
                }
                values.push(flat as f32);
            }
            self.store(key, sizes(at), &torch_file(&Py::Tensor(0, len.to_vec()), &values));
            chunks.push(object(METADATA, "ChunkStorageMetadata", &[("offsets", sizes(at)), ("sizes", sizes(len))]));
        }
        let all = [("size", sizes(size)), ("chunks", Py::List(chunks))];
        self.states.push((key.into(), object(METADATA, "TensorStorageMetadata", &all)));
    }

    fn bytes(&mut self, key: &str, v: &Py) {
        self.store(key, Py::None, &torch_file(v, &[]));
        self.states.push((key.into(), object(METADATA, "BytesStorageMetadata", &[])));
    }

    fn write(self, t: &Temp) {
        let all = [("state_dict_metadata", Py::Dict(self.states)), ("storage_data", Py::Map(self.places))];
        write(&t.0, "iter_0000009/.metadata", &pickle(&object(METADATA, "Metadata", &all)));
        write(&t.0, "iter_0000009/__0_0.distcp", &self.file);
        write(
            &t.0,
            "iter_0000009/metadata.json",
            br#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1}"#,
        );
        write(&t.0, "latest_checkpointed_iteration.txt", b"9");
    }
}

fn read(c: &Megatron, name: &str, shape: &[usize]) -> Vec<f32> {
    let mut out = vec![f32::NAN; shape.iter().product()];
    c.read_f32(&ShardSpec::whole(name, shape), 0..out.len(), &mut out).unwrap();
    out
}

fn counted(from: usize, n: usize) -> Vec<f32> {
    (from..from + n).map(|i| i as f32).collect()
}

#[test]
fn parts_of_any_shape() {
    let t = Temp::new("dist");
    let mut m = Made::default();
    m.tensor(
        "embedding.word_embeddings.weight",
        &[6, 4],
        &[(&[0, 0], &[4, 4]), (&[4, 0], &[2, 4]), (&[6, 0], &[0, 4])],
    );
    // both layers in one part, split by columns
    let proj = "decoder.layers.self_attention.linear_proj.weight";
    m.tensor(proj, &[2, 3, 4], &[(&[0, 0, 0], &[2, 3, 1]), (&[0, 0, 1], &[2, 3, 3])]);
    // two experts in a part
    let fc2 = "decoder.layers.mlp.experts.experts.linear_fc2.weight";
    m.tensor(
        fc2,
        &[2, 4, 3, 2],
        &[
            (&[0, 0, 0, 0], &[2, 2, 3, 2]),
            (&[0, 2, 0, 0], &[1, 2, 3, 2]),
            (&[1, 2, 0, 0], &[1, 2, 3, 1]),
            (&[1, 2, 0, 1], &[1, 2, 3, 1]),
        ],
    );
    m.tensor("decoder.layers.1.pre_mlp_layernorm.weight", &[4], &[(&[0], &[4])]);
    m.bytes("decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2", &Py::List(vec![Py::None]));
    m.bytes("optimizer.state.exp_avg.decoder.layers.mlp.x", &Py::None);
    let args =
        Py::Namespace(vec![("tensor_model_parallel_size".into(), Py::Int(2)), ("num_layers".into(), Py::Int(2))]);
    let common = dict(&[("args", args), ("checkpoint_version", Py::Float(3.0)), ("iteration", Py::Int(9))]);
    m.bytes("common_state/shard_0_1", &Py::List(vec![common]));
    m.write(&t);

    let c = Megatron::open(&t.0, None).unwrap();
    assert_eq!(c.describe(), "torch_dist, TP 2 x PP 1, iteration 9");
    assert_eq!(c.arguments().unwrap()["num_layers"], 2);
    assert_eq!(c.parameters().count(), 1 + 2 + 8 + 1);
    assert_eq!(read(&c, "embedding.word_embeddings.weight", &[6, 4]), counted(0, 24));
    assert_eq!(read(&c, "decoder.layers.1.pre_mlp_layernorm.weight", &[4]), counted(0, 4));
    for l in 0..2 {
        let name = format!("decoder.layers.{l}.self_attention.linear_proj.weight");
        assert_eq!(read(&c, &name, &[3, 4]), counted(l * 12, 12));
        for e in 0..4 {
            let name = format!("decoder.layers.{l}.mlp.experts.local_experts.{e}.linear_fc2.weight");
            assert_eq!(read(&c, &name, &[3, 2]), counted((l * 4 + e) * 6, 6), "{name}");
        }
    }
}

#[test]
fn what_is_not_there_is_told() {
    let wrong = |make: &dyn Fn(&mut Made), words: &str| {
        let t = Temp::new("dist-wrong");
        let mut m = Made::default();
        make(&mut m);
        m.write(&t);
        let whole = |c: Megatron| c.read_f32(&ShardSpec::whole("output_layer.weight", &[4, 2]), 0..8, &mut [0.0; 8]);
        let e = Megatron::open(&t.0, None).and_then(whole).unwrap_err().to_string();
        assert!(e.contains("iter_0000009") && e.contains(words), "{e}");
    };
    let key = "output_layer.weight";
    wrong(&|m| m.tensor(key, &[4, 2], &[(&[0, 0], &[3, 2])]), "only in part: element [3, 0] is nowhere");
    wrong(&|m| m.tensor(key, &[4, 2], &[(&[2, 0], &[3, 2])]), "has a part [3, 2] at [2, 0]");
    wrong(&|m| m.tensor(key, &[4], &[(&[0], &[4])]), "has shape [4] there, [4, 2] in this model");
    wrong(
        &|m| m.tensor("decoder.final_layernorm.weight", &[4], &[(&[0], &[4])]),
        "has no parameter output_layer.weight",
    );
    let without_place = |m: &mut Made| {
        m.tensor(key, &[4, 2], &[(&[0, 0], &[4, 2])]);
        m.places.clear();
    };
    wrong(&without_place, "does not say where \"output_layer.weight\" at [0, 0] lies");
    let short = |m: &mut Made| {
        m.tensor(key, &[4, 2], &[(&[0, 0], &[4, 2])]);
        m.file.truncate(100);
    };
    wrong(&short, "has 100 bytes; bytes 0.. of ");
    let old = |m: &mut Made| {
        m.tensor(key, &[4, 2], &[(&[0, 0], &[4, 2])]);
        m.bytes("common_state/shard_0_1", &Py::List(vec![dict(&[("iteration", Py::Int(9))])]));
    };
    wrong(&old, "checkpoint_version 0");
}
