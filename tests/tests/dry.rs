//! The dry device runs the code of a rank without memory or arithmetic: the pool's every counter equals that of a real
//! run, rank by rank, and the ranks' collectives fit together, or the mistake is named. A few ranks stand for a thousand.

use std::sync::Arc;

use ferrotron_comm::dry::{DryRank, Trace, Volume, Volumes, cross_check};
use ferrotron_comm::{Fabric, Options};
use ferrotron_config::Resolved;
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::dry::Dry;
use ferrotron_device::{Device, PoolStats, Tensor};
use ferrotron_runtime::store::Buffer;
use ferrotron_telemetry::GptShape;
use ferrotron_tests::{on_ranks, resolved, trainer};
use ferrotron_train::Trainer;
use ferrotron_train::dry::{StageReport, one_step};
use ferrotron_train::step::Leave;

const MODEL: &str = "--num-layers 4 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 --seq-length 16 \
    --max-position-embeddings 16 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --hidden-dropout 0.1 --attention-dropout 0.1 --tokenizer-type NullTokenizer --vocab-size 61 \
    --make-vocab-size-divisible-by 16 --mock-data --split 100,0,0 --micro-batch-size 1 --global-batch-size 8 \
    --train-iters 3 --lr 1e-2 --eval-iters 0";
const STEPS: usize = 2; // the first learns what the second overlaps

const LAYOUTS: [(usize, &str); 21] = [
    (1, ""),
    (2, "--ddp-bucket-size 500"),
    (4, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 500"),
    (
        4,
        "--use-distributed-optimizer --num-distributed-optimizer-instances 2 --overlap-grad-reduce \
         --overlap-param-gather --ddp-bucket-size 500 --grad-reduce-in-bf16",
    ),
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
    (
        4,
        "--zero-stage 3 --context-parallel-size 2 --tensor-model-parallel-size 2 --group-query-attention --num-query-groups 1",
    ),
    (2, "--bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
    (4, "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --bf16"),
    (
        8,
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 \
         --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 900",
    ),
    (8, "--pipeline-model-parallel-size 4 --pipeline-schedule zb-h1 --use-distributed-optimizer"),
    (4, "--pipeline-model-parallel-size 2 --pipeline-schedule gpipe --recompute-granularity selective"),
    (2, "--zero-stage 3"),
    (2, "--zero-stage 3 --bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 2"),
    (4, "--zero-stage 3 --num-distributed-optimizer-instances 2"),
    (4, "--zero-stage 3 --tensor-model-parallel-size 2 --sequence-parallel --grad-reduce-in-bf16"),
    (8, "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1 --tensor-model-parallel-size 4"),
];

/// What the pool of each rank counts in a real run, and bytes of parameters, gradients and optimizer states.
fn measured(line: &Resolved, ranks: usize) -> Vec<(PoolStats, [usize; 3])> {
    let all = on_ranks(ranks, Options::default(), |fabric| {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig { threads: 1, streams: StreamMode::Inline })?);
        let mut t = trainer(device, line, fabric)?;
        for _ in 0..STEPS {
            t.step(Leave::No)?;
        }
        t.cx.finish_params();
        let of = |pick: fn(&Buffer) -> usize| t.cx.params.buffers().iter().map(pick).sum();
        let (params, grads) = (of(|b| b.param.bytes()), of(|b| b.grad.as_ref().map_or(0, Tensor::bytes)));
        let states = t.optimizer.states().map(|s| s.tensor.bytes()).sum();
        Ok((t.cx.pool.stats(), [params, grads, states]))
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
        let pools: Vec<PoolStats> = measured.iter().map(|m| m.0).collect();
        assert!(pools.iter().all(|m| m.peak > 0));
        assert_eq!(predicted, pools, "{ranks} ranks {layout}");
        let crossed = cross_check(&traces).unwrap_or_else(|why| panic!("{ranks} ranks {layout}: {why}"));
        stand_ins(&format!("{ranks} ranks {layout}"), &line, &measured, &traces, crossed.groups);
    }
}

/// A few ranks stand for all: each rank's memory and collectives are those of the one that was run for it.
fn stand_ins(what: &str, line: &Resolved, measured: &[(PoolStats, [usize; 3])], traces: &[Trace], groups: usize) {
    let report = one_step(line).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((report.crossed.ranks, report.crossed.groups), (traces.len(), groups), "{what}");
    let mut seen: Vec<usize> = report.stages.iter().flat_map(|s| s.ranks.clone()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..traces.len()).collect::<Vec<_>>(), "{what}: every rank once");
    for s in &report.stages {
        for &rank in &s.ranks {
            let (pool, [params, grads, states]) = &measured[rank];
            let m = &s.memory;
            assert_eq!((m.pool, m.activations), (pool.peak, pool.peak_live), "{what}: rank {rank}");
            assert_eq!((s.pool.commits, s.pool.live), (pool.commits, pool.live), "{what}: rank {rank}");
            // Buffers are rounded up to 512 bytes: one for each unit and one for the rest, or each kind of state.
            let near = |told: usize, bytes: usize| told >= bytes && told - bytes < 6 * 512;
            assert!(near(m.parameters, *params) && near(m.gradients, *grads), "{what}: rank {rank}: {m:?}");
            // Shares of the optimizer differ between data-parallel ranks by the padding of buckets.
            assert!(rank != s.ranks[0] || near(m.optimizer, *states), "{what}: rank {rank}: {m:?}, {states}");
            let twice = |v: &Volume| Volume { calls: STEPS * v.calls, bytes: STEPS * v.bytes };
            let told: Volumes = s.volumes.iter().map(|(k, v)| (k.clone(), twice(v))).collect();
            assert_eq!(told, traces[rank].volumes(), "{what}: rank {rank}");
        }
    }
}

