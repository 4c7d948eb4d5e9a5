//! Training a tiny model under any layout, as threads of this process.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrotron_base::mt19937::Mt19937;
use ferrotron_comm::{Fabric, Linker, Options, ThreadWorld};
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::ops::AdamConfig;
use ferrotron_device::{DType, Device, Result, Tensor, host};
use ferrotron_executor::{Chunk, Edges, Stage, run};
use ferrotron_models::{ModelConfig, Position, build};
use ferrotron_nn::{Builder, RopeScaling};
use ferrotron_optim::{Optimizer, OptimizerKind, UpdateScalars};
use ferrotron_runtime::{
    Ctx, CtxOptions, GroupNeeds, Groups, Micro, MicroHost, ParamStore, ParamTable, StoreOptions, SyncOptions, stat,
};
use ferrotron_schedule::{
    Axis, Kind, LayerSplit, Layout, Mesh, Pipe, Ring, VirtualStages, Way, chunks_of_stage, schedule,
};

use crate::{plain_batch, relative_error};

/// How ranks share the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranks {
    /// Tensor parallel.
    pub tp: usize,
    /// Pipeline stages.
    pub pp: usize,
    /// Data parallel.
    pub dp: usize,
    /// Expert parallel, a share of tensor x data parallel.
    pub ep: usize,
    /// Expert tensor parallel; 0 is `tp`.
    pub etp: usize,
    /// Context parallel.
    pub cp: usize,
    /// Samples are packed documents: attention and positions start afresh in each.
    pub documents: bool,
    /// Sequence parallel.
    pub sp: bool,
    /// Distributed optimizer.
    pub sharded: bool,
    /// Its instances.
    pub instances: usize,
    /// Gradients and parameters travel under compute.
    pub overlap: bool,
    /// Elements of a bucket.
    pub bucket: usize,
    /// Order of forwards and backwards.
    pub kind: Kind,
    /// Chunks of each stage.
    pub chunks: usize,
    /// The first stage has one layer.
    pub uneven: bool,
    /// Samples of a micro-batch.
    pub micro: usize,
    /// Forward and backward of each step but the first are one graph of the device.
    pub graph: bool,
    /// Streams of the devices.
    pub device: CpuConfig,
}

impl Ranks {
    /// One rank, inline.
    pub const fn one() -> Ranks {
        let device = CpuConfig { threads: 1, streams: StreamMode::Inline };
        Ranks {
            tp: 1,
            pp: 1,
            dp: 1,
            ep: 1,
            etp: 0,
            cp: 1,
            documents: false,
            sp: false,
            sharded: false,
            instances: 1,
            overlap: false,
            bucket: 1 << 20,
            kind: Kind::OneFOneB,
            chunks: 1,
            uneven: false,
            micro: 1,
            graph: false,
            device,
        }
    }

    /// Ranks in all.
    pub fn world(&self) -> usize {
        self.tp * self.pp * self.dp * self.cp
    }
}

/// What a training came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Loss of each step.
    pub losses: Vec<f32>,
    /// Gradient norm of each step.
    pub norms: Vec<f64>,
    /// Balancing losses of each step, summed over micro-batches and layers; 0 without experts.
    pub balance: Vec<f32>,
    /// Gradients of step one, whole tensors by name.
    pub grads: BTreeMap<String, Vec<f32>>,
}

/// Samples of a global batch.
pub const BATCH: usize = 8;
/// Tokens of a sample.
pub const SEQ: usize = 16;

/// A tiny GPT: learned positions, biases, four layers.
pub fn gpt(tied: bool, dropout: f32) -> ModelConfig {
    let c = ModelConfig::gpt(4, 32, 4, 96, SEQ);
    ModelConfig { tied, hidden_dropout: dropout, attention_dropout: dropout, init_std: 0.1, ..c }
}

