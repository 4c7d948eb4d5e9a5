//! Mixture of experts: any division of experts, tensors, stages and samples over ranks trains to one rank's numbers;
//! experts without a row, all rows to one expert, odd and unequal numbers of rows; checkpoints under another division;
//! host reads and memory.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrotron_comm::dry::{DryRank, cross_check};
use ferrotron_comm::{Fabric, Options};
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::dry::Dry;
use ferrotron_device::ops::Activation;
use ferrotron_device::{DType, DevPtr, Device, DeviceInfo, Ops, Region, Result, Stream, StreamRole, Tensor, host};
use ferrotron_models::{ExpertsConfig, ModelConfig, Position, Recomputation};
use ferrotron_nn::{Builder, Moe, MoeConfig, RopeScaling};
use ferrotron_runtime::{
    Ctx, CtxOptions, GroupNeeds, Groups, Layer, Micro, MicroHost, ParamStore, ParamTable, StoreOptions, SyncOptions,
};
use ferrotron_schedule::Kind::{Interleaved, ZbH1};
use ferrotron_schedule::{Layout, Mesh};
use ferrotron_tests::ranks::{Ranks, agree, train};
use ferrotron_tests::{on_ranks, plain_batch, relative_error, resolved, rig, trainer};
use ferrotron_train::dry::one_step;
use ferrotron_train::step::Leave;

const STEPS: usize = 20;

fn experts(count: usize, chosen: usize) -> ExpertsConfig {
    ExpertsConfig { count, chosen, ffn: 20, shared_ffn: 0, pre_softmax: false, balance: 0.02, z_loss: 0.001 }
}

fn llama(e: ExpertsConfig) -> ModelConfig {
    let position = Position::Rope { percent: 1.0, base: 1e4, interleaved: false, scaling: RopeScaling::None };
    ModelConfig {
        vocab: 96,
        max_positions: 16,
        position,
        experts: Some(e),
        init_std: 0.1,
        ..ModelConfig::llama(4, 32, 4, 2, 48)
    }
}

/// GELU, biases, learned positions; one expert a token of many, so that most micro-batches leave some without a row.
fn gpt() -> ModelConfig {
    let e = ExpertsConfig { pre_softmax: true, ..experts(16, 1) };
    let c = ModelConfig::gpt(4, 32, 4, 96, 16);
    ModelConfig { experts: Some(e), hidden_dropout: 0.1, init_std: 0.1, ..c }
}

fn check_all(what: &str, c: &ModelConfig, layouts: &[Ranks]) {
    let want = train(c, DType::F32, Ranks::one(), STEPS);
    assert!(want.losses[1..].iter().any(|l| *l < want.losses[0]), "{what}: it learns, {:?}", want.losses);
    assert!(want.balance.iter().all(|b| *b > 0.0), "{what}: {:?}", want.balance);
    for r in layouts {
        agree(what, r, &train(c, DType::F32, *r, STEPS), &want);
    }
}

const SHARDED: Ranks = Ranks { sharded: true, overlap: true, bucket: 2000, ..BASE };
const BASE: Ranks = Ranks::one();

#[test]
fn any_layout_trains_as_one_rank() {
    let layouts = [
        Ranks { dp: 2, ..BASE },
        Ranks { tp: 2, ..BASE },
        Ranks { kind: ZbH1, ..BASE },
        Ranks { dp: 2, ep: 2, ..BASE },
        Ranks { dp: 2, ep: 2, ..SHARDED },
        Ranks { dp: 4, ep: 2, ..BASE },
        Ranks { dp: 4, ep: 2, ..SHARDED },
        Ranks { dp: 4, ep: 4, ..SHARDED },
        Ranks { dp: 4, ep: 2, instances: 2, ..SHARDED },
        Ranks { dp: 8, ep: 2, instances: 2, ..SHARDED },
        Ranks { tp: 2, dp: 2, ep: 2, sp: true, ..BASE },
        Ranks { tp: 2, dp: 2, ep: 2, ..BASE },
        Ranks { tp: 2, dp: 4, ep: 2, sp: true, ..SHARDED },
        // experts whole on tensor-parallel ranks
        Ranks { tp: 2, etp: 1, ep: 2, sp: true, ..BASE },
        Ranks { tp: 2, dp: 2, etp: 1, ep: 4, sp: true, ..SHARDED },
        Ranks { tp: 2, dp: 2, etp: 1, ep: 1, sp: true, ..SHARDED },
        // parts of sequences
        Ranks { cp: 2, ep: 2, ..SHARDED },
        Ranks { tp: 2, cp: 2, dp: 2, ep: 2, sp: true, ..SHARDED },
        // pipelines
        Ranks { pp: 2, dp: 2, ep: 2, ..BASE },
        Ranks { pp: 2, dp: 2, ep: 2, kind: ZbH1, ..SHARDED },
        Ranks { pp: 2, dp: 2, ep: 2, chunks: 2, kind: Interleaved, ..SHARDED },
        Ranks { tp: 2, pp: 2, dp: 2, ep: 2, sp: true, ..SHARDED },
    ];
    check_all("llama", &llama(experts(4, 2)), &layouts);
}

