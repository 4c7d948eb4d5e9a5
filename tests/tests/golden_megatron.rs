//! Tiny models of megatron-core: logits, per-token losses, every gradient, ten AdamW steps.
//!
//! Tolerance 2e-5 relative (max |difference| / max |reference| of a tensor): f32 sums in another order.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::collections::BTreeMap;

use ferrotron_device::ops::{Activation, AdamConfig};
use ferrotron_device::{DType, host};
use ferrotron_models::{ExpertsConfig, ModelConfig, Position, Recomputation};
use ferrotron_nn::RopeScaling;
use ferrotron_optim::{Optimizer, OptimizerKind, UpdateScalars};
use ferrotron_runtime::{MicroHost, stat};
use ferrotron_tests::{Rig, cpu_rig, golden, plain_batch, relative_error, tensors};

const BOUND: f64 = 2e-5;

fn config(name: &str) -> ModelConfig {
    let rope = |base| Position::Rope { percent: 1.0, base, interleaved: false, scaling: RopeScaling::None };
    let base = match name {
        "gpt" => ModelConfig { activation: Activation::Gelu, ..ModelConfig::gpt(2, 32, 4, 96, 16) },
        "llama" => ModelConfig { position: rope(1e4), ..ModelConfig::llama(2, 32, 4, 2, 64) },
        "qwen3" => ModelConfig {
            position: rope(1e6),
            norm_eps: 1e-6,
            head_dim: 16,
            qk_norm: true,
            ..ModelConfig::llama(2, 32, 4, 2, 64)
        },
        "moe" => ModelConfig {
            position: rope(1e4),
            experts: Some(ExpertsConfig {
                count: 4,
                chosen: 2,
                ffn: 48,
                shared_ffn: 0,
                pre_softmax: false,
                balance: 0.01,
                z_loss: 0.0,
            }),
            ..ModelConfig::llama(2, 32, 4, 2, 64)
        },
        "moe_presoftmax" => {
            let moe = config("moe");
            let experts = moe.experts.map(|e| ExpertsConfig { pre_softmax: true, z_loss: 0.001, ..e });
            ModelConfig { experts, ..moe }
        }
        // experts in the first and last of three layers, and one expert that all tokens pass
        "moe_shared" => {
            let moe = config("moe");
            let experts = moe.experts.map(|e| ExpertsConfig { shared_ffn: 40, ..e });
            ModelConfig { num_layers: 3, dense_layers: vec![1], experts, ..moe }
        }
        other => panic!("no golden model {other}"),
    };
    ModelConfig { vocab: 96, max_positions: 16, ..base }
}

/// The data of a golden file: batch i as tokens and labels `[2,16]`.
fn batches(name: &str) -> Vec<MicroHost> {
    let file = ferrotron_checkpoint::SafetensorsFile::open(golden(&format!("megatron/{name}_io.safetensors"))).unwrap();
    let data = file.read_i64("data").unwrap();
    let mask = file.read_f32("loss_mask").unwrap();
    let counted: f32 = mask.iter().sum();
    data.chunks(2 * 17)
        .map(|b| {
            let rows = |from: usize| -> Vec<i32> {
                b.chunks(17).flat_map(|r| r[from..from + 16].iter().map(|&v| v as i32)).collect()
            };
            let weight = mask.iter().map(|m| m / counted).collect();
            MicroHost { mask: mask.clone(), weight, ..plain_batch(&rows(0), &rows(1), 16, 0, 1) }
        })
        .collect()
}

fn load(rig: &mut Rig, name: &str) {
    let init = tensors(&format!("megatron/{name}_init.safetensors"));
    rig.load(&init.into_iter().map(|(k, v)| (k, v.1)).collect()).unwrap();
}

/// Compares tensor by tensor, prints and bounds the worst.
fn compare(what: &str, got: &BTreeMap<String, Vec<f32>>, want: &str, bound: f64) {
    let want = tensors(want);
    assert_eq!(got.len(), want.len(), "{what}: tensors");
    let worst = got.iter().map(|(k, v)| (relative_error(v, &want[k].1), k)).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{what}: worst relative error {:.2e} at {}", worst.0, worst.1);
    assert!(worst.0 <= bound, "{what}: {} is off by {:.3e}, bound {bound:.0e}", worst.1, worst.0);
}

