//! ZeRO-3: blocks whose parameters lie in shares train what whole ones train, at the memory of a share, through
//! checkpoints of any stage; and a forgotten wait for a gather is a wrong number.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ferrotron_comm::{Fabric, Fault, Options, Wait};
use ferrotron_config::Resolved;
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::{DType, Device, Tensor, host};
use ferrotron_schedule::Kind;
use ferrotron_tests::{on_ranks, relative_error, resolved, trainer};
use ferrotron_train::dry::one_step;
use ferrotron_train::evaluate::EvalSet;
use ferrotron_train::step::Leave;
use ferrotron_train::{Result, Trainer};

const SIZES: &str = "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 \
    --tokenizer-type NullTokenizer --vocab-size 95 --make-vocab-size-divisible-by 16 --mock-data --split 100,0,0 \
    --micro-batch-size 1 --global-batch-size 4 --train-iters 20 --lr 1e-2 --eval-iters 0 --init-method-std 0.1 \
    --ddp-bucket-size 3000";
/// Learned positions, LayerNorm, biases, a tied head; and rotations, RMSNorm, SwiGLU, two KV groups.
const SHAPES: [(&str, &str); 2] = [
    ("gpt", ""),
    (
        "llama",
        "--position-embedding-type rope --normalization RMSNorm --swiglu --ffn-hidden-size 48 --disable-bias-linear \
         --group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
    ),
];
const DROPOUT: &str = "--hidden-dropout 0.1 --attention-dropout 0.1";
const NO_DROPOUT: &str = "--hidden-dropout 0 --attention-dropout 0";
const STEPS: usize = 20;

/// Elements of tensors by name; those that no rank told are NaN.
type Whole = BTreeMap<String, Vec<f32>>;

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    losses: Vec<f32>,
    norms: Vec<f64>,
    /// Gradients of step one.
    grads: Whole,
}

/// One rank's part of a tensor: name, elements in all, where the part starts, values.
type Part = (String, usize, usize, Vec<f32>);

fn assemble(parts: impl IntoIterator<Item = Part>) -> Whole {
    let mut whole = Whole::new();
    for (name, n, start, values) in parts {
        let all = whole.entry(name).or_insert_with(|| vec![f32::NAN; n]);
        all[start..start + values.len()].copy_from_slice(&values);
    }
    assert!(whole.values().flatten().all(|v| !v.is_nan()), "every element is some rank's");
    whole
}

fn read(t: &Trainer, x: &Tensor) -> Result<Vec<f32>> {
    let mut wide = t.cx.pool.alloc(DType::F32, *x.shape())?;
    t.cx.ops().copy(&t.cx.stream, x, &mut wide)?;
    Ok(host::read_f32(&*t.cx.device, &t.cx.stream, &wide)?)
}

/// What this rank owns of the gradients, with tensor-parallel ranks told apart.
fn gradients(t: &Trainer) -> Result<Vec<Part>> {
    let params = &t.cx.params;
    let tp = t.cx.groups.tp.rank();
    let part = |own: ferrotron_runtime::OwnedRange| {
        let spec = params.table().spec(own.id);
        let values = read(t, &params.buffers()[own.buffer].grads_of(&own.range).unwrap())?;
        Ok((format!("{} of {tp}", spec.shard.name), spec.numel(), own.offset, values))
    };
    params.owned_ranges().into_iter().map(part).collect()
}

fn device(seed: Option<u64>, rank: usize) -> Result<Arc<dyn Device>> {
    let streams = match seed {
        Some(seed) => StreamMode::Chaos { seed: seed * 64 + rank as u64 },
        None => StreamMode::Inline,
    };
    Ok(Arc::new(CpuDevice::new(CpuConfig { threads: 1, streams })?))
}