/// A tiny Qwen 3: two KV groups for four heads, q/k norms, rotations, four layers.
pub fn qwen3(tied: bool, dropout: f32) -> ModelConfig {
    let position = Position::Rope { percent: 1.0, base: 1e6, interleaved: false, scaling: RopeScaling::None };
    ModelConfig {
        vocab: 96,
        max_positions: SEQ,
        position,
        head_dim: 16,
        qk_norm: true,
        tied,
        hidden_dropout: dropout,
        attention_dropout: dropout,
        init_std: 0.1,
        ..ModelConfig::llama(4, 32, 4, 2, 48)
    }
}

/// The bounds of `tests/layouts.rs`: losses, balancing losses too, within 1e-5 of `want`'s, relative; gradients of step one within 2e-5 of the
/// largest of their tensor; norms of ten steps within 2e-5, and of all within 1e-3: differences of rounding grow with every
/// update (Adam divides them by their own size), and packed documents or few KV groups make norms sensitive to them.
pub fn agree(what: &str, r: &Ranks, got: &Outcome, want: &Outcome) {
    let mut worst = (0f64, 0f64, 0f64);
    for (a, b) in got.losses.iter().chain(&got.balance).zip(want.losses.iter().chain(&want.balance)) {
        assert!(a.is_finite(), "{what} {r:?}: loss {a}");
        let off = if a == b { 0.0 } else { (a - b).abs() / b.abs() };
        worst.0 = worst.0.max(f64::from(off));
    }
    for (i, (a, b)) in got.norms.iter().zip(&want.norms).enumerate() {
        let late = if i < 10 { 1.0 } else { 50.0 };
        worst.1 = worst.1.max((a - b).abs() / b.abs() / late);
    }
    assert_eq!(got.grads.len(), want.grads.len(), "{what} {r:?}");
    for (name, values) in &got.grads {
        worst.2 = worst.2.max(relative_error(values, &want.grads[name]));
    }
    assert!(worst.0 <= 1e-5 && worst.1 <= 2e-5 && worst.2 <= 2e-5, "{what} {r:?}: loss, norm, gradients {worst:?}");
}

/// The losses' bits.
pub fn bits(o: &Outcome) -> Vec<u32> {
    o.losses.iter().map(|l| l.to_bits()).collect()
}

/// Random token ids of sample `n`, one more than a sample has.
fn sample(n: usize, vocab: usize) -> Vec<i32> {
    let mut rng = Mt19937::new(n as u32 + 1);
    (0..=SEQ).map(|_| rng.interval(vocab as u64 - 1) as i32).collect()
}

/// Micro-batch `i` of step `step` for data-parallel rank `dp`.
fn micro(r: &Ranks, vocab: usize, step: usize, i: usize, dp: usize) -> MicroHost {
    let first = step * BATCH + (i * r.dp + dp) * r.micro;
    let rows: Vec<Vec<i32>> = (first..first + r.micro).map(|n| sample(n, vocab)).collect();
    let part = |from: usize| -> Vec<i32> { rows.iter().flat_map(|x| x[from..from + SEQ].to_vec()).collect() };
    let mut m = plain_batch(&part(0), &part(1), SEQ, first, 1);
    m.weight.fill(1.0 / (BATCH * SEQ) as f32);
    m.aux_weight = r.micro as f32 / BATCH as f32;
    if r.documents {
        pack(&mut m, first);
    }
    m
}

/// Cuts each sample in documents, whose last tokens do not count: four, one of them a single token, or three, or one.
fn pack(m: &mut MicroHost, first: usize) {
    m.cu_seqlens = vec![0];
    for (i, start) in (0..m.ids.len()).step_by(SEQ).enumerate() {
        let ends: &[usize] = [&[3, 4, 13, SEQ][..], &[7, 8, SEQ], &[SEQ]][(first + i) % 3];
        let mut begin = 0;
        for &end in ends {
            for t in begin..end {
                m.positions[start + t] = (t - begin) as i32;
            }
            (m.mask[start + end - 1], m.weight[start + end - 1]) = (0.0, 0.0);
            m.cu_seqlens.push((start + end) as i32);
            begin = end;
        }
    }
}

