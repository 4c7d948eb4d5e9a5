//! Checkpoints that Megatron-LM wrote: the loss of the first step from one is the loss that Megatron goes on with.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::path::{Path, PathBuf};

use ferrotron_checkpoint::SafetensorsFile;
use ferrotron_device::DType;
use ferrotron_device::ops::Activation;
use ferrotron_foreign::Megatron;
use ferrotron_models::{ExpertsConfig, ModelConfig};
use ferrotron_tests::{cpu_rig, plain_batch};
use ferrotron_train::save_load::load_params;

/// The model of the golden checkpoints, by the word in their names.
fn config(name: &str, vocab: usize) -> ModelConfig {
    let base = if name.contains("gpt") {
        ModelConfig { activation: Activation::Gelu, ffn: 64, ..ModelConfig::gpt(4, 32, 4, vocab, 16) }
    } else {
        ModelConfig { norm_eps: 1e-5, ..ModelConfig::llama(4, 32, 4, 2, 48) }
    };
    let experts =
        ExpertsConfig { count: 4, chosen: 2, ffn: 24, shared_ffn: 0, pre_softmax: false, balance: 0.0, z_loss: 0.0 };
    ModelConfig { vocab, max_positions: 16, experts: name.contains("moe").then_some(experts), ..base }
}

/// The loss over batch 3 of the golden data: 8 samples in micro-batches of 2, as Megatron's runs had them.
fn loss(dir: &Path, data: &Path, vocab: usize) -> f64 {
    let name = dir.file_name().unwrap().to_string_lossy().into_owned();
    let checkpoint = Megatron::open(dir, None).unwrap();
    let model = config(&name, vocab);
    let dtype = if name.contains("gpt") { DType::F32 } else { DType::BF16 };
    let mut rig = cpu_rig(&model, dtype).unwrap();
    assert_eq!(checkpoint.check(&model).unwrap(), Vec::<String>::new(), "{name}");
    load_params(&rig.cx, &checkpoint).unwrap();
    let all = SafetensorsFile::open(data).unwrap().read_i64("data").unwrap();
    let batch = &all[3 * 8 * 17..4 * 8 * 17];
    let micro: Vec<_> = batch
        .chunks(2 * 17)
        .map(|m| {
            let from = |at: usize| -> Vec<i32> {
                m.chunks(17).flat_map(|r| r[at..at + 16].iter().map(|v| *v as i32)).collect()
            };
            plain_batch(&from(0), &from(1), 16, 0, 4)
        })
        .collect();
    f64::from(rig.forward_backward(&micro).unwrap())
}

/// f32: sums in another order. bf16: Megatron itself differs by 1e-3 between layouts.
fn bound(name: &str) -> f64 {
    if name.contains("gpt") { 1e-6 } else { 1e-3 }
}

#[test]
fn the_first_loss_is_megatrons() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/foreign/tests/golden");
    // fourth step of the runs that saved them
    for (name, want) in
        [("gpt_torch", 4.784398078918457), ("llama_torch", 4.869263648986816), ("llama_torch_dist", 4.869263648986816)]
    {
        let got = loss(&golden.join(name), &golden.join("data.safetensors"), 120);
        println!("{name}: {got}, Megatron {want}, off by {:.1e}", (got / want - 1.0).abs());
        assert!((got / want - 1.0).abs() <= bound(name), "{name}: {got}, Megatron {want}");
    }
}

/// A wider set, where there is one: `FERROTRON_MEGATRON_CHECKPOINTS` names a folder with `ckpt/LAYOUT_MODEL_FORMAT`,
/// `full/LAYOUT_MODEL.json` and `data.safetensors`.
#[test]
fn the_first_loss_of_a_wider_set_is_megatrons() {
    let Some(root) = std::env::var_os("FERROTRON_MEGATRON_CHECKPOINTS").map(PathBuf::from) else { return };
    for e in std::fs::read_dir(root.join("ckpt")).unwrap().flatten() {
        let name = e.file_name().to_string_lossy().into_owned();
        let model = name.splitn(3, '_').take(2).collect::<Vec<_>>().join("_");
        let text = std::fs::read_to_string(root.join(format!("full/{model}.json"))).unwrap();
        let run: serde_json::Value = serde_json::from_str(&text).unwrap();
        let want = run["continue"][0][0].as_f64().unwrap();
        let vocab = run["padded_vocab"].as_u64().unwrap() as usize;
        let got = loss(&e.path(), &root.join("data.safetensors"), vocab);
        println!("{name}: {got}, Megatron {want}, off by {:.1e}", (got / want - 1.0).abs());
        assert!((got / want - 1.0).abs() <= bound(&name), "{name}: {got}, Megatron {want}");
    }
}