#[test]
fn experts_without_a_row_and_biases() {
    let layouts = [
        Ranks { dp: 2, ep: 2, ..BASE },
        Ranks { dp: 4, ep: 2, ..SHARDED },
        Ranks { dp: 4, ep: 4, kind: ZbH1, ..SHARDED },
        Ranks { tp: 2, ..BASE },
        Ranks { tp: 2, dp: 2, etp: 1, ep: 4, sp: true, ..SHARDED },
    ];
    check_all("gpt", &gpt(), &layouts);
}

/// Shared experts in two blocks of four, dense blocks first and third.
#[test]
fn shared_experts_and_dense_layers() {
    let e = ExpertsConfig { shared_ffn: 12, ..experts(4, 2) };
    let c = ModelConfig { dense_layers: vec![0, 2], ..llama(e) };
    let layouts = [
        Ranks { dp: 4, ep: 2, ..SHARDED },
        Ranks { tp: 2, ..BASE },
        Ranks { tp: 2, dp: 2, ep: 2, sp: true, kind: ZbH1, ..SHARDED },
        Ranks { tp: 2, dp: 2, etp: 1, ep: 4, sp: true, ..SHARDED },
        Ranks { pp: 2, dp: 2, ep: 2, chunks: 2, kind: Interleaved, ..SHARDED },
        Ranks { pp: 2, dp: 2, ep: 2, kind: ZbH1, ..SHARDED },
        Ranks { tp: 2, cp: 2, dp: 2, ep: 2, sp: true, ..SHARDED },
    ];
    check_all("shared experts", &c, &layouts);
    let want = train(&c, DType::F32, BASE, 5);
    for recompute in [
        Recomputation::Uniform { layers: 3 },
        Recomputation::Selective { core_attention: true, mlp: true, layernorm: true },
    ] {
        let r = Ranks { tp: 2, dp: 2, ep: 2, sp: true, ..SHARDED };
        agree("recomputed", &r, &train(&ModelConfig { recompute, ..c.clone() }, DType::F32, r, 5), &want);
    }
}

#[test]
fn recomputed_blocks_count_their_losses_once() {
    let plain = llama(experts(4, 2));
    let want = train(&plain, DType::F32, BASE, 5);
    for recompute in [
        Recomputation::Uniform { layers: 2 },
        Recomputation::Selective { core_attention: true, mlp: true, layernorm: true },
    ] {
        let r = Ranks { tp: 2, dp: 2, ep: 2, sp: true, ..SHARDED };
        let c = ModelConfig { recompute, ..plain.clone() };
        agree("recomputed", &r, &train(&c, DType::F32, r, 5), &want);
    }
}

#[test]
fn twice_is_bit_equal_and_delays_change_no_bit() {
    let c = llama(experts(4, 2));
    for r in [Ranks { dp: 4, ep: 2, ..SHARDED }, Ranks { tp: 2, dp: 2, ep: 2, sp: true, pp: 2, ..SHARDED }] {
        let first = train(&c, DType::F32, r, 3);
        let late = CpuConfig { streams: StreamMode::Chaos { seed: 3 }, ..r.device };
        for device in [r.device, late] {
            let again = train(&c, DType::F32, Ranks { device, ..r }, 3);
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&again.losses), bits(&first.losses), "{r:?}");
            assert_eq!(bits(&again.balance), bits(&first.balance), "{r:?}");
            assert_eq!(again.grads, first.grads, "{r:?}");
        }
    }
}