/// Trains on threads; `change` may set what has no flag.
fn train(line: &Resolved, ranks: usize, steps: usize, change: impl Fn(&mut Trainer) + Sync) -> Outcome {
    let all = on_ranks(ranks, Options { checked: true, ..Options::default() }, |fabric| {
        let mut t = trainer(device(None, fabric.rank())?, line, fabric)?;
        change(&mut t);
        let (mut losses, mut norms, mut grads) = (vec![], vec![], vec![]);
        for step in 0..steps {
            let report = t.step(Leave::No)?;
            losses.push(report.loss);
            norms.push(report.grad_norm);
            if step == 0 {
                grads = gradients(&t)?;
            }
        }
        assert_eq!(t.cx.pool.stats().live, 0, "no window outlives a step");
        t.cx.finish_params();
        Ok((losses, norms, grads))
    });
    let parts: Vec<_> = all.into_iter().map(|r| r.unwrap()).collect();
    let (losses, norms) = (parts[0].0.clone(), parts[0].1.clone());
    assert!(parts.iter().all(|p| p.0 == losses), "ranks agree on losses");
    Outcome { losses, norms, grads: assemble(parts.into_iter().flat_map(|p| p.2)) }
}

/// The bounds of every layout: losses within 1e-5, gradients of step one within 2e-5 of the largest of their tensor.
fn check(what: &str, got: &Outcome, want: &Outcome) {
    let off = |a: f64, b: f64| (a - b).abs() / b.abs();
    for (a, b) in got.losses.iter().zip(&want.losses) {
        assert!(a.is_finite() && off((*a).into(), (*b).into()) <= 1e-5, "{what}: loss {a}, not {b}");
    }
    for (a, b) in got.norms.iter().zip(&want.norms) {
        assert!(off(*a, *b) <= 2e-5, "{what}: norm {a}, not {b}");
    }
    assert_eq!(got.grads.len(), want.grads.len(), "{what}");
    for (name, values) in &got.grads {
        let worst = relative_error(values, &want.grads[name]);
        assert!(worst <= 2e-5, "{what}: gradient of {name} is off by {worst}");
    }
}

#[test]
fn it_trains_what_whole_parameters_train() {
    let full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers";
    for (shape, flags) in SHAPES {
        for dropout in [NO_DROPOUT, DROPOUT] {
            let line = |more: &str, ranks| resolved(&format!("{SIZES} {flags} {dropout} {more}"), ranks);
            let want = train(&line("", 2), 2, STEPS, |_| {});
            assert!(want.losses[STEPS - 1] < want.losses[0], "{shape}: it learns");
            let mut ways = vec![String::new(), format!("{full} 1")];
            if dropout == DROPOUT {
                ways.extend([format!("{full} 3"), "--recompute-activations".into()]);
            }
            for more in ways {
                let got = train(&line(&format!("--zero-stage 3 {more}"), 2), 2, STEPS, |_| {});
                check(&format!("{shape} {dropout} {more}"), &got, &want);
            }
        }
    }
}

#[test]
fn other_numbers_of_ranks_and_tensor_parallel_ones_agree() {
    let flags = format!("{SIZES} {} {DROPOUT}", SHAPES[1].1);
    let line = |more: &str, ranks| resolved(&format!("{flags} {more}"), ranks);
    let one = train(&line("", 1), 1, STEPS, |_| {});
    let overlap = "--zero-stage 3 --overlap-grad-reduce --overlap-param-gather";
    let four = train(&line(overlap, 4), 4, STEPS, |_| {});
    check("four ranks", &four, &one);
    let split = "--tensor-model-parallel-size 2 --sequence-parallel";
    let want = train(&line(split, 4), 4, 8, |_| {});
    let got = train(&line(&format!("{split} --zero-stage 3"), 4), 4, 8, |_| {});
    check("tensor parallel", &got, &want);
    assert!((got.losses[7] - one.losses[7]).abs() <= 1e-5 * one.losses[7]);
}

/// Weight gradients that wait (zero-bubble) reach the window as well.
#[test]
fn deferred_weight_gradients_agree() {
    for (shape, flags) in SHAPES {
        let line = |more: &str| resolved(&format!("{SIZES} {flags} {DROPOUT} {more}"), 2);
        let want = train(&line(""), 2, 5, |_| {});
        for kind in [Kind::ZbH1, Kind::GPipe] {
            let got = train(&line("--zero-stage 3"), 2, 5, |t| t.config.parallel.schedule = kind);
            check(&format!("{shape} {kind}"), &got, &want);
        }
    }
}

