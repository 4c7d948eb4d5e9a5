//! Context parallelism: parts of samples on several ranks train to the numbers of whole samples on one, packed or not, with
//! dropout or without, beside every other kind of parallelism; and what a command line makes of it.
//!
//! Bounds: those of `layouts.rs`.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrotron_checkpoint::{Checkpoint, Kind as State, SafetensorsFile};
use ferrotron_comm::Options;
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::DType;
use ferrotron_models::{ModelConfig, Recomputation};
use ferrotron_schedule::Kind::{Interleaved, ZbH1};
use ferrotron_tests::ranks::{Ranks, agree, bits, gpt, qwen3, train};
use ferrotron_tests::{on_ranks, resolved, trainer};
use ferrotron_train::Trainer;
use ferrotron_train::evaluate::EvalSet;
use ferrotron_train::save_load::Loaded;
use ferrotron_train::step::Leave;

const STEPS: usize = 20;

fn layouts() -> Vec<Ranks> {
    // Two samples a micro-batch: half as many collectives.
    let cp = Ranks { cp: 2, micro: 2, ..Ranks::one() };
    vec![
        cp,
        Ranks { micro: 1, ..cp },
        Ranks { cp: 4, ..cp },
        Ranks { sharded: true, overlap: true, bucket: 1500, ..cp },
        Ranks { dp: 2, ..cp },
        Ranks { dp: 2, sharded: true, overlap: true, bucket: 1500, ..cp },
        Ranks { tp: 2, ..cp },
        Ranks { tp: 2, sp: true, ..cp },
        Ranks { tp: 4, sp: true, sharded: true, ..cp },
        Ranks { pp: 2, ..cp },
        Ranks { pp: 2, chunks: 2, kind: Interleaved, ..cp },
        Ranks { pp: 2, kind: ZbH1, sharded: true, overlap: true, bucket: 1500, ..cp },
        Ranks { tp: 2, pp: 2, sp: true, sharded: true, ..cp },
    ]
}

#[test]
fn parts_of_samples_train_as_whole_samples() {
    for (documents, c, every) in [(false, gpt(true, 0.1), 4), (true, gpt(false, 0.1), 3), (true, qwen3(false, 0.0), 1)]
    {
        let what = format!("dropout {}, documents {documents}", c.hidden_dropout);
        let want = train(&c, DType::F32, Ranks { documents, ..Ranks::one() }, STEPS);
        assert!(want.losses[STEPS - 1] < want.losses[0], "{what}: it learns");
        for r in layouts().into_iter().step_by(every) {
            let r = Ranks { documents, ..r };
            agree(&what, &r, &train(&c, DType::F32, r, STEPS), &want);
        }
    }
}

#[test]
fn dropout_windows_and_recomputation() {
    let one = Ranks { documents: true, ..Ranks::one() };
    let r = Ranks { cp: 2, dp: 2, sharded: true, ..one };
    let parts = Recomputation::Selective { core_attention: true, mlp: true, layernorm: true };
    for c in [
        qwen3(true, 0.1),
        ModelConfig { window: Some(5), ..gpt(false, 0.0) },
        ModelConfig { recompute: Recomputation::Uniform { layers: 1 }, ..gpt(false, 0.1) },
        ModelConfig { recompute: parts, ..qwen3(false, 0.1) },
    ] {
        let want = train(&c, DType::F32, one, STEPS);
        agree(&format!("{c:?}"), &r, &train(&c, DType::F32, r, STEPS), &want);
    }
}

#[test]
fn documents_change_the_loss() {
    let losses = |documents| train(&gpt(true, 0.0), DType::F32, Ranks { documents, ..Ranks::one() }, 1).losses;
    assert_ne!(losses(false), losses(true), "attention stays inside documents");
}

#[test]
fn twice_and_with_late_streams_the_same_bits() {
    let r = Ranks { tp: 2, cp: 2, pp: 2, sp: true, documents: true, sharded: true, overlap: true, ..Ranks::one() };
    let first = train(&gpt(true, 0.1), DType::F32, r, 4);
    for streams in [StreamMode::Inline, StreamMode::Chaos { seed: 1 }, StreamMode::Chaos { seed: 2 }] {
        let again = train(&gpt(true, 0.1), DType::F32, Ranks { device: CpuConfig { streams, ..r.device }, ..r }, 4);
        assert_eq!(bits(&first), bits(&again), "{streams:?}");
        assert_eq!(first.grads, again.grads, "{streams:?}");
    }
}

/// As `layouts.rs` for bf16: partial sums of dK and dV round once more.
#[test]
fn bf16_stays_close() {
    let c = qwen3(false, 0.0);
    let want = train(&c, DType::BF16, Ranks { documents: true, ..Ranks::one() }, STEPS);
    let got = train(&c, DType::BF16, Ranks { cp: 2, tp: 2, sp: true, documents: true, ..Ranks::one() }, STEPS);
    let worst = got.losses.iter().zip(&want.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0f32, f32::max);
    assert!(worst < 0.01, "{worst}");
}