/// As for dense models: within 1 % over twenty steps.
#[test]
fn bf16_stays_close() {
    let c = llama(experts(4, 2));
    let want = train(&c, DType::BF16, BASE, STEPS);
    let r = Ranks { tp: 2, dp: 2, ep: 2, sp: true, ..SHARDED };
    let got = train(&c, DType::BF16, r, STEPS);
    let worst = got.losses.iter().zip(&want.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0f32, f32::max);
    assert!(worst < 0.01, "{worst}");
}

/// One expert is an MLP: the golden-tested dense model is the reference.
#[test]
fn one_expert_is_the_dense_model() {
    let only =
        ExpertsConfig { count: 1, chosen: 1, ffn: 48, shared_ffn: 0, pre_softmax: false, balance: 0.0, z_loss: 0.0 };
    let (moe, dense) = (llama(only), ModelConfig { experts: None, ..llama(only) });
    let device = || -> Arc<dyn Device> { Arc::new(CpuDevice::new(CpuConfig::default()).unwrap()) };
    let (mut moe, mut dense) = (rig(device(), &moe, DType::F32).unwrap(), rig(device(), &dense, DType::F32).unwrap());
    let weights = moe.weights().unwrap();
    let of_dense = |name: &str| name.replace("experts.local_experts.0.", "");
    dense.load(&weights.iter().map(|(k, v)| (of_dense(k), v.clone())).collect()).unwrap();
    let ids: Vec<i32> = (0..15).map(|i| i * 37 % 96).collect();
    let batch = plain_batch(&ids[..], &ids, 5, 0, 1);
    let batch = std::slice::from_ref(&batch);
    let (a, b) = (moe.forward_backward(batch).unwrap(), dense.forward_backward(batch).unwrap());
    assert!((a - b).abs() <= 1e-6 * b.abs(), "{a}, dense {b}");
    let want = dense.grads().unwrap();
    for (name, got) in moe.grads().unwrap() {
        match want.get(&of_dense(&name)) {
            Some(want) => assert!(relative_error(&got, want) <= 2e-6, "{name}"),
            None => assert!(name.ends_with("router.weight") && got.iter().all(|g| g.abs() < 1e-6), "{name}"),
        }
    }
}

/// Three samples of five tokens at once, or one by one: without auxiliary losses the gradients add up.
#[test]
fn an_odd_number_of_tokens_adds_up() {
    let c = llama(ExpertsConfig { balance: 0.0, z_loss: 0.0, ..experts(5, 3) });
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig::default()).unwrap());
    let mut rig = rig(device, &c, DType::F32).unwrap();
    let ids: Vec<i32> = (0..15).map(|i| i * 29 % 96).collect();
    rig.forward_backward(&[plain_batch(&ids, &ids, 5, 0, 1)]).unwrap();
    let whole = rig.grads().unwrap();
    let parts: Vec<MicroHost> = ids.chunks(5).map(|ids| plain_batch(ids, ids, 5, 0, 3)).collect();
    rig.forward_backward(&parts).unwrap();
    for (name, got) in rig.grads().unwrap() {
        assert!(relative_error(&got, &whole[&name]) <= 2e-5, "{name}");
    }
}

/// What a layer gives on the ranks of an expert-parallel group, each with rows of its own.
#[derive(Debug, Default)]
struct LayerRun {
    y: Vec<f32>,
    dx: Vec<f32>,
    grads: BTreeMap<String, Vec<f32>>,
}

const HIDDEN: usize = 6;

/// Runs a layer forward and backward on `rows[r]` rows on rank r. With `one` all rows go to the last expert first.
fn layer(rows: &[usize], experts: usize, chosen: usize, one: bool) -> LayerRun {
    let parts = on_ranks(rows.len(), Options { checked: true, ..Options::default() }, |fabric| {
        Ok(layer_on(&*fabric, rows, experts, chosen, one)?)
    });
    let mut all = LayerRun::default();
    for part in parts {
        let part = part.unwrap();
        all.y.extend(part.y);
        all.dx.extend(part.dx);
        for (name, grad) in part.grads {
            let sum = all.grads.entry(name).or_insert_with(|| vec![0.0; grad.len()]);
            sum.iter_mut().zip(grad).for_each(|(s, g)| *s += g);
        }
    }
    all
}