/// Trains for `steps` steps of AdamW with clipping at 1 on CPU devices and gives what all ranks agree on.
pub fn train(c: &ModelConfig, dtype: DType, r: Ranks, steps: usize) -> Outcome {
    train_on(c, dtype, r, steps, None, &|_| Ok(Arc::new(CpuDevice::new(r.device)?)))
}

/// Gives the device of a rank.
pub type Open<'a> = &'a (dyn Fn(usize) -> Result<Arc<dyn Device>> + Sync);

/// The same on other devices, whose collectives `linker` makes.
pub fn train_on(
    c: &ModelConfig,
    dtype: DType,
    r: Ranks,
    steps: usize,
    linker: Option<Arc<dyn Linker>>,
    open: Open<'_>,
) -> Outcome {
    let world = ThreadWorld::new(r.world(), Options { checked: true, linker, ..Options::default() });
    let parts: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..r.world())
            .map(|rank| {
                let fabric = world.rank(rank);
                scope.spawn(move || {
                    let done = open(rank).and_then(|device| rank_main(c, dtype, r, steps, device, &fabric));
                    if let Err(e) = &done {
                        fabric.abort(&e.to_string());
                    }
                    done
                })
            })
            .collect();
        ranks.into_iter().map(|t| t.join().expect("a rank panicked")).collect()
    });
    let mut all = Outcome::default();
    for (rank, part) in parts.into_iter().enumerate() {
        let part = part.unwrap_or_else(|e| panic!("{r:?}: rank {rank}: {e}"));
        if rank > 0 {
            assert_eq!(part.losses, all.losses, "{r:?}: ranks agree on losses");
        }
        (all.losses, all.norms, all.balance) = (part.losses, part.norms, part.balance);
        for (name, values) in part.grads {
            // Elements that a rank does not hold are NaN; what several hold is the same on all.
            let same = |whole: &[f32]| whole.iter().zip(&values).all(|(w, v)| w.is_nan() || v.is_nan() || w == v);
            assert!(all.grads.get(&name).is_none_or(|w| same(w)), "{r:?}: rank {rank} has another gradient of {name}");
            let whole = all.grads.entry(name).or_insert_with(|| vec![f32::NAN; values.len()]);
            whole.iter_mut().zip(values).filter(|(_, v)| !v.is_nan()).for_each(|(w, v)| *w = v);
        }
    }
    all
}

