//! Published models: a Hugging Face folder is where training starts, under another layout than one rank's, and a checkpoint
//! becomes such a folder again, to the bit.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Temp, clean, fail, losses, program, text};
use ferrotron_checkpoint::SafetensorsFile;
use ferrotron_published::Family;

/// One of the tiny models of the golden set.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/hf").join(name)
}

/// A run of one step, of the model that the folder has.
fn from(folder: &Path, words: &str) -> Command {
    let mut c = program();
    c.arg("--load").arg(folder).args(["--use-checkpoint-args", "--tokenizer-type", "NullTokenizer", "--mock-data"]);
    c.args("--seq-length 16 --micro-batch-size 1 --global-batch-size 4 --train-iters 1 --eval-iters 0".split(' '));
    c.args("--log-interval 1 --split 100,0,0 --min-lr 0".split(' ')).args(words.split_whitespace());
    c
}

fn ferrotron(words: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_ferrotron"));
    c.args(words);
    c
}

fn model(folder: &Path) -> ferrotron_models::ModelConfig {
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    Family::of_config(&serde_json::from_str(&config).unwrap()).unwrap().1
}

/// Every tensor of a folder, bits of f32.
fn tensors(folder: &Path) -> std::collections::BTreeMap<String, (Vec<usize>, Vec<u32>)> {
    let mut all = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten().filter(|e| e.file_name() != "golden_io.safetensors") {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "safetensors") && !path.ends_with("golden_grads.safetensors") {
            let file = SafetensorsFile::open(&path).unwrap();
            for t in file.tensors() {
                let bits = file.read_f32(&t.name).unwrap().iter().map(|v| v.to_bits()).collect();
                all.insert(t.name.clone(), (t.shape.clone(), bits));
            }
        }
    }
    all
}

