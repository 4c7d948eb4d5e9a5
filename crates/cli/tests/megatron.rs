//! Training starts from checkpoints that Megatron-LM wrote, under other layouts than theirs.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Temp, clean, fail, losses, program};
use ferrotron_base::ShardSpec;
use ferrotron_checkpoint::{Checkpoint, Kind, SafetensorsFile};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../foreign/tests/golden").join(name)
}

/// A run of one step that begins with a checkpoint.
fn from(flag: &str, folder: &Path, words: &str) -> Command {
    let mut c = program();
    c.arg(flag).arg(folder).args(["--use-checkpoint-args", "--mock-data"]);
    c.args("--seq-length 16 --micro-batch-size 1 --global-batch-size 4 --train-iters 1 --eval-iters 0".split(' '));
    c.args("--log-interval 1 --split 100,0,0 --min-lr 0 --lr 0".split(' ')).args(words.split_whitespace());
    c
}

/// The loss of a run of one step.
fn loss(log: &str) -> f64 {
    let lines = losses(log);
    let (_, rest) = lines[0].split_once("lm loss: ").unwrap();
    assert_eq!(lines.len(), 1);
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// With a learning rate of 0 a step changes nothing: what is saved is what was loaded, whatever the layout.
#[test]
fn both_formats_go_in_to_the_bit_under_any_layout() {
    let full = SafetensorsFile::open(golden("llama.safetensors")).unwrap();
    let mut first = None;
    for (i, (name, layout)) in [
        ("llama_torch", ""),
        ("llama_torch", "--thread-ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
        ("llama_torch_dist", "--thread-ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
        ("llama_torch_dist", "--thread-ranks 2 --use-distributed-optimizer --zero-stage 3"),
        ("llama_torch_dist", "--bf16"),
    ]
    .into_iter()
    .enumerate()
    {
        let t = Temp::new(&format!("megatron-{i}"));
        let save = t.path("ckpt");
        let words = format!("--save {} {layout}", save.display());
        let log = clean(&mut from("--load", &golden(name), &format!("--finetune {words}")));
        let format = name.trim_start_matches("llama_");
        let line = format!("weights of a Megatron checkpoint ({format}, TP 2 x PP 2, iteration 3) from ");
        assert!(log.contains(&line) && log.contains("training starts at iteration 0\n"), "{log}");
        assert!(log.contains("took from checkpoint") && log.contains("padded_vocab_size"), "{log}");
        if !layout.contains("bf16") {
            // f32 weights of the same bits: sums in another order
            let loss = loss(&log);
            let first = *first.get_or_insert(loss);
            assert!((loss / first - 1.0).abs() < 1e-5, "{layout}: {loss}, first {first}");
        }
        let saved = Checkpoint::open(&save, None).unwrap();
        for tensor in full.tensors() {
            let spec = ShardSpec::whole(tensor.name.clone(), &tensor.shape);
            let (mut got, want) = (vec![0.0; spec.local_numel()], full.read_f32(&tensor.name).unwrap());
            saved.read_f32(&spec, 0..got.len(), Kind::Param, &mut got).unwrap();
            assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{name} {layout}: {}", tensor.name);
        }
    }
}

/// Shared embeddings of two stages, learned positions, biases; then a run goes on from what this one saved.
#[test]
fn a_gpt_starts_and_goes_on() {
    let t = Temp::new("megatron-gpt");
    let save = t.path("ckpt");
    let both = format!("--save {0} --load {0} --train-iters 2", save.display());
    let layout = "--thread-ranks 2 --pipeline-model-parallel-size 2";
    let log = clean(&mut from("--pretrained-checkpoint", &golden("gpt_torch"), &format!("{both} {layout}")));
    assert!(log.contains("training starts at iteration 0\n") && losses(&log).len() == 2, "{log}");
    let log = clean(&mut from(
        "--pretrained-checkpoint",
        &golden("gpt_torch"),
        &format!("{both} --train-iters 3 --override-opt_param-scheduler"),
    ));
    assert!(!log.contains("Megatron checkpoint") && losses(&log).len() == 1, "{log}");
}

#[test]
fn what_is_not_taken_over_and_what_differs_is_said() {
    let log = clean(&mut from("--load", &golden("llama_torch"), "--padded-vocab-size 100"));
    assert!(log.contains("its optimizer, schedule, random and data state are not taken over yet"), "{log}");
    assert!(log.contains("note: the vocabulary has 120 rows there, 100 here: the last 20 are left out"), "{log}");
    let log = clean(&mut from("--load", &golden("llama_torch_dist"), "--padded-vocab-size 128 --rotary-base 5000"));
    assert!(log.contains("the last 8 start as copies of row 119"), "{log}");
    assert!(log.contains("note: --rotary-base is 10000 there, 5000 here"), "{log}");

    let (code, e) = fail(&mut from("--load", &golden("llama_torch"), "--hidden-size 64 --num-layers 2"));
    assert_eq!(code, 1, "{e}");
    for part in
        ["another model than the command line's", "--num-layers: 4 there, 2 here", "--hidden-size: 32 there, 64 here"]
    {
        assert!(e.contains(part), "{part}\n{e}");
    }
    let (_, e) = fail(&mut from("--load", &golden("llama_torch"), "--padded-vocab-size 90 --vocab-size 80"));
    assert!(e.contains("vocabulary: 96 rows there, 90 here"), "{e}");

    // a file that is cut, and a folder that would be written over
    let t = Temp::new("megatron-cut");
    let dir = t.path("ckpt");
    std::fs::create_dir_all(dir.join("iter_0000003/mp_rank_00")).unwrap();
    std::fs::write(dir.join("latest_checkpointed_iteration.txt"), "3").unwrap();
    let bytes = std::fs::read(golden("llama_torch/iter_0000003/mp_rank_00_000/model_optim_rng.pt")).unwrap();
    std::fs::write(dir.join("iter_0000003/mp_rank_00/model_optim_rng.pt"), &bytes[..30_000]).unwrap();
    let (code, e) = fail(&mut from("--load", &dir, ""));
    assert!(
        code == 1 && e.contains("mp_rank_00/model_optim_rng.pt") && e.contains("not a complete zip archive"),
        "{e}"
    );
    let (code, e) =
        fail(&mut from("--load", &golden("llama_torch"), &format!("--save {}", golden("llama_torch").display())));
    assert!(code == 1 && e.contains("would be written over") && e.contains("--pretrained-checkpoint"), "{e}");
}

#[test]
fn generate_writes_the_same_from_both_formats() {
    let words = |name: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_ferrotron"));
        c.args([
            "generate",
            "--load",
            golden(name).to_str().unwrap(),
            "--prompt",
            "5 6 7",
            "--tokens",
            "5",
            "--temperature",
            "0",
        ]);
        clean(&mut c)
    };
    let text = words("llama_torch");
    assert!(text.starts_with("5 6 7") && text.split_whitespace().count() > 3, "{text}");
    assert_eq!(text, words("llama_torch_dist"));
}

/// Both formats give the same published model, in the type that was trained, whose values are the checkpoint's.
#[test]
fn export_writes_the_same_from_both_formats() {
    let full = SafetensorsFile::open(golden("llama.safetensors")).unwrap();
    let t = Temp::new("megatron-export");
    let export = |name: &str| {
        let to = t.path(name);
        let mut c = Command::new(env!("CARGO_BIN_EXE_ferrotron"));
        c.args(["export", "--load", golden(name).to_str().unwrap(), "--output", to.to_str().unwrap()]);
        let log = clean(&mut c);
        assert!(log.contains("a llama of") && log.contains("model.safetensors"), "{log}");
        (std::fs::read(to.join("model.safetensors")).unwrap(), std::fs::read_to_string(to.join("config.json")).unwrap())
    };
    let torch = export("llama_torch");
    assert_eq!(torch, export("llama_torch_dist"));
    assert!(torch.1.contains("\"bfloat16\""), "{}", torch.1);
    let written = SafetensorsFile::open(t.path("llama_torch").join("model.safetensors")).unwrap();
    for (theirs, ours) in [
        ("model.embed_tokens.weight", "embedding.word_embeddings.weight"),
        ("lm_head.weight", "output_layer.weight"),
        ("model.layers.3.self_attn.o_proj.weight", "decoder.layers.3.self_attention.linear_proj.weight"),
        ("model.layers.1.mlp.down_proj.weight", "decoder.layers.1.mlp.linear_fc2.weight"),
    ] {
        let (got, want) = (written.read_f32(theirs).unwrap(), full.read_f32(ours).unwrap());
        assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()) && got.len() == want.len(), "{theirs}");
    }
}

#[test]
fn inspect_lists_theirs_by_our_names() {
    let inspect = |path: &Path| clean(Command::new(env!("CARGO_BIN_EXE_ferrotron")).arg("inspect").arg(path));
    let text = inspect(&golden("llama_torch"));
    assert!(text.contains("torch, TP 2 x PP 2, iteration 3"), "{text}");
    let full = SafetensorsFile::open(golden("llama.safetensors")).unwrap();
    for t in full.tensors() {
        assert!(text.contains(&format!("{:?} {}\n", t.shape, t.name)) || text.ends_with(&t.name), "{}: {text}", t.name);
    }
    assert_eq!(text.lines().count(), 1 + full.tensors().len());
    let (code, e) = fail(Command::new(env!("CARGO_BIN_EXE_ferrotron")).args(["inspect", "no/such"]));
    assert!(code == 1 && e.contains("no/such is not there, nor no/such.idx"), "{e}");
    let text = inspect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/hf/qwen3moe"));
    assert!(text.contains("a qwen3_moe of 2 layers") && text.contains("model.embed_tokens.weight"), "{text}");
}