fn check_model(name: &str, recompute: Recomputation) {
    let mut rig = cpu_rig(&ModelConfig { recompute, ..config(name) }, DType::F32).unwrap();
    load(&mut rig, name);
    let data = batches(name);
    let io = tensors(&format!("megatron/{name}_io.safetensors"));

    let logits = rig.logits(&data[0]).unwrap();
    let e = relative_error(&logits, &io["logits"].1);
    println!("{name} logits: relative error {e:.2e}");
    assert!(e <= BOUND, "{name} logits are off by {e:.3e}");

    let loss = rig.forward_backward(&data[..1]).unwrap();
    let e = relative_error(&[loss], &io["loss"].1);
    assert!(e <= BOUND, "{name} loss {loss} is off by {e:.3e}");
    compare(&format!("{name} gradients"), &rig.grads().unwrap(), &format!("megatron/{name}_grads.safetensors"), BOUND);
}

fn check_training(name: &str) {
    let text = std::fs::read_to_string(golden(&format!("megatron/{name}.json"))).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers = |key: &str| -> Vec<f64> {
        golden["adamw"][key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let (losses, norms) = (numbers("losses"), numbers("grad_norms"));

    let mut rig = cpu_rig(&config(name), DType::F32).unwrap();
    load(&mut rig, name);
    let adam = AdamConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
    let mut optimizer = Optimizer::new(OptimizerKind::Adam(adam), &rig.cx).unwrap();
    for (i, batch) in batches(name).iter().enumerate() {
        let loss = f64::from(rig.forward_backward(std::slice::from_ref(batch)).unwrap());
        optimizer.gather_grad_squares(&rig.cx).unwrap();
        let norm = f64::from(rig.stats().unwrap()[stat::GRAD_SQUARES]).sqrt();
        let (loss_error, norm_error) = ((loss / losses[i] - 1.0).abs(), (norm / norms[i] - 1.0).abs());
        assert!(loss_error <= BOUND, "{name} step {i}: loss {loss}, reference {}", losses[i]);
        assert!(norm_error <= BOUND, "{name} step {i}: norm {norm}, reference {}", norms[i]);
        let grad_factor = (1.0 / (norm + 1e-6)).min(1.0);
        let u = UpdateScalars { lr: 1e-3, weight_decay: 0.1, grad_factor, step: i as u64 + 1 };
        optimizer.update(&rig.cx, &u).unwrap();
    }
    compare_weights(name, &rig.weights().unwrap());
}

/// Weights after ten steps. Adam moves every element by about lr a step, whatever its gradient's size, so a difference
/// is measured against the distance an element can travel, ten times lr: at most 2 % of it. Key biases are left out:
/// softmax does not see them, their gradient is rounding noise, and Adam turns noise into whole steps.
fn compare_weights(name: &str, got: &BTreeMap<String, Vec<f32>>) {
    const TRAVEL: f64 = 10.0 * 1e-3;
    const HEAD: usize = 8;
    let want = tensors(&format!("megatron/{name}_after10.safetensors"));
    let mut worst = (0f64, "");
    for (key, values) in got {
        for (i, (a, b)) in values.iter().zip(&want[key].1).enumerate() {
            let key_bias = key.ends_with("linear_qkv.bias") && (i / HEAD) % 3 == 1;
            let moved = f64::from((a - b).abs()) / TRAVEL;
            if !key_bias && moved > worst.0 {
                worst = (moved, key);
            }
        }
    }
    println!("{name} weights after ten steps: {:.2e} of the travel at {}", worst.0, worst.1);
    assert!(worst.0 <= 0.02, "{name}: {} is off by {:.3} of the travel", worst.1, worst.0);
}

#[test]
fn gpt() {
    check_model("gpt", Recomputation::None);
    check_training("gpt");
}

#[test]
fn llama() {
    check_model("llama", Recomputation::None);
    check_training("llama");
}

#[test]
fn qwen3() {
    check_model("qwen3", Recomputation::None);
    check_training("qwen3");
}

/// The gradients include the auxiliary losses, the losses do not.
#[test]
fn moe() {
    check_model("moe", Recomputation::None);
    check_training("moe");
}

#[test]
fn moe_with_shared_experts_around_a_dense_layer() {
    let parts = Recomputation::Selective { core_attention: true, mlp: true, layernorm: true };
    for recompute in [Recomputation::None, Recomputation::Uniform { layers: 2 }, parts] {
        check_model("moe_shared", recompute);
    }
    check_training("moe_shared");
}

#[test]
fn moe_with_scores_of_all_experts_and_a_z_loss() {
    check_model("moe_presoftmax", Recomputation::None);
}

/// Megatron's tracker holds each layer's auxiliary losses without their coefficients; ours their sum.
#[test]
fn auxiliary_losses_are_reported() {
    for name in ["moe", "moe_presoftmax"] {
        let text = std::fs::read_to_string(golden(&format!("megatron/{name}.json"))).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
        let sum = |key: &str| -> Option<f64> {
            golden["aux_loss_tracker_first_forward"][key].as_array().map(|a| a.iter().filter_map(|v| v.as_f64()).sum())
        };
        for recompute in [Recomputation::None, Recomputation::Uniform { layers: 1 }] {
            let mut rig = cpu_rig(&ModelConfig { recompute, ..config(name) }, DType::F32).unwrap();
            load(&mut rig, name);
            rig.forward_backward(&batches(name)[..1]).unwrap();
            let stats = rig.stats().unwrap();
            let tokens = 32.0; // all of the micro-batch, whatever their losses count
            for (got, want) in
                [(stats[stat::BALANCE], sum("load_balancing_loss")), (stats[stat::ROUTER_Z] / tokens, sum("z_loss"))]
            {
                let off = want.map_or(0.0, |want| (f64::from(got) / want - 1.0).abs());
                assert!(off <= BOUND, "{name}: {got}, reference {want:?}");
            }
        }
    }
}

#[test]
fn every_recomputation_gives_the_golden_gradients() {
    let selective = |core_attention, mlp, layernorm| Recomputation::Selective { core_attention, mlp, layernorm };
    for r in [
        selective(true, false, false),
        selective(false, true, false),
        selective(false, false, true),
        selective(true, true, true),
        Recomputation::Uniform { layers: 1 },
        Recomputation::Uniform { layers: 2 },
        Recomputation::Block { layers: 1 },
        Recomputation::BlockOfRank { layers: 1 },
    ] {
        for name in ["gpt", "qwen3", "moe"] {
            check_model(name, r);
        }
    }
}

#[test]
fn two_halves_of_a_batch_accumulate_to_the_whole() {
    let mut rig = cpu_rig(&config("llama"), DType::F32).unwrap();
    load(&mut rig, "llama");
    let whole = &batches("llama")[0];
    let half = |i: usize| {
        let r = i * 16..(i + 1) * 16;
        let part = plain_batch(&whole.ids[r.clone()], &whole.labels[r.clone()], 16, i, 2);
        // the weights of the whole: each half counts by its own number of tokens
        MicroHost { mask: whole.mask[r.clone()].to_vec(), weight: whole.weight[r].to_vec(), ..part }
    };
    rig.forward_backward(&[half(0), half(1)]).unwrap();
    compare("two micro-batches", &rig.grads().unwrap(), "megatron/llama_grads.safetensors", BOUND);
}

#[test]
fn no_memory_is_asked_for_after_the_second_step() {
    let mut rig = cpu_rig(&config("gpt"), DType::F32).unwrap();
    let data = batches("gpt");
    let mut commits = vec![];
    for batch in &data {
        rig.forward_backward(std::slice::from_ref(batch)).unwrap();
        commits.push(rig.cx.pool.stats().commits);
    }
    assert!(commits[2..].iter().all(|c| *c == commits[1]), "commits after each step: {commits:?}");
    assert_eq!(rig.cx.pool.stats().live, 0, "a step leaves nothing behind");
    let _ = host::read_f32(&*rig.cx.device, &rig.cx.stream, &rig.cx.stats).unwrap();
}
