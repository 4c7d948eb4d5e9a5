//! Tiny models of Hugging Face transformers, read from their safetensors and config.json: logits, loss, gradients.
//!
//! Tolerance 2e-5 relative, as for Megatron's models.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::collections::BTreeMap;

use ferrotron_device::DType;
use ferrotron_models::hf::{HfTensor, Mapping, assemble};
use ferrotron_models::{ModelConfig, gpt2, llama, mixtral, qwen};
use ferrotron_runtime::MicroHost;
use ferrotron_tests::{cpu_rig, golden, plain_batch, relative_error, tensors};

const BOUND: f64 = 2e-5;

type Family =
    (fn(&serde_json::Value) -> Result<ModelConfig, ferrotron_models::hf::HfError>, fn(&ModelConfig) -> Mapping);

/// Our tensors from a file of published ones.
fn ours(c: &ModelConfig, mapping: &Mapping, path: &str) -> BTreeMap<String, Vec<f32>> {
    let theirs = tensors(path);
    let get =
        |key: &str| theirs.get(key).map(|(shape, values)| HfTensor { shape: shape.clone(), values: values.clone() });
    mapping.iter().map(|(name, source)| (name.clone(), assemble(c, source, &get).unwrap())).collect()
}

/// Hugging Face shifts labels inside: the last token of a sample predicts nothing, the rest are averaged.
fn shifted(ids: &[i32], s: usize) -> MicroHost {
    let labels: Vec<i32> = (0..ids.len()).map(|i| if (i + 1) % s == 0 { 0 } else { ids[i + 1] }).collect();
    let mut b = plain_batch(ids, &labels, s, 0, 1);
    let counted = ids.len() - ids.len() / s;
    for i in 0..ids.len() {
        b.mask[i] = if (i + 1) % s == 0 { 0.0 } else { 1.0 };
        b.weight[i] = b.mask[i] / counted as f32;
    }
    b
}

fn check(name: &str, (from_hf, mapping): Family) {
    let config = std::fs::read_to_string(golden(&format!("hf/{name}/config.json"))).unwrap();
    let c = from_hf(&serde_json::from_str(&config).unwrap()).unwrap();
    let map = mapping(&c);
    let mut rig = cpu_rig(&c, DType::F32).unwrap();
    rig.load(&ours(&c, &map, &format!("hf/{name}/model.safetensors"))).unwrap();

    let file =
        ferrotron_checkpoint::SafetensorsFile::open(golden(&format!("hf/{name}/golden_io.safetensors"))).unwrap();
    let ids: Vec<i32> = file.read_i64("input_ids").unwrap().iter().map(|&v| v as i32).collect();
    let batch = shifted(&ids, 16);
    let e = relative_error(&rig.logits(&batch).unwrap(), &file.read_f32("logits").unwrap());
    assert!(e <= BOUND, "{name}: logits are off by {e:.3e}");
    let loss = rig.forward_backward(&[batch]).unwrap();
    let loss_error = relative_error(&[loss], &file.read_f32("loss").unwrap());
    assert!(loss_error <= BOUND, "{name}: loss {loss} is off by {loss_error:.3e}");

    let want = ours(&c, &map, &format!("hf/{name}/golden_grads.safetensors"));
    let got = rig.grads().unwrap();
    assert_eq!(got.len(), want.len());
    let worst = got.iter().map(|(k, v)| (relative_error(v, &want[k]), k)).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{name}: logits {e:.2e}, loss {loss_error:.2e}, worst gradient {:.2e} at {}", worst.0, worst.1);
    assert!(worst.0 <= BOUND, "{name}: gradient of {} is off by {:.3e}", worst.1, worst.0);
}

#[test]
fn gpt2_conv1d_weights_tanh_gelu() {
    check("gpt2", (gpt2::from_hf, gpt2::mapping));
}

#[test]
fn llama_grouped_queries() {
    check("llama", (llama::from_hf, llama::mapping));
}

#[test]
fn llama3_scaled_rotations_tied() {
    check("llama3_rope", (llama::from_hf, llama::mapping));
}

#[test]
fn qwen2_qkv_bias() {
    check("qwen2", (qwen::from_hf, qwen::mapping));
}

#[test]
fn qwen3_head_norms() {
    check("qwen3", (qwen::from_hf, qwen::mapping));
}

#[test]
fn qwen3_experts() {
    check("qwen3moe", (qwen::from_hf, qwen::mapping));
}

/// Layers without experts, as `config.json` lists or counts them, have Llama's names.
#[test]
fn qwen3_experts_in_some_layers() {
    let text = std::fs::read_to_string(golden("hf/qwen3moe/config.json")).unwrap();
    let with = |only: serde_json::Value, step: u64| {
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["num_hidden_layers"] = 4.into();
        config["mlp_only_layers"] = only;
        config["decoder_sparse_step"] = step.into();
        qwen::from_hf(&config)
    };
    let dense = |only: &[u64], step: u64| with(only.into(), step).unwrap().dense_layers;
    assert!(dense(&[], 1).is_empty());
    assert_eq!(dense(&[2], 1), [2]);
    assert_eq!(dense(&[1], 2), [0, 1, 2]);
    assert!(with([0, 1, 2, 3][..].into(), 1).unwrap_err().to_string().contains("at least one layer with experts"));
    let names: Vec<String> =
        qwen::mapping(&with([2][..].into(), 1).unwrap()).into_iter().map(|(name, _)| name).collect();
    let has = |name: &str| names.iter().any(|n| n == name);
    assert!(has("decoder.layers.1.mlp.router.weight") && !has("decoder.layers.1.mlp.linear_fc1.weight"));
    assert!(has("decoder.layers.2.mlp.linear_fc1.weight") && !has("decoder.layers.2.mlp.router.weight"));
}

/// Megatron-core's golden mixture of experts, as a Mixtral: our names give the very tensors.
#[test]
fn mixtral_is_the_golden_moe_of_megatron() {
    let config = std::fs::read_to_string(golden("hf/mixtral/config.json")).unwrap();
    let c = mixtral::from_hf(&serde_json::from_str(&config).unwrap()).unwrap();
    let experts = c.experts.unwrap();
    assert_eq!((experts.count, experts.chosen, experts.ffn, experts.pre_softmax), (4, 2, 48, false));
    let got = ours(&c, &mixtral::mapping(&c), "hf/mixtral/model.safetensors");
    let want = tensors("megatron/moe_init.safetensors");
    assert!(got.keys().eq(want.keys()));
    for (name, values) in &got {
        assert_eq!(values, &want[name].1, "{name}");
    }
}