fn layer_on(fabric: &dyn Fabric, rows: &[usize], experts: usize, chosen: usize, one: bool) -> Result<LayerRun> {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig { threads: 1, ..CpuConfig::default() })?);
    let stream = Ctx::home_stream(&device)?;
    let ranks = rows.len();
    let mesh = Mesh::new(Layout { world: ranks, ep: ranks, ..Layout::single() }).unwrap();
    let groups = if ranks == 1 {
        Groups::solo(&device)
    } else {
        Groups::of_mesh(fabric, &mesh, GroupNeeds { chunks: 1, kv_groups: 1 }, &device)?
    };
    let mut table = ParamTable::default();
    let c = MoeConfig {
        hidden: HIDDEN,
        experts,
        chosen,
        ffn: 7,
        shared_ffn: 0,
        activation: Activation::Silu,
        gated: true,
        bias: true,
        std: 0.5,
        out_std: 0.5,
        pre_softmax: true,
        balance: 0.0,
        z_loss: 0.0,
    };
    let moe = Moe::new(&mut Builder::new(&mut table, &device, &stream, &groups, false), "mlp", &c);
    let store = StoreOptions {
        dtype: DType::F32,
        dp_size: ranks,
        dp_rank: fabric.rank(),
        expert_dp_size: 1,
        expert_dp_rank: 0,
        shard_optimizer: false,
        bucket_elements: 1 << 20,
        seed: 3,
    };
    let params = ParamStore::new(table, store, &*device, &stream)?;
    let sync = SyncOptions::default();
    let o =
        CtxOptions { dtype: DType::F32, seed: 1, sequence_parallel: false, pool_limit: 1 << 24, poison: true, sync };
    let mut cx = Ctx::new(device, stream, groups, params, o)?;
    let router = cx.params.table().find("mlp.router.weight").unwrap();
    if one {
        // The first element of each row is 1: the last expert's logit is far above the others.
        let mut w = vec![0.0; experts * HIDDEN];
        w[(experts - 1) * HIDDEN] = 200.0;
        host::write_f32(&*cx.device, &cx.stream, &w, &mut cx.params.weight(router))?;
    }
    let (first, n): (usize, usize) = (rows[..fabric.rank()].iter().sum(), rows[fabric.rank()]);
    let value = |i: usize, seed: u64| ferrotron_base::philox::normal(seed, i as u64);
    let whole = |seed: u64| -> Vec<f32> {
        let x = first * HIDDEN..(first + n) * HIDDEN;
        x.map(|i| if seed == 1 && i % HIDDEN == 0 { 1.0 } else { value(i, seed) }).collect()
    };
    let upload = |cx: &Ctx, values: &[f32]| -> Result<Tensor> {
        let mut t = cx.alloc([values.len() / HIDDEN, HIDDEN])?;
        host::write_f32(&*cx.device, &cx.stream, values, &mut t)?;
        Ok(t)
    };
    let out = {
        let ids = vec![0; n];
        let mb = Micro::upload(&*cx.device, &cx.stream, &cx.pool, 0, &plain_batch(&ids, &ids, n.max(1), 0, 1))?;
        let x = upload(&cx, &whole(1))?;
        let (y, saved) = moe.forward(&mut cx, &mb, x)?;
        let dy = upload(&cx, &whole(2))?;
        let (dx, _) = moe.backward(&mut cx, &mb, dy, saved)?;
        let read = |t: &Tensor| host::read_f32(&*cx.device, &cx.stream, t);
        LayerRun { y: read(&y)?, dx: read(&dx)?, grads: BTreeMap::new() }
    };
    assert_eq!(cx.pool.stats().live, 0, "a layer leaves nothing behind");
    let grad = |id| host::read_f32(&*cx.device, &cx.stream, &cx.params.grad(id)?);
    let names: Vec<_> = cx.params.table().iter().map(|(id, p)| (id, p.shard.name.clone())).collect();
    let grads = names.into_iter().map(|(id, name)| Ok((name, grad(id)?))).collect::<Result<_>>()?;
    Ok(LayerRun { grads, ..out })
}

