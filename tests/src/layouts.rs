//! The layouts of ranks that every vendor's device trains, over its mock, to one CPU rank's numbers within the bounds that
//! CPU layouts have.

use std::time::Instant;

use ferrotron_device::DType;
use ferrotron_models::{ExpertsConfig, ModelConfig, Recomputation};
use ferrotron_schedule::Kind::{GPipe, Interleaved, ZbH1};

use crate::mock::Mocked;
use crate::ranks::{Outcome, Ranks, agree, bits, gpt, qwen3, train, train_on};

/// Layouts are many, and mocks check every access: two steps each.
const STEPS: usize = 2;

/// Trains a model of a type in a layout on the device for so many steps, and breaks no rule of the vendor.
fn trains(v: &impl Mocked, c: &ModelConfig, dtype: DType, r: Ranks, steps: usize) -> Outcome {
    let out = train_on(c, dtype, r, steps, Some(v.linker()), &|rank| Ok(v.open(rank, None)));
    for d in 0..r.world() as u32 {
        assert_eq!(v.control().report(d), "", "{r:?}: device {d}");
    }
    out
}

/// Two parts of tensor-parallel ranks with split sequences.
fn split() -> Ranks {
    Ranks { tp: 2, sp: true, ..Ranks::one() }
}

/// The distributed optimizer, with everything overlapped.
fn overlapped() -> Ranks {
    Ranks { sharded: true, overlap: true, bucket: 2000, ..Ranks::one() }
}

/// Tensor, sequence, pipeline and data parallel layouts and their mixtures, on up to eight ranks, in f32.
pub fn dense(v: &impl Mocked) {
    let (one, split, overlapped) = (Ranks::one(), split(), overlapped());
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
        (&qwen, Ranks { micro: 2, ..split }),
        (&qwen, Ranks { dp: 2, ..overlapped }),
        (&qwen, Ranks { dp: 4, bucket: 1, ..overlapped }),
        (&qwen, Ranks { pp: 2, kind: ZbH1, uneven: true, ..one }),
        (&qwen, Ranks { pp: 2, chunks: 2, kind: Interleaved, ..split }),
        (&qwen, Ranks { tp: 2, dp: 2, sp: true, ..overlapped }),
        (&qwen, Ranks { pp: 2, dp: 2, chunks: 2, kind: Interleaved, ..overlapped }),
    ];
    let want = [&gpt, &qwen].map(|c| train(c, DType::F32, one, STEPS));
    for (c, r) in all {
        let began = Instant::now();
        let want = &want[usize::from(std::ptr::eq(c, &qwen))];
        agree(v.name(), &r, &trains(v, c, DType::F32, r, STEPS), want);
        println!("{:.1} s: {r:?}", began.elapsed().as_secs_f64());
    }
}

/// Recomputed layers give the numbers of kept ones.
pub fn recomputed(v: &impl Mocked) {
    let kept = gpt(true, 0.1);
    let want = train(&kept, DType::F32, Ranks::one(), STEPS);
    let whole = Recomputation::Uniform { layers: 2 };
    let parts = Recomputation::Selective { core_attention: true, mlp: true, layernorm: true };
    for recompute in [whole, parts] {
        let c = ModelConfig { recompute, ..kept.clone() };
        agree(&format!("{}, recomputed", v.name()), &split(), &trains(v, &c, DType::F32, split(), STEPS), &want);
    }
}

/// Experts in three blocks of four, shared ones beside them, on one rank, and divided over ranks with an exchange of rows of unequal numbers.
pub fn experts(v: &impl Mocked) {
    let one = Ranks::one();
    let e = ExpertsConfig {
        count: 4,
        chosen: 2,
        ffn: 20,
        shared_ffn: 12,
        pre_softmax: false,
        balance: 0.02,
        z_loss: 0.001,
    };
    let c = ModelConfig { experts: Some(e), dense_layers: vec![2], ..qwen3(false, 0.0) };
    let want = train(&c, DType::F32, one, STEPS);
    assert!(want.balance.iter().all(|b| *b > 0.0), "{:?}", want.balance);
    for r in [one, Ranks { dp: 2, ep: 2, ..one }, Ranks { dp: 2, ep: 2, sharded: true, ..split() }] {
        agree(&format!("{}, experts", v.name()), &r, &trains(v, &c, DType::F32, r, STEPS), &want);
    }
}

/// bf16 rounds activations to 8 bits, and the vendor's library every partial sum: losses stay within 1 % of one CPU rank's,
/// as those of CPU layouts.
pub fn bf16(v: &impl Mocked) {
    let c = qwen3(false, 0.0);
    let want = train(&c, DType::BF16, Ranks::one(), STEPS);
    let got = trains(v, &c, DType::BF16, Ranks { pp: 2, ..split() }, STEPS);
    let worst = got.losses.iter().zip(&want.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0f32, f32::max);
    assert!(worst < 0.01, "{}: {worst}", v.name());
}

/// With the forward and backward of a step as one graph: the bits of the same steps without, whatever the layout. Three steps:
/// one as always, one that makes the graph, one that gives it its parameters.
pub fn graphs(v: &impl Mocked) {
    let (one, split) = (Ranks::one(), split());
    let (gpt, qwen) = (gpt(true, 0.1), qwen3(false, 0.0));
    for (c, r) in [
        (&gpt, one),
        (&gpt, Ranks { pp: 2, chunks: 2, kind: Interleaved, ..split }),
        (&qwen, Ranks { tp: 2, dp: 2, sp: true, ..overlapped() }),
        (&qwen, Ranks { pp: 2, kind: ZbH1, ..one }),
    ] {
        let want = trains(v, c, DType::F32, r, 3);
        let got = trains(v, c, DType::F32, Ranks { graph: true, ..r }, 3);
        assert_eq!((bits(&got), got.norms), (bits(&want), want.norms), "{}: {r:?}", v.name());
    }
}