/// A GPT of 175 billion parameters: 96 layers, hidden size 12288, 96 heads (Brown et al., 2020).
const GPT3: &str = "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 \
    --max-position-embeddings 2048 --tokenizer-type NullTokenizer --vocab-size 51200 --mock-data --split 100,0,0 \
    --micro-batch-size 1 --train-iters 500000 --lr 6e-5 --bf16 --sequence-parallel --use-distributed-optimizer \
    --overlap-grad-reduce --overlap-param-gather --recompute-granularity selective --tensor-model-parallel-size 8";

/// The layouts of Narayanan et al. (2021), 768 ranks, and of MegaScale (Jiang et al., 2024), 1,024 ranks.
#[test]
fn a_thousand_ranks_take_one_step() {
    let began = std::time::Instant::now();
    for (ranks, stages, micros, layout) in [
        (768, 12, 192, "--pipeline-model-parallel-size 12 --global-batch-size 1536"),
        (
            1024,
            8,
            48,
            "--pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 6 --global-batch-size 768",
        ),
    ] {
        let line = resolved(&format!("{GPT3} {layout}"), ranks);
        let report = one_step(&line).unwrap_or_else(|e| panic!("{layout}: {e}"));
        println!("{report}{:.1} s", began.elapsed().as_secs_f64());
        assert_eq!((report.crossed.ranks, report.microbatches), (ranks, micros));
        // The first tensor-parallel rank and the other seven, of each stage.
        assert_eq!(report.stages.len(), 2 * stages);
        assert_eq!(report.stages.iter().map(|s| s.ranks.len()).sum::<usize>(), ranks);
        let bubble = report.bubble.expect("several stages");
        assert!((bubble.simulated - bubble.formula).abs() < 1e-9, "{bubble}");

        // One replica of the model has its parameters and does its work.
        let sum = |f: fn(&StageReport) -> f64| -> f64 {
            let dp = (ranks / stages / 8) as f64;
            report.stages.iter().map(|s| f(s) * s.ranks.len() as f64).sum::<f64>() / dp
        };
        let parameters = sum(|s| s.parameters as f64);
        assert!((parameters / 1e9 - 175.0).abs() < 2.0, "{parameters}");
        let shape = GptShape {
            num_layers: 96,
            hidden_size: 12288,
            num_attention_heads: 96,
            num_query_groups: 96,
            kv_channels: 128,
            ffn_hidden_size: 4 * 12288,
            other_ffn: None,
            gated_mlp: false,
            seq_length: 2048,
            padded_vocab_size: 51200,
        };
        // Megatron's count leaves out the recomputed scores, and the logits that a split vocabulary computes twice.
        let (flops, formula) = (sum(|s| s.flops as f64), shape.flops_per_iteration(micros as u64));
        assert!((1.0..1.03).contains(&(flops / formula)), "{flops} against {formula}");
    }
    let took = began.elapsed().as_secs_f64();
    assert!(took < 60.0, "{took} s");
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak =
            status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        assert!(peak.expect("a peak in kB") < 8 << 20, "{status}");
    }
}

/// Front and back chunks balance: every context-parallel rank has the same work, in sum that of whole samples.
#[test]
fn parts_of_samples_share_the_work() {
    let work = |cp: usize| -> Vec<u64> {
        let line = resolved(&format!("{MODEL} --context-parallel-size {cp}"), cp);
        let report = one_step(&line).expect("a dry step");
        report.stages.iter().flat_map(|s| s.ranks.iter().map(|_| s.flops)).collect()
    };
    let whole = work(1)[0];
    for cp in [2, 4] {
        assert_eq!(work(cp), vec![whole / cp as u64; cp]);
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