/// Rows of all ranks on one rank are the reference.
#[test]
fn a_layer_over_ranks_with_unequal_rows() {
    for (rows, experts, chosen) in
        [(&[5, 3][..], 4, 2), (&[1, 8], 2, 1), (&[0, 7], 4, 2), (&[3, 0, 4], 6, 5), (&[1, 2, 3, 1], 8, 1)]
    {
        for one in [false, true] {
            let what = format!("{rows:?} rows, {experts} experts, {chosen} chosen, all to one: {one}");
            let want = layer(&[rows.iter().sum()], experts, chosen, one);
            let got = layer(rows, experts, chosen, one);
            // Products of few rows are summed in another order.
            assert!(relative_error(&got.y, &want.y) <= 1e-6, "{what}");
            assert!(relative_error(&got.dx, &want.dx) <= 1e-6, "{what}");
            assert_eq!(got.grads.len(), want.grads.len());
            for (name, grad) in &got.grads {
                let want = &want.grads[name];
                let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                let worst = grad.iter().zip(want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(worst <= 2e-6 * largest.max(1e-3), "{what}: {name} is off by {worst:e} of {largest}");
            }
            let used = (0..experts).filter(|e| {
                want.grads[&format!("mlp.experts.local_experts.{e}.linear_fc2.bias")].iter().any(|g| *g != 0.0)
            });
            assert!(!one || chosen > 1 || used.eq([experts - 1]), "{what}: all rows went to the last expert");
        }
    }
}

/// A CPU device that counts what the host reads from it.
struct Reads {
    inner: CpuDevice,
    n: AtomicUsize,
}

impl Device for Reads {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn ops(&self) -> &dyn Ops {
        self.inner.ops()
    }
    fn stream(&self, role: StreamRole) -> Result<Stream> {
        self.inner.stream(role)
    }
    fn reserve(&self, bytes: usize, what: &'static str) -> Result<Arc<dyn Region>> {
        self.inner.reserve(bytes, what)
    }
    fn upload(&self, s: &Stream, src: &[u8], dst: &mut Tensor) -> Result<()> {
        self.inner.upload(s, src, dst)
    }
    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> Result<()> {
        self.n.fetch_add(1, Ordering::Relaxed);
        self.inner.download(s, src, dst)
    }
    fn fill_bytes(&self, s: &Stream, ptr: DevPtr, bytes: usize, value: u8) -> Result<()> {
        self.inner.fill_bytes(s, ptr, bytes, value)
    }
}

#[test]
fn a_layer_reads_once_and_memory_stays_bounded() {
    let c = llama(experts(4, 2));
    let device = Arc::new(Reads { inner: CpuDevice::new(CpuConfig::default()).unwrap(), n: AtomicUsize::new(0) });
    let mut rig = rig(device.clone(), &c, DType::F32).unwrap();
    let micro = |i: usize| {
        let ids: Vec<i32> = (0..16).map(|t| ((t * (i + 3)) * 31 + i) as i32 % 96).collect();
        plain_batch(&ids, &ids, 16, 0, 3)
    };
    let mut peaks = vec![];
    for step in 0..8 {
        let before = device.n.load(Ordering::Relaxed);
        rig.forward_backward(&[micro(3 * step), micro(3 * step + 1), micro(3 * step + 2)]).unwrap();
        let reads = device.n.load(Ordering::Relaxed) - before;
        assert_eq!(reads, 3 * c.num_layers + 1, "one for each layer and micro-batch, one for the step");
        let stats = rig.cx.pool.stats();
        assert_eq!(stats.live, 0, "a step leaves nothing behind");
        peaks.push(stats.peak);
    }
    // On one rank every token makes `chosen` rows, wherever they go: sizes do not depend on the tokens.
    assert!(peaks.iter().all(|p| *p == peaks[0]), "{peaks:?}");
}

const MODEL: &str = "--num-layers 2 --hidden-size 16 --ffn-hidden-size 24 --num-attention-heads 2 --seq-length 8 \
    --max-position-embeddings 8 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --hidden-dropout 0 --attention-dropout 0 --tokenizer-type NullTokenizer --vocab-size 61 \
    --make-vocab-size-divisible-by 16 --mock-data --split 100,0,0 --micro-batch-size 1 --global-batch-size 4 \
    --train-iters 4 --lr 1e-2 --eval-iters 0 --init-method-std 0.1 --num-experts 4 --moe-ffn-hidden-size 12 \
    --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-z-loss-coeff 1e-3 \
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall";

/// Losses, then auxiliary losses, of `steps` steps; loads from and saves to `dir` as told.
fn run(layout: &str, ranks: usize, dir: &std::path::Path, load: bool, save: bool, steps: usize) -> Vec<Vec<f32>> {
    let place = dir.display();
    let line = resolved(&format!("{MODEL} {layout} --save {place} --load {place} --save-interval 100"), ranks);
    let all = on_ranks(ranks, Options { checked: true, ..Options::default() }, |fabric| {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig { threads: 1, ..CpuConfig::default() })?);
        let mut t = trainer(device, &line, fabric)?;
        if load {
            t.load()?;
        }
        let mut losses = vec![];
        for _ in 0..steps {
            let report = t.step(Leave::No)?;
            let names: Vec<_> = report.aux_losses.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, ["load_balancing_loss", "z_loss"]);
            losses.push(std::iter::once(report.loss).chain(report.aux_losses.iter().map(|(_, v)| *v)).collect());
        }
        if save {
            t.save(dir)?;
        }
        Ok(losses)
    });
    all.into_iter().map(|r| r.unwrap()).next().unwrap()
}

