//! The dry device runs the code of a rank without memory or arithmetic: the pool's every counter equals that of a real
//! run, rank by rank, and the ranks' collectives fit together, or the mistake is named.

use std::sync::Arc;

use ferrotron_comm::dry::{DryRank, Trace, cross_check};
use ferrotron_comm::{Fabric, Options};
use ferrotron_config::Resolved;
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::dry::Dry;
use ferrotron_device::{Device, PoolStats};
use ferrotron_tests::{on_ranks, resolved, trainer};
use ferrotron_train::Trainer;
use ferrotron_train::step::Leave;

const MODEL: &str = "--num-layers 4 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 --seq-length 16 \
    --max-position-embeddings 16 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --hidden-dropout 0.1 --attention-dropout 0.1 --tokenizer-type NullTokenizer --vocab-size 61 \
    --make-vocab-size-divisible-by 16 --mock-data --split 100,0,0 --micro-batch-size 1 --global-batch-size 8 \
    --train-iters 3 --lr 1e-2 --eval-iters 0";
const STEPS: usize = 2; // the first learns what the second overlaps

const LAYOUTS: [(usize, &str); 10] = [
    (1, ""),
    (2, "--ddp-bucket-size 500"),
    (4, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 500"),
    (4, "--tensor-model-parallel-size 2 --sequence-parallel --grad-reduce-in-bf16"),
    (4, "--pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce"),
    (
        8,
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
         --untie-embeddings-and-output-weights",
    ),
    (4, "--tensor-model-parallel-size 4 --group-query-attention --num-query-groups 2 --add-qkv-bias"),
    (4, "--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"),
    (
        4,
        "--context-parallel-size 2 --pipeline-model-parallel-size 2 --recompute-granularity selective \
         --reset-position-ids --reset-attention-mask --eod-mask-loss",
    ),
    (2, "--bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
];

/// What the pool of each rank counts in a real run.
fn measured(line: &Resolved, ranks: usize) -> Vec<PoolStats> {
    let all = on_ranks(ranks, Options::default(), |fabric| {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig { threads: 1, streams: StreamMode::Inline })?);
        let mut t = trainer(device, line, fabric)?;
        for _ in 0..STEPS {
            t.step(Leave::No)?;
        }
        t.cx.finish_params();
        Ok(t.cx.pool.stats())
    });
    all.into_iter().map(|r| r.expect("a real run")).collect()
}

/// A rank alone, on the dry device, after `body`.
fn dry(line: &Resolved, rank: usize, ranks: usize, body: impl FnOnce(&mut Trainer)) -> (PoolStats, Trace) {
    let fabric = Arc::new(DryRank::new(rank, ranks));
    let world: Arc<dyn Fabric> = fabric.clone();
    let mut t = trainer(Arc::new(Dry::new("dry:0", 1 << 36)), line, world).expect("a dry rank");
    body(&mut t);
    t.cx.finish_params();
    (t.cx.pool.stats(), fabric.trace())
}

fn steps(n: usize) -> impl FnOnce(&mut Trainer) {
    move |t| (0..n).for_each(|_| t.rehearse().expect("a dry step"))
}

#[test]
fn memory_is_predicted_exactly_and_collectives_fit() {
    for (ranks, layout) in LAYOUTS {
        let line = resolved(&format!("{MODEL} {layout}"), ranks);
        let measured = measured(&line, ranks);
        let (predicted, traces): (Vec<_>, Vec<_>) = (0..ranks).map(|r| dry(&line, r, ranks, steps(STEPS))).unzip();
        assert!(measured.iter().all(|m| m.peak > 0));
        assert_eq!(predicted, measured, "{ranks} ranks {layout}");
        cross_check(&traces).unwrap_or_else(|why| panic!("{ranks} ranks {layout}: {why}"));
    }
}

#[test]
fn a_rank_that_skips_a_collective_is_named() {
    let line = resolved(&format!("{MODEL} --use-distributed-optimizer"), 2);
    let rank = |r: usize, body: &dyn Fn(&mut Trainer)| dry(&line, r, 2, |t| body(t)).1;
    let plain = |t: &mut Trainer| t.rehearse().unwrap();
    let more = |t: &mut Trainer| {
        t.rehearse().unwrap();
        t.cx.gather_params().unwrap();
    };
    cross_check(&[rank(0, &plain), rank(1, &plain)]).unwrap();
    let why = cross_check(&[rank(0, &more), rank(1, &plain)]).unwrap_err();
    assert!(why.contains("rank 0: dp/params #") && why.contains("all_gather"), "{why}");
    assert!(why.contains("rank 1 makes no such call") && why.contains("sync.rs:"), "{why}");
    // Skipped in the middle: the next call of the rank meets the wrong one.
    let why = cross_check(&[rank(0, &|t| (more(t), plain(t)).1), rank(1, &|t| (plain(t), plain(t)).1)]).unwrap_err();
    assert!(why.contains("calls of two ranks differ") && why.contains("rank 0: ") && why.contains("rank 1: "), "{why}");
}
