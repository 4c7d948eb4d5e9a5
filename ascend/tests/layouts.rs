//! Layouts of ranks on the Ascend device over the mocks of CANN and HCCL: each trains to one CPU rank's numbers, within the
//! bounds that CPU layouts have, with streams late by seeded chance, sends that end only when they were received, and no
//! rule of the vendor broken.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::path::Path;
use std::sync::Arc;

use ferrotron_ascend::{Environment, HcclLinker, HcclOptions};
use ferrotron_device::DType;
use ferrotron_models::{ExpertsConfig, ModelConfig, Recomputation};
use ferrotron_schedule::Kind::{GPipe, Interleaved, ZbH1};
use ferrotron_tests::ranks::{Outcome, Ranks, agree, gpt, qwen3, train, train_on};

/// Layouts are many, and the mock computes in f64 with checks: two steps each.
const STEPS: usize = 2;

fn on_npu(home: &Path, c: &ModelConfig, dtype: DType, r: Ranks) -> Outcome {
    let hccl = HcclOptions { buffer_mib: Some(16), ..HcclOptions::default() };
    let linker = Arc::new(HcclLinker::new(Environment::only(home), hccl));
    let out = train_on(c, dtype, r, STEPS, Some(linker), &|rank| Ok(Arc::new(common::open(home, rank, None))));
    let control = common::control();
    for d in 0..r.world() as u32 {
        assert_eq!(control.report(d), "", "{r:?}: device {d}");
    }
    out
}

#[test]
fn layouts_train_to_one_cpu_ranks_numbers() {
    let _alone = ferrotron_tests::alone();
    let home = common::home("layouts");
    let one = Ranks::one();
    let overlapped = Ranks { sharded: true, overlap: true, bucket: 2000, ..one };
    let (gpt, qwen) = (gpt(true, 0.1), qwen3(false, 0.0));
    let all = [
        (&gpt, one),
        (&gpt, Ranks { tp: 2, ..one }),
        (&gpt, Ranks { dp: 2, overlap: true, bucket: 1000, ..one }),
        (&gpt, Ranks { pp: 2, ..one }),
        (&gpt, Ranks { pp: 4, ..one }),
        (&gpt, Ranks { pp: 2, chunks: 2, kind: Interleaved, ..one }),
        (&gpt, Ranks { pp: 2, chunks: 2, kind: GPipe, ..one }),
        (&gpt, Ranks { tp: 2, pp: 2, dp: 2, sp: true, ..overlapped }),
        (&qwen, Ranks { tp: 2, sp: true, micro: 2, ..one }),
        (&qwen, Ranks { dp: 2, ..overlapped }),
        (&qwen, Ranks { dp: 4, bucket: 1, ..overlapped }),
        (&qwen, Ranks { pp: 2, kind: ZbH1, uneven: true, ..one }),
        (&qwen, Ranks { tp: 2, pp: 2, sp: true, chunks: 2, kind: Interleaved, ..one }),
        (&qwen, Ranks { tp: 2, dp: 2, sp: true, ..overlapped }),
        (&qwen, Ranks { pp: 2, dp: 2, chunks: 2, kind: Interleaved, ..overlapped }),
    ];
    let want = [&gpt, &qwen].map(|c| train(c, DType::F32, one, STEPS));
    for (c, r) in all {
        let began = std::time::Instant::now();
        let want = &want[usize::from(std::ptr::eq(c, &qwen))];
        agree("npu", &r, &on_npu(&home, c, DType::F32, r), want);
        println!("{:.1} s: {r:?}", began.elapsed().as_secs_f64());
    }
    // recomputed layers give the numbers of kept ones
    let whole = Recomputation::Uniform { layers: 2 };
    let parts = Recomputation::Selective { core_attention: true, mlp: true, layernorm: true };
    for recompute in [whole, parts] {
        let c = ModelConfig { recompute, ..gpt.clone() };
        let r = Ranks { tp: 2, sp: true, ..one };
        agree("npu, recomputed", &r, &on_npu(&home, &c, DType::F32, r), &want[0]);
    }
    common::remove(&home);
}

/// Experts on one rank, and divided over ranks with an exchange of rows of unequal numbers.
#[test]
fn experts_train_to_one_cpu_ranks_numbers() {
    let _alone = ferrotron_tests::alone();
    let home = common::home("layouts-experts");
    let one = Ranks::one();
    let e = ExpertsConfig { count: 4, chosen: 2, ffn: 20, pre_softmax: false, balance: 0.02, z_loss: 0.001 };
    let c = ModelConfig { experts: Some(e), ..qwen3(false, 0.0) };
    let want = train(&c, DType::F32, one, STEPS);
    assert!(want.balance.iter().all(|b| *b > 0.0), "{:?}", want.balance);
    for r in [one, Ranks { dp: 2, ep: 2, ..one }, Ranks { tp: 2, dp: 2, ep: 2, sp: true, sharded: true, ..one }] {
        agree("npu, experts", &r, &on_npu(&home, &c, DType::F32, r), &want);
    }
    common::remove(&home);
}

/// bf16 rounds activations to 8 bits, and HCCL every partial sum: losses stay within 1 % of one CPU rank's, as those of
/// CPU layouts.
#[test]
fn bf16_layouts_stay_close() {
    let _alone = ferrotron_tests::alone();
    let home = common::home("layouts-bf16");
    let c = qwen3(false, 0.0);
    let want = train(&c, DType::BF16, Ranks::one(), STEPS);
    let r = Ranks { tp: 2, pp: 2, sp: true, ..Ranks::one() };
    let got = on_npu(&home, &c, DType::BF16, r);
    let worst = got.losses.iter().zip(&want.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0f32, f32::max);
    assert!(worst < 0.01, "{worst}");
    common::remove(&home);
}