/// With a learning rate of 0 a step changes nothing: what is exported is what was loaded, whatever the layout between, and
/// `config.json` says the same model.
#[test]
fn every_family_goes_in_and_comes_out_to_the_bit() {
    for (name, layout) in [
        ("gpt2", "--thread-ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
        ("llama", "--thread-ranks 4 --tensor-model-parallel-size 2 --use-distributed-optimizer --sequence-parallel"),
        ("llama3_rope", "--thread-ranks 2 --pipeline-model-parallel-size 2"),
        ("qwen2", "--thread-ranks 4 --tensor-model-parallel-size 4"),
        ("qwen3", "--thread-ranks 2 --use-distributed-optimizer --zero-stage 3"),
        (
            "qwen3moe",
            "--thread-ranks 4 --tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1 --sequence-parallel",
        ),
        ("mixtral", ""),
    ] {
        let t = Temp::new(&format!("published-{name}"));
        let (save, out) = (t.path("ckpt"), t.path("hf"));
        let words = format!("--lr 0 --save {} {layout}", save.display());
        let log = clean(&mut from(&golden(name), &words));
        assert!(log.contains("weights of a published model (") && losses(&log).len() == 1, "{name}\n{log}");
        let words =
            ["export", "--load", save.to_str().unwrap(), "--output", out.to_str().unwrap(), "--vocab-size", "96"];
        clean(&mut ferrotron(&words));
        assert_eq!(tensors(&out), tensors(&golden(name)), "{name}");
        assert_eq!(model(&out), model(&golden(name)), "{name}");
    }
}

/// What is exported is loaded again, in bf16 and several files, and gives the loss of the run that goes on from the checkpoint.
#[test]
fn an_export_in_several_files_trains_on() {
    let t = Temp::new("published-parts");
    let (save, out) = (t.path("ckpt"), t.path("hf"));
    let words = format!("--bf16 --lr 1e-2 --vocab-size 96 --save {}", save.display());
    clean(&mut from(&golden("qwen3"), &words));
    let (from_dir, to) = (save.to_str().unwrap(), out.to_str().unwrap());
    // the golden model has no tensor beyond 16 KiB: one file a tensor at the least
    let log = clean(&mut ferrotron(&["export", "--load", from_dir, "--output", to, "--max-shard-mib", "0"]));
    assert!(log.contains("model-00001-of-") && log.contains("model.safetensors.index.json"), "{log}");
    let again = clean(&mut from(&out, "--bf16 --lr 1e-3 --vocab-size 96"));
    let mut on = program();
    on.args(["--load", from_dir, "--finetune", "--use-checkpoint-args", "--mock-data"]);
    on.args("--seq-length 16 --micro-batch-size 1 --global-batch-size 4 --train-iters 1 --eval-iters 0".split(' '));
    on.args("--log-interval 1 --split 100,0,0 --min-lr 0 --bf16 --lr 1e-3".split(' '));
    assert_eq!(losses(&again), losses(&clean(&mut on)));
    // a folder that is there is not written into
    let (code, e) = fail(&mut ferrotron(&["export", "--load", from_dir, "--output", to]));
    assert!(code == 1 && e.contains("is there already"), "{e}");
}

#[test]
fn another_model_and_a_damaged_folder_are_told_with_all_that_is_wrong() {
    let t = Temp::new("published-wrong");
    let words =
        "--lr 0 --hidden-size 64 --num-attention-heads 8 --rotary-base 5000 --untie-embeddings-and-output-weights";
    let (code, e) = fail(&mut from(&golden("qwen2"), words));
    assert_eq!(code, 1, "{e}");
    for part in [
        "is another model than the command line's",
        "--hidden-size: 32 there, 64 here",
        "--num-attention-heads: 4 there, 8 here",
        "shared embeddings (--untie-embeddings-and-output-weights): on there, off here",
    ] {
        assert!(e.contains(part), "{part}\n{e}");
    }
    // the same words again would begin again over what was saved; these go on
    let save = t.path("saved").display().to_string();
    let words = format!("--lr 1e-3 --save {save}");
    clean(&mut from(&golden("qwen2"), &words));
    let (_, e) = fail(&mut from(&golden("qwen2"), &words));
    assert!(e.contains("begins at iteration 0, but --save") && e.contains("holds a checkpoint of iteration 1"), "{e}");
    let mut on = from(Path::new(&save), &format!("{words} --train-iters 2 --override-opt_param-scheduler"));
    let log = clean(on.arg("--pretrained-checkpoint").arg(golden("qwen2")));
    assert!(log.contains("iteration        2/       2"), "{log}");

    // a folder that is yet to be saved into: shape and weights are the published ones, as the first time of two
    let fresh = t.path("fresh").display().to_string();
    let mut first = from(Path::new(&fresh), &format!("--lr 1e-3 --save {fresh}"));
    let log = clean(first.arg("--pretrained-checkpoint").arg(golden("qwen2")));
    assert!(log.contains("weights of a published model (qwen2)") && losses(&log).len() == 1, "{log}");

    let log = clean(&mut from(&golden("qwen2"), "--lr 0 --rotary-base 5000"));
    assert!(log.contains("note: --rotary-base is 10000 there, 5000 here"), "{log}");

    let folder = t.path("model");
    std::fs::create_dir_all(&folder).unwrap();
    let copy = |name: &str| std::fs::copy(golden("llama").join(name), folder.join(name)).unwrap();
    copy("model.safetensors");
    for (config, words) in [
        (r#"{"model_type": "gptj"}"#, "model_type = \"gptj\" is not supported: gpt2, llama, mistral"),
        ("{", "is not JSON"),
        (r#"{"model_type": "llama", "hidden_size": "much"}"#, "hidden_size should be a whole number"),
    ] {
        std::fs::write(folder.join("config.json"), config).unwrap();
        let out = from(&folder, "--lr 0").output().unwrap();
        let e = text(&out.stderr);
        assert!(out.status.code().is_some_and(|c| c == 1 || c == 2) && e.contains(words), "{words}\n{e}");
    }
    copy("config.json");
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("model.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
    assert!(fail(&mut from(&folder, "--lr 0")).1.contains("model.safetensors"));
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("pytorch_model.bin"), b"pickle").unwrap();
    let (_, e) = fail(&mut from(&folder, "--lr 0"));
    assert!(e.contains("pickles") && e.contains("safe_serialization"), "{e}");
}

/// With a `tokenizer.json` in the folder a model writes, and the checkpoint of a run that started from it writes the same.
#[test]
fn a_published_model_writes_what_its_checkpoint_writes() {
    let t = Temp::new("published-writes");
    let (folder, save) = (t.path("model"), t.path("ckpt"));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("qwen3").join(name), folder.join(name)).unwrap();
    }
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..96u8).map(|i| (char::from(b' ' + i % 95).to_string().repeat(1 + usize::from(i / 95)), i.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut run = program();
    run.arg("--load").arg(&folder).args(["--use-checkpoint-args", "--mock-data", "--save"]).arg(&save);
    run.args("--seq-length 16 --micro-batch-size 1 --global-batch-size 1 --train-iters 1 --eval-iters 0".split(' '));
    run.args("--lr 0 --log-interval 1 --split 100,0,0".split(' '));
    clean(&mut run);
    let write = |from: &Path| {
        let words =
            ["generate", "--load", from.to_str().unwrap(), "--prompt", "ab", "--tokens", "8", "--temperature", "0"];
        clean(&mut ferrotron(&words))
    };
    let written = write(&folder);
    assert!(written.starts_with("ab") && written.trim_end().len() > 4, "{written}");
    assert_eq!(written, write(&save));
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let words = ["generate", "--load", folder.to_str().unwrap(), "--prompt", "ab"];
    assert!(fail(&mut ferrotron(&words)).1.contains("has no tokenizer.json"));
}
