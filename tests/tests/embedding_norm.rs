//! `--embed-layernorm`: LayerNorm between the word table and the positions.
//!
//! Reference: the model without it, whose word table holds the normalised rows, worked out in f64. That model is held against
//! megatron-core in `golden_megatron.rs`; its gradient by a row of the table becomes that by the row before the norm, by gain and
//! by bias with LayerNorm's derivative in f64. Tolerance as there: 2e-5 relative, sums in f32 in another order.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::collections::BTreeMap;

use ferrotron_device::DType;
use ferrotron_models::{ModelConfig, Recomputation};
use ferrotron_schedule::Kind::{Interleaved, ZbH1};
use ferrotron_tests::ranks::{Ranks, agree, gpt, train};
use ferrotron_tests::{cpu_rig, plain_batch, relative_error};

const BOUND: f64 = 2e-5;
const WORD: &str = "embedding.word_embeddings.weight";
const GAIN: &str = "embedding.word_embeddings.norm.weight";
const BIAS: &str = "embedding.word_embeddings.norm.bias";
const H: usize = 32;

type Named = BTreeMap<String, Vec<f32>>;

fn f64s(v: &[f32]) -> Vec<f64> {
    v.iter().map(|&v| f64::from(v)).collect()
}

fn f32s(v: &[f64]) -> Vec<f32> {
    v.iter().map(|&v| v as f32).collect()
}

/// (x - mean) / sqrt(variance + 1e-5), and the factor.
fn standard(x: &[f64]) -> (Vec<f64>, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let factor = 1.0 / (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + 1e-5).sqrt();
    (x.iter().map(|v| (v - mean) * factor).collect(), factor)
}

/// Weights that are no norm's first ones.
fn weights(c: &ModelConfig) -> Named {
    let mut w = cpu_rig(c, DType::F32).unwrap().weights().unwrap();
    let wave = |at: f64, i: usize| (at + 0.3 * (i as f64 * 0.7).sin()) as f32;
    w.insert(GAIN.into(), (0..H).map(|i| wave(1.0, i)).collect());
    w.insert(BIAS.into(), (0..H).map(|i| wave(0.1, i + 5)).collect());
    w
}

#[test]
fn it_is_the_plain_model_on_a_normalised_table() {
    let plain = gpt(false, 0.0);
    let normed = ModelConfig { embedding_norm: true, ..plain.clone() };
    let ids: Vec<i32> = (0..32).map(|i| i * 7 % 13).collect(); // rows that come several times, and 83 that never do
    let labels: Vec<i32> = (0..32).map(|i| i * 5 % 96).collect();
    let batch = plain_batch(&ids, &labels, 16, 0, 1);

    let w = weights(&normed);
    let mut rig = cpu_rig(&normed, DType::F32).unwrap();
    rig.load(&w).unwrap();
    let got = (rig.logits(&batch).unwrap(), rig.forward_backward(std::slice::from_ref(&batch)).unwrap());
    let grads = rig.grads().unwrap();

    let (gain, bias) = (f64s(&w[GAIN]), f64s(&w[BIAS]));
    let rows: Vec<(Vec<f64>, f64)> = w[WORD].chunks(H).map(|row| standard(&f64s(row))).collect();
    let table: Vec<f64> =
        rows.iter().flat_map(|(x, _)| x.iter().zip(&gain).zip(&bias).map(|((x, g), b)| x * g + b)).collect();
    let mut without: Named = w.into_iter().filter(|(k, _)| k != GAIN && k != BIAS).collect();
    without.insert(WORD.into(), f32s(&table));
    let mut rig = cpu_rig(&plain, DType::F32).unwrap();
    rig.load(&without).unwrap();
    let want = (rig.logits(&batch).unwrap(), rig.forward_backward(std::slice::from_ref(&batch)).unwrap());
    assert!(relative_error(&got.0, &want.0) <= BOUND, "logits");
    assert!(relative_error(&[got.1], &[want.1]) <= BOUND, "loss {} and {}", got.1, want.1);

    let mut expected = rig.grads().unwrap();
    let by_table = f64s(&expected[WORD]);
    let (mut by_word, mut by_gain, mut by_bias) = (vec![], vec![0.0; H], vec![0.0; H]);
    for ((x, factor), dy) in rows.iter().zip(by_table.chunks(H)) {
        let dx: Vec<f64> = dy.iter().zip(&gain).map(|(d, g)| d * g).collect();
        let mean = dx.iter().sum::<f64>() / H as f64;
        let along = dx.iter().zip(x).map(|(d, x)| d * x).sum::<f64>() / H as f64;
        by_word.extend(dx.iter().zip(x).map(|(d, x)| factor * (d - mean - x * along)));
        for i in 0..H {
            by_gain[i] += dy[i] * x[i];
            by_bias[i] += dy[i];
        }
    }
    for (name, grad) in [(WORD, by_word), (GAIN, by_gain), (BIAS, by_bias)] {
        expected.insert(name.into(), f32s(&grad));
    }
    assert_eq!(grads.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, want) in &expected {
        let e = relative_error(&grads[name], want);
        assert!(e <= BOUND, "{name}: its gradient is off by {e:.2e}");
    }
}

#[test]
fn it_trains_alike_in_every_layout() {
    let one = Ranks::one();
    for c in [gpt(true, 0.1), gpt(false, 0.0)] {
        let c = ModelConfig { embedding_norm: true, ..c };
        let want = train(&c, DType::F32, one, 20);
        for r in [
            Ranks { tp: 2, ..one },
            Ranks { tp: 2, sp: true, dp: 2, sharded: true, overlap: true, bucket: 1000, ..one },
            Ranks { pp: 2, tp: 2, sp: true, kind: ZbH1, ..one },
            Ranks { pp: 2, chunks: 2, kind: Interleaved, dp: 2, sharded: true, ..one },
            Ranks { cp: 2, ..one },
        ] {
            agree("a norm of the embedding", &r, &train(&c, DType::F32, r, 20), &want);
        }
        let whole = ModelConfig { recompute: Recomputation::Uniform { layers: 2 }, ..c };
        agree("recomputed", &one, &train(&whole, DType::F32, one, 20), &want);
    }
}
