//! Layouts of ranks on the CUDA device over the mocks of the driver, cublasLt and NCCL and the emulated kernels: each trains
//! to one CPU rank's numbers, within the bounds that CPU layouts have, with streams late and threads of blocks in other
//! orders by seeded chance, and no rule of the vendor broken.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::path::Path;
use std::sync::Arc;

use ferrotron_cuda::{Environment, NcclLinker};
use ferrotron_device::DType;
use ferrotron_models::{ModelConfig, Recomputation};
use ferrotron_schedule::Kind::{Interleaved, ZbH1};
use ferrotron_tests::ranks::{Outcome, Ranks, agree, bits, gpt, qwen3, train, train_on};

/// Layouts are many, and every access of every thread is checked: two steps each.
const STEPS: usize = 2;

fn on_cuda(home: &Path, c: &ModelConfig, dtype: DType, r: Ranks, steps: usize) -> Outcome {
    let linker = Arc::new(NcclLinker::new(Environment::only(home)));
    let out = train_on(c, dtype, r, steps, Some(linker), &|rank| Ok(Arc::new(common::open(home, rank, None))));
    let control = common::control();
    for d in 0..r.world() as u32 {
        assert_eq!(control.report(d), "", "{r:?}: device {d}");
    }
    out
}

#[test]
fn layouts_train_to_one_cpu_ranks_numbers() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("layouts");
    let one = Ranks::one();
    let overlapped = Ranks { sharded: true, overlap: true, bucket: 2000, ..one };
    let (gpt, qwen) = (gpt(true, 0.1), qwen3(false, 0.0));
    let recomputed = ModelConfig { recompute: Recomputation::Uniform { layers: 2 }, ..gpt.clone() };
    let all = [
        (&gpt, one),
        (&gpt, Ranks { tp: 2, ..one }),
        (&gpt, Ranks { dp: 2, overlap: true, bucket: 1000, ..one }),
        (&gpt, Ranks { pp: 2, ..one }),
        (&gpt, Ranks { pp: 2, chunks: 2, kind: Interleaved, ..one }),
        (&gpt, Ranks { tp: 2, pp: 2, dp: 2, sp: true, ..overlapped }),
        (&recomputed, Ranks { tp: 2, sp: true, ..one }),
        (&qwen, Ranks { tp: 2, sp: true, micro: 2, ..one }),
        (&qwen, Ranks { dp: 4, bucket: 1, ..overlapped }),
        (&qwen, Ranks { pp: 2, kind: ZbH1, uneven: true, ..one }),
        (&qwen, Ranks { tp: 2, pp: 2, sp: true, chunks: 2, kind: Interleaved, ..one }),
        (&qwen, Ranks { tp: 2, dp: 2, sp: true, ..overlapped }),
    ];
    let want = [&gpt, &qwen].map(|c| train(c, DType::F32, one, STEPS));
    for (c, r) in all {
        let began = std::time::Instant::now();
        let want = &want[usize::from(std::ptr::eq(c, &qwen))];
        agree("cuda", &r, &on_cuda(&home, c, DType::F32, r, STEPS), want);
        println!("{:.1} s: {r:?}", began.elapsed().as_secs_f64());
    }
    common::remove(&home);
}

/// With the forward and backward of a step as one graph: the bits of the same steps without, whatever the layout. Three steps:
/// one as always, one that makes the graph, one that gives it its parameters.
#[test]
fn graphs_give_the_same_bits() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("layouts-graphs");
    let one = Ranks::one();
    let (gpt, qwen) = (gpt(true, 0.1), qwen3(false, 0.0));
    let all = [
        (&gpt, one),
        (&gpt, Ranks { tp: 2, pp: 2, sp: true, chunks: 2, kind: Interleaved, ..one }),
        (&qwen, Ranks { tp: 2, dp: 2, sp: true, sharded: true, overlap: true, bucket: 2000, ..one }),
        (&qwen, Ranks { pp: 2, kind: ZbH1, ..one }),
    ];
    for (c, r) in all {
        let want = on_cuda(&home, c, DType::F32, r, 3);
        let got = on_cuda(&home, c, DType::F32, Ranks { graph: true, ..r }, 3);
        assert_eq!((bits(&got), got.norms), (bits(&want), want.norms), "{r:?}");
    }
    common::remove(&home);
}

/// bf16 rounds activations to 8 bits, and NCCL every partial sum: losses stay within 1 % of one CPU rank's, as those of CPU
/// layouts.
#[test]
fn bf16_layouts_stay_close() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("layouts-bf16");
    let c = qwen3(false, 0.0);
    let want = train(&c, DType::BF16, Ranks::one(), STEPS);
    let r = Ranks { tp: 2, pp: 2, sp: true, ..Ranks::one() };
    let got = on_cuda(&home, &c, DType::BF16, r, STEPS);
    let worst = got.losses.iter().zip(&want.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0f32, f32::max);
    assert!(worst < 0.01, "{worst}");
    common::remove(&home);
}