/// Validation between steps reads the shares as well, and leaves no window open.
#[test]
fn evaluation_agrees() {
    let data = "--split 60,40,0 --eval-iters 3 --eval-interval 100";
    let losses = |more: &str| -> Vec<f64> {
        let line = resolved(&format!("{SIZES} {} {DROPOUT} {data} {more}", SHAPES[0].1), 2);
        let all = on_ranks(2, Options::default(), |fabric| {
            let mut t = trainer(device(None, fabric.rank())?, &line, fabric)?;
            let mut losses = vec![];
            for _ in 0..2 {
                losses.push(t.evaluate(EvalSet::Valid)?);
                assert_eq!(t.cx.pool.stats().live, 0, "no window is left");
                t.step(Leave::No)?;
            }
            Ok(losses)
        });
        all.into_iter().flat_map(|r| r.unwrap()).flatten().collect()
    };
    let (got, want) = (losses("--zero-stage 3"), losses(""));
    assert_eq!((got.len(), want.len()), (4, 4));
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-5 * b), "{got:?}, {want:?}");
}

#[test]
fn twice_is_bit_equal_and_bf16_stays_close() {
    let line = |more: &str| resolved(&format!("{SIZES} {} {DROPOUT} {more}", SHAPES[1].1), 2);
    let zero3 = line("--zero-stage 3");
    assert_eq!(train(&zero3, 2, 5, |_| {}), train(&zero3, 2, 5, |_| {}));
    // bf16 keeps 8 bits; sums over micro-batches and ranks come in another order, as in every other layout: 1 %.
    let want = train(&line("--bf16"), 2, STEPS, |_| {});
    for more in ["", "--grad-reduce-in-bf16"] {
        let got = train(&line(&format!("--bf16 --zero-stage 3 {more}")), 2, STEPS, |_| {});
        let worst = got.losses.iter().zip(&want.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0f32, f32::max);
        assert!(worst < 0.01, "{more}: {worst}");
    }
}

/// Losses and norms of one step under delays: no parameter has been gathered but the units'.
fn first_step(
    line: &Resolved,
    seed: Option<u64>,
    fault: Option<Fault>,
) -> std::result::Result<Vec<(u32, u64)>, String> {
    let options = Options { fault, timeout: std::time::Duration::from_secs(60), ..Options::default() };
    let all = on_ranks(2, options, |fabric| {
        let mut t = trainer(device(seed, fabric.rank())?, line, fabric)?;
        let report = t.step(Leave::No)?;
        Ok((report.loss.to_bits(), report.grad_norm.to_bits()))
    });
    all.into_iter().map(|r| r.map_err(|e| e.to_string())).collect()
}

#[test]
fn a_wait_that_is_left_out_is_a_wrong_number() {
    let line = resolved(&format!("{SIZES} {} {DROPOUT} --zero-stage 3", SHAPES[1].1), 2);
    let inline = first_step(&line, None, None).unwrap();
    for seed in [1, 2, 3] {
        assert_eq!(first_step(&line, Some(seed), None).as_ref(), Ok(&inline), "seed {seed}");
    }
    for group in ["dp/params", "dp/grads"] {
        for missing in [Wait::Home, Wait::Result] {
            let wrong = |seed| match first_step(&line, Some(seed), Some(Fault { missing, group: Some(group.into()) })) {
                Ok(got) => got != inline,
                Err(e) => e.contains("is not finite") || panic!("{group}, {missing:?}: {e}"),
            };
            // Delays are drawn: a run may be lucky, a few are not.
            assert!((1..=8).any(wrong), "{group} without its wait for {missing:?} goes unnoticed");
        }
    }
}