const MODEL: &str = "--num-layers 2 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 --seq-length 16 \
    --group-query-attention --num-query-groups 2 --max-position-embeddings 16 --position-embedding-type rope \
    --normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0.1 --attention-dropout 0.1 \
    --tokenizer-type NullTokenizer --vocab-size 61 --make-vocab-size-divisible-by 16 --mock-data --split 80,20,0 \
    --micro-batch-size 1 --global-batch-size 8 --train-iters 4 --lr 1e-2 --eval-iters 2 --reset-position-ids \
    --reset-attention-mask --eod-mask-loss";

/// Runs `body` on every rank of a command line's layout.
fn on_layout<T: Send>(
    (ranks, layout): (usize, &str),
    body: impl Fn(&mut Trainer) -> ferrotron_train::Result<T> + Sync,
) -> Vec<T> {
    let line = resolved(&format!("{MODEL} {layout}"), ranks);
    let all = on_ranks(ranks, Options { checked: true, ..Options::default() }, |fabric| {
        let device = Arc::new(CpuDevice::new(CpuConfig { threads: 1, streams: StreamMode::Inline })?);
        body(&mut trainer(device, &line, fabric)?)
    });
    all.into_iter().map(|r| r.unwrap_or_else(|e| panic!("{ranks} ranks {layout}: {e}"))).collect()
}

/// Losses of steps, then of an evaluation: of the first rank, after comparing it with the others'.
fn losses(layout: (usize, &str), before: impl Fn(&mut Trainer) + Sync, steps: usize) -> Vec<f64> {
    let mut all = on_layout(layout, |t| {
        before(t);
        let mut out = vec![];
        for _ in 0..steps {
            out.push(f64::from(t.step(Leave::No)?.loss));
        }
        out.push(t.evaluate(EvalSet::Valid)?.expect("a validation set"));
        Ok(out)
    });
    assert!(all.iter().all(|l| *l == all[0]), "{layout:?}: ranks agree");
    all.swap_remove(0)
}

fn close(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: {got:?}, not {want:?}");
    }
}

const LAYOUTS: [(usize, &str); 8] = [
    (2, "--context-parallel-size 2"),
    (4, "--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"),
    (4, "--context-parallel-size 2 --pipeline-model-parallel-size 2"),
    (4, "--context-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    (4, "--context-parallel-size 4 --cp-comm-type allgather"),
    (4, "--tensor-model-parallel-size 4"),
    (4, "--zero-stage 3 --context-parallel-size 2 --tensor-model-parallel-size 2"),
    (8, "--zero-stage 3 --tensor-model-parallel-size 4 --sequence-parallel"),
];

#[test]
fn a_command_line_trains_and_evaluates_as_one_rank() {
    for words in ["", "--calculate-per-token-loss"] {
        let want = losses((1, words), |_| {}, 3);
        for (ranks, layout) in LAYOUTS {
            let got = losses((ranks, &format!("{layout} {words}")), |_| {}, 3);
            close(&format!("{layout} {words}"), &got, &want);
        }
    }
}

struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Temp {
        let dir = std::env::temp_dir().join(format!("ferrotron-context-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Temp(dir)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Elements of all shards of a checkpoint's folder.
fn stored_elements(dir: &Path) -> usize {
    let files = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path());
    let shards = files.filter(|p| p.extension().is_some_and(|e| e == "safetensors"));
    let elements = |p| {
        let file = SafetensorsFile::open(p).unwrap();
        file.tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum::<usize>()
    };
    shards.map(elements).sum()
}

/// Saves under one layout and goes on under others. Key and value heads that several ranks hold are in the files once.
#[test]
fn checkpoints_move_to_and_from_shared_groups_and_parts() {
    let want = losses((1, ""), |_| {}, 3);
    let all = [(1, ""), LAYOUTS[1], LAYOUTS[5], LAYOUTS[7]];
    for (i, from) in all.into_iter().enumerate() {
        let dir = Temp::new(&format!("{i}"));
        on_layout(from, |t| {
            t.step(Leave::No)?;
            t.save(&dir.0)
        });
        // Parameters and two moments.
        let saved = Checkpoint::open(&dir.0, None).unwrap();
        let whole: usize =
            saved.stored().filter(|t| t.kind == State::Param).map(|t| t.global.iter().product::<usize>()).sum();
        assert_eq!(stored_elements(saved.dir()), 3 * whole, "{from:?}: every element once");
        for to in all {
            let words = format!("{} --load {}", to.1, dir.0.display());
            let got = losses((to.0, &words), |t| assert_eq!(t.load().unwrap(), Loaded::From(1)), 2);
            close(&format!("{from:?} to {to:?}"), &got, &want[1..]);
        }
    }
}
