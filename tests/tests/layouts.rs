//! The heart of the suite: any layout trains to the same numbers as one rank.
//!
//! Twenty steps of AdamW with clipping, f32: every loss within 1e-5 and the gradient norms of ten steps within 2e-5 relative of
//! one rank's, every gradient of step one within 2e-5 (max |difference| / max |reference| of a tensor): sums over ranks run
//! in another order. Dropout is on in half of the cases. All collectives are checked against the peers'.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use ferrotron_cpu::{CpuConfig, StreamMode};
use ferrotron_device::DType;
use ferrotron_models::{ModelConfig, Recomputation};
use ferrotron_schedule::Kind::{GPipe, Interleaved, ZbH1};
use ferrotron_tests::ranks::{Ranks, agree, bits, gpt, qwen3, train};

const STEPS: usize = 20;

/// Layouts of worlds 2, 4 and 8.
fn layouts() -> Vec<Ranks> {
    let one = Ranks::one();
    vec![
        Ranks { micro: 2, ..one },
        Ranks { kind: GPipe, ..one },
        Ranks { dp: 2, ..one },
        Ranks { dp: 2, overlap: true, bucket: 1000, ..one },
        Ranks { dp: 2, sharded: true, ..one },
        Ranks { dp: 2, sharded: true, overlap: true, bucket: 3000, ..one },
        Ranks { dp: 4, sharded: true, overlap: true, bucket: 1, ..one },
        Ranks { dp: 8, sharded: true, bucket: 5000, ..one },
        Ranks { dp: 4, sharded: true, instances: 2, bucket: 3000, ..one },
        Ranks { dp: 4, sharded: true, instances: 2, overlap: true, bucket: 1000, ..one },
        Ranks { dp: 8, sharded: true, instances: 4, overlap: true, bucket: 3000, ..one },
        Ranks { tp: 2, ..one },
        Ranks { tp: 2, sp: true, ..one },
        Ranks { tp: 2, sp: true, micro: 2, ..one },
        Ranks { pp: 2, ..one },
        Ranks { pp: 2, kind: GPipe, ..one },
        Ranks { pp: 4, ..one },
        Ranks { tp: 2, dp: 2, sp: true, sharded: true, overlap: true, bucket: 2000, ..one },
        Ranks { pp: 2, dp: 2, sharded: true, overlap: true, bucket: 2000, ..one },
        Ranks { tp: 2, pp: 2, ..one },
        Ranks { tp: 2, pp: 2, sp: true, kind: GPipe, ..one },
        Ranks { tp: 2, pp: 2, dp: 2, sp: true, sharded: true, overlap: true, bucket: 1500, ..one },
        Ranks { tp: 2, dp: 4, sp: true, sharded: true, instances: 2, overlap: true, bucket: 1500, ..one },
        Ranks { tp: 2, pp: 4, sp: true, ..one },
        // Chunks on one stage hand over to each other without messages.
        Ranks { chunks: 2, kind: Interleaved, ..one },
        Ranks { kind: ZbH1, ..one },
        Ranks { pp: 2, chunks: 2, kind: Interleaved, ..one },
        Ranks { pp: 2, chunks: 2, kind: GPipe, ..one },
        Ranks { pp: 2, kind: ZbH1, ..one },
        Ranks { pp: 4, kind: ZbH1, ..one },
        Ranks { pp: 2, uneven: true, ..one },
        Ranks { pp: 2, uneven: true, kind: ZbH1, ..one },
        Ranks { pp: 2, dp: 2, chunks: 2, kind: Interleaved, sharded: true, overlap: true, bucket: 2000, ..one },
        Ranks { pp: 2, dp: 2, kind: ZbH1, sharded: true, overlap: true, bucket: 2000, ..one },
        Ranks { tp: 2, pp: 2, chunks: 2, kind: Interleaved, sp: true, ..one },
        Ranks { tp: 2, pp: 2, kind: ZbH1, sp: true, ..one },
        Ranks {
            tp: 2,
            pp: 2,
            dp: 2,
            chunks: 2,
            kind: Interleaved,
            sp: true,
            sharded: true,
            overlap: true,
            bucket: 1500,
            ..one
        },
        // More tensor-parallel ranks than KV groups of qwen3 and llama.
        Ranks { tp: 4, ..one },
        Ranks { tp: 4, sp: true, ..one },
        Ranks { tp: 4, sp: true, dp: 2, sharded: true, ..one },
        Ranks { tp: 4, dp: 2, overlap: true, bucket: 1500, ..one },
        Ranks { tp: 4, pp: 2, sp: true, kind: ZbH1, ..one },
    ]
}

fn check_all(what: &str, c: &ModelConfig) {
    let want = train(c, DType::F32, Ranks::one(), STEPS);
    assert!(want.losses[STEPS - 1] < want.losses[0], "{what}: it learns");
    for r in layouts() {
        agree(what, &r, &train(c, DType::F32, r, STEPS), &want);
    }
}