/// Parameters and optimizer states of all ranks.
fn states(t: &Trainer) -> Result<Vec<Part>> {
    let (params, mut parts) = (&t.cx.params, vec![]);
    for (id, spec) in params.table().iter() {
        let (start, kept) = params.kept(id);
        parts.push((format!("param {}", spec.shard.name), spec.numel(), start, read(t, &kept)?));
    }
    for s in t.optimizer.states() {
        let spec = params.table().spec(s.own.id);
        parts.push((format!("{} {}", s.kind, spec.shard.name), spec.numel(), s.own.offset, read(t, s.tensor)?));
    }
    Ok(parts)
}

/// Loads, trains some steps, saves; gives losses and all states.
fn visit(line: &Resolved, load: Option<&Path>, steps: usize, save: &Path) -> (Vec<f32>, Whole) {
    let all = on_ranks(2, Options::default(), |fabric: Arc<dyn Fabric>| {
        let mut t = trainer(device(None, fabric.rank())?, line, fabric)?;
        if let Some(dir) = load {
            t.config.checkpoint.load = Some(dir.into());
            t.load()?;
        }
        let losses = (0..steps).map(|_| Ok(t.step(Leave::No)?.loss)).collect::<Result<Vec<_>>>()?;
        t.save(save)?;
        Ok((losses, states(&t)?))
    });
    let parts: Vec<_> = all.into_iter().map(|r| r.unwrap()).collect();
    (parts[0].0.clone(), assemble(parts.into_iter().flat_map(|p| p.1)))
}

#[test]
fn checkpoints_move_between_stages() {
    let root = std::env::temp_dir().join(format!("ferrotron-zero3-{}", std::process::id()));
    let dir = |name: &str| root.join(name);
    for precision in ["", "--bf16"] {
        let line = |stage: u8| resolved(&format!("{SIZES} {} {precision} --zero-stage {stage}", SHAPES[0].1), 2);
        let (_, trained) = visit(&line(3), None, 2, &dir("three"));
        let (_, whole) = visit(&line(0), Some(&dir("three")), 0, &dir("zero"));
        assert!(trained == whole, "3 to 0 {precision}");
        let (_, shares) = visit(&line(1), Some(&dir("zero")), 0, &dir("one"));
        assert!(trained == shares, "0 to 1 {precision}");
        let (resumed, end) = visit(&line(3), Some(&dir("one")), 2, &dir("back"));
        let (losses, want) = visit(&line(3), None, 4, &dir("never"));
        assert_eq!(resumed, losses[2..], "as if it had never stopped {precision}");
        assert!(end == want, "the same bits {precision}");
        std::fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
fn memory_is_lower_by_the_others_shares() {
    let ranks = 4;
    let line = |stage: u8| resolved(&format!("{SIZES} {} --bf16 --zero-stage {stage}", SHAPES[1].1), ranks);
    let (one, three) = (one_step(&line(1)).unwrap(), one_step(&line(3)).unwrap());
    let (a, b) = (one.stages[0].memory, three.stages[0].memory);
    // 4 blocks: q and o 32 x 32, k and v 32 x 16, gate and up 2 x 32 x 48, down 48 x 32, two norms.
    let block = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32;
    let others = 4 * block * (ranks - 1) / ranks;
    // Padding: parameters start at 64 elements, units end at 128, buffers at 512 bytes.
    let near = |saved: usize, bytes: usize, size: usize| {
        let slack = 4 * (6 * 64 + 128) * size + 5 * 512;
        assert!(saved.abs_diff(bytes) < slack, "saved {saved} bytes, not {bytes}");
    };
    near(a.parameters - b.parameters, others * 2, 2);
    near(a.gradients - b.gradients, others * 4, 4);
    assert!(a.optimizer.abs_diff(b.optimizer) < 3 * 4 * 4 * 512, "{a:?}, {b:?}");
    // Two units' parameters and two units' gradients are whole at most, and gaps between blocks.
    let windows = 2 * (block + 512) * (2 + 4);
    assert!(b.pool > a.pool && b.pool <= a.pool + windows + (16 << 10), "{a:?}, {b:?}");
}