#[test]
fn a_checkpoint_loads_under_another_division_of_experts() {
    let root = std::env::temp_dir().join(format!("ferrotron-moe-{}", std::process::id()));
    let close = |what: &str, got: &[Vec<f32>], want: &[Vec<f32>]| {
        for (a, b) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: {got:?}, one rank {want:?}");
        }
    };
    let whole = run("", 1, &root.join("none"), false, false, 4);
    // An even load gives 1, and a router that has just begun is not far from it.
    assert!(whole.iter().all(|l| (0.9..1.5).contains(&l[1]) && l[2] > 0.0), "{whole:?}");
    let sharded = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 500";
    let zero3 = "--expert-model-parallel-size 2 --zero-stage 3";
    let two = format!("--expert-model-parallel-size 2 {sharded}");
    let four = format!("--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel {sharded}");
    let dir = root.join("saved");
    close("two ranks", &run(&two, 2, &dir, false, true, 2), &whole[..2]);
    for (layout, ranks) in
        [("", 1), (&two, 2), (&four, 4), ("--expert-model-parallel-size 4", 4), (zero3, 2), (zero3, 4)]
    {
        close(layout, &run(layout, ranks, &dir, true, false, 2), &whole[2..]);
    }
    std::fs::remove_dir_all(&root).unwrap();
}

/// With `--calculate-per-token-loss` the step divides by all tokens; the auxiliary losses keep their weight.
#[test]
fn per_token_losses_weigh_auxiliary_losses_alike() {
    let none = std::path::Path::new("none");
    let (a, b) = (run("", 1, none, false, false, 4), run("--calculate-per-token-loss", 1, none, false, false, 4));
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{a} {b}");
    }
}

/// The dry device has no counts to read: every expert gets its share, and the calls of all ranks fit.
#[test]
fn dry_ranks_fit_together() {
    let layout = "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel \
        --use-distributed-optimizer --overlap-grad-reduce";
    let line = resolved(&format!("{MODEL} {layout}"), 4);
    let traces: Vec<_> = (0..4)
        .map(|r| {
            let fabric = Arc::new(DryRank::new(r, 4));
            let mut t = trainer(Arc::new(Dry::new("dry:0", 1 << 36)), &line, fabric.clone()).unwrap();
            t.rehearse().unwrap();
            assert!(t.cx.pool.stats().peak > 0);
            fabric.trace()
        })
        .collect();
    cross_check(&traces).unwrap();
    // Rows go there and back, forward and backward, for each layer and micro-batch.
    let volume = traces[0].volumes()[&("ep/layers".to_string(), "all_to_all_v")];
    assert_eq!(volume.calls, 4 * 2 * 2);
    // One rank stands for all that do the same, with rows that do not divide too.
    for flags in ["", "--seq-length 7 --micro-batch-size 1"] {
        let line = resolved(&format!("{MODEL} {layout} {flags}").replace("--sequence-parallel", ""), 4);
        assert_eq!(one_step(&line).unwrap().crossed.ranks, 4);
    }
}