#[test]
fn gpt_tied_with_dropout() {
    check_all("gpt", &gpt(true, 0.1));
}

#[test]
fn qwen3_untied() {
    check_all("qwen3", &qwen3(false, 0.0));
}

/// Key and value heads that several tensor-parallel ranks hold, with biases and dropout: one, two and four ranks a group.
#[test]
fn ranks_share_a_kv_group() {
    let one = Ranks::one();
    let biased = ModelConfig { qkv_bias: true, qk_norm: false, linear_bias: true, ..qwen3(true, 0.1) };
    for groups in [1, 2] {
        for c in [ModelConfig { groups, ..biased.clone() }, ModelConfig { groups, ..qwen3(false, 0.1) }] {
            let what = format!("{groups} groups, bias {}", c.qkv_bias);
            let want = train(&c, DType::F32, one, STEPS);
            for r in [
                Ranks { tp: 2, dp: 2, sp: true, sharded: true, overlap: true, bucket: 700, ..one },
                Ranks { tp: 4, ..one },
                Ranks { tp: 4, sp: true, dp: 2, sharded: true, overlap: true, bucket: 700, ..one },
            ] {
                agree(&what, &r, &train(&c, DType::F32, r, STEPS), &want);
            }
        }
    }
}

#[test]
fn tied_untied_and_recomputed_twins() {
    let r = Ranks { tp: 2, pp: 2, dp: 2, sp: true, sharded: true, overlap: true, bucket: 2500, ..Ranks::one() };
    for (what, c) in [("gpt untied", gpt(false, 0.0)), ("qwen3 tied, dropout", qwen3(true, 0.1))] {
        let want = train(&c, DType::F32, Ranks::one(), STEPS);
        let whole = Recomputation::Uniform { layers: 2 };
        let parts = Recomputation::Selective { core_attention: true, mlp: true, layernorm: true };
        for recompute in [Recomputation::None, whole, parts] {
            let c = ModelConfig { recompute, ..c.clone() };
            agree(what, &r, &train(&c, DType::F32, r, STEPS), &want);
        }
    }
}

#[test]
fn a_layout_twice_is_bit_equal() {
    let one = Ranks { sharded: true, overlap: true, bucket: 1500, ..Ranks::one() };
    for r in [Ranks { tp: 2, pp: 2, dp: 2, sp: true, ..one }, Ranks { dp: 4, instances: 2, ..one }] {
        let (a, b) = (train(&gpt(true, 0.1), DType::F32, r, 5), train(&gpt(true, 0.1), DType::F32, r, 5));
        assert_eq!(bits(&a), bits(&b));
        assert_eq!(a.grads, b.grads);
    }
}

/// Streams with seeded delays: chunks and split backwards give the bits of inline streams.
#[test]
fn delays_change_no_bit_of_a_schedule() {
    let one = Ranks::one();
    let c = gpt(true, 0.1);
    for r in [
        Ranks { pp: 2, chunks: 2, kind: Interleaved, ..one },
        Ranks { pp: 2, chunks: 2, kind: GPipe, ..one },
        Ranks { pp: 4, kind: ZbH1, ..one },
        Ranks { pp: 2, dp: 2, chunks: 2, kind: Interleaved, sharded: true, overlap: true, bucket: 1500, ..one },
        Ranks { dp: 4, sharded: true, instances: 2, overlap: true, bucket: 1500, ..one },
    ] {
        let inline = train(&c, DType::F32, r, 3);
        for seed in [1, 2] {
            let device = CpuConfig { streams: StreamMode::Chaos { seed }, ..r.device };
            let late = train(&c, DType::F32, Ranks { device, ..r }, 3);
            assert_eq!(bits(&late), bits(&inline), "{r:?}, seed {seed}");
            assert_eq!(late.grads, inline.grads, "{r:?}, seed {seed}");
        }
    }
}

/// bf16 rounds activations to 8 bits and partial sums of row-parallel layers once more: over twenty steps losses stay
/// within 1 % of one rank's.
#[test]
fn bf16_stays_close() {
    let c = qwen3(false, 0.0);
    let want = train(&c, DType::BF16, Ranks::one(), STEPS);
    for r in [
        Ranks { dp: 4, sharded: true, overlap: true, bucket: 1000, ..Ranks::one() },
        Ranks { dp: 4, sharded: true, instances: 2, overlap: true, bucket: 1000, ..Ranks::one() },
        Ranks { tp: 2, pp: 2, dp: 2, sp: true, sharded: true, ..Ranks::one() },
    ] {
        let got = train(&c, DType::BF16, r, STEPS);
        let worst = got.losses.iter().zip(&want.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0f32, f32::max);
        assert!(worst < 0.01, "{r:?}: {worst}");
    }
}