fn rank_main(
    c: &ModelConfig,
    dtype: DType,
    r: Ranks,
    steps: usize,
    device: Arc<dyn Device>,
    fabric: &dyn Fabric,
) -> Result<Outcome> {
    let stream = Ctx::home_stream(&device)?;
    let etp = if r.etp == 0 { r.tp } else { r.etp };
    let layout = Layout {
        world: r.world(),
        tp: r.tp,
        cp: r.cp,
        pp: r.pp,
        ep: r.ep,
        etp,
        optimizer_instances: r.instances,
        ..Layout::single()
    };
    let mesh = Mesh::new(layout).expect("a legal layout");
    let groups = Groups::of_mesh(fabric, &mesh, GroupNeeds { chunks: r.chunks, kv_groups: c.groups }, &device)?;
    let (dp, readers) = groups.readers();
    assert_eq!((dp, readers), (mesh.place(fabric.rank(), Axis::Dp), r.dp), "{r:?}");
    let (stage, stages) = (groups.pp.rank(), groups.pp.size());
    let mut table = ParamTable::default();
    let mut builder = Builder::new(&mut table, &device, &stream, &groups, r.sp);
    let way = match r.uneven {
        true => Way::Ends { chunks: r.chunks, first: Some(1), last: None },
        false => Way::Even { chunks: VirtualStages::Count(r.chunks), embedding: false, loss: false },
    };
    let counts = LayerSplit { layers: c.num_layers, stages, way }.counts().expect("a legal division");
    let models = build(&mut builder, c, &chunks_of_stage(&counts, stages, stage))?;
    let store = StoreOptions {
        dtype,
        dp_size: groups.instance.size(),
        dp_rank: groups.instance.rank(),
        expert_dp_size: groups.edp_instance.size(),
        expert_dp_rank: groups.edp_instance.rank(),
        shard_optimizer: r.sharded,
        bucket_elements: r.bucket,
        seed: 11,
    };
    let params = ParamStore::new(table, store, &*device, &stream)?;
    let sync =
        SyncOptions { overlap_grads: r.overlap, overlap_params: r.overlap && r.sharded, ..SyncOptions::default() };
    let o = CtxOptions { dtype, seed: 5, sequence_parallel: r.sp, pool_limit: 1 << 28, poison: true, sync };
    let mut cx = Ctx::new(device, stream, groups, params, o)?;
    let rows = r.micro * SEQ / r.cp / if cx.sequence_parallel { r.tp } else { 1 };
    let edges = Edges { rows, hidden: c.hidden, stage, ring: Ring { stages, chunks: r.chunks }, in_flight: 1 };
    let stage = Stage { chunks: models.into_iter().map(|m| Chunk { layers: m.layers }).collect(), edges };
    let adam = AdamConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
    let mut optimizer = Optimizer::new(OptimizerKind::Adam(adam), &cx)?;

    let mut out = Outcome::default();
    for step in 0..steps {
        cx.step = step as u64;
        let micros = BATCH / (r.dp * r.micro);
        let place = cx.groups.pp.rank();
        let pipe = Pipe { stage: place, stages, chunks: r.chunks, microbatches: micros, group: stages };
        let list = schedule(r.kind, &pipe).expect("a legal schedule");
        let part = |g: &Groups, step, i| micro(&r, c.vocab, step, i, dp).context_part(g.cp.rank(), r.cp);
        let (device, home) = (cx.device.clone(), cx.stream.clone());
        let mut work = || -> Result<Tensor> {
            cx.params.zero_grads(&*cx.device, &cx.stream)?;
            cx.device.fill_bytes(&cx.stream, cx.stats.ptr(), cx.stats.bytes(), 0)?;
            cx.begin_grads(micros);
            run(&mut cx, &stage, &stage.edges, &list, |cx, i| {
                Micro::upload(&*cx.device, &cx.stream, &cx.pool, i, &part(&cx.groups, step, i)?)
            })?;
            cx.finish_grads()?;
            optimizer.gather_grad_squares(&cx)?;
            if step == 0 {
                out.grads = owned_grads(&cx)?;
            }
            cx.sum_stats()
        };
        let sums = match device.graphs() {
            Some(graphs) if r.graph && step > 0 => graphs.of(&home, work)?,
            _ => work()?,
        };
        let stats = host::read_f32(&*device, &home, &sums)?;
        out.losses.push(stats[stat::LOSS] / stats[stat::TOKENS]);
        out.balance.push(stats[stat::BALANCE]);
        let norm = f64::from(stats[stat::GRAD_SQUARES]).sqrt();
        out.norms.push(norm);
        let grad_factor = (1.0 / (norm + 1e-6)).min(1.0);
        let u = UpdateScalars { lr: 3e-3, weight_decay: 0.1, grad_factor, step: step as u64 + 1 };
        optimizer.update(&cx, &u)?;
        cx.gather_params()?;
    }
    cx.finish_params();
    cx.stream.synchronize()?;
    Ok(out)
}

/// The elements of whole gradients that this rank owns; NaN elsewhere.
fn owned_grads(cx: &Ctx) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut out = BTreeMap::new();
    for own in cx.params.owned_ranges() {
        let spec = &cx.params.table().spec(own.id).shard;
        let local = host::read_f32(&*cx.device, &cx.stream, &cx.params.grad(own.id)?)?;
        let whole =
            out.entry(spec.name.clone()).or_insert_with(|| vec![f32::NAN; spec.global.iter().product::<usize>()]);
        let owned = own.offset..own.offset + own.range.len();
        spec.for_each_run(|global, start, n| {
            for i in (0..n).filter(|i| owned.contains(&(start + i))) {
                whole[global + i] = local[start + i];
            }
        });
    }
    Ok(out)
}
