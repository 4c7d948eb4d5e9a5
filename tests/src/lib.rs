//! Cross-crate and end-to-end tests live in `tests/`; this library holds what they share.

pub mod layouts;
pub mod mock;
pub mod ranks;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrotron_checkpoint::SafetensorsFile;
use ferrotron_comm::{Fabric, Options, ThreadWorld};
use ferrotron_config::{Environment, Resolved, Table, parse, report, validate};
use ferrotron_cpu::{CpuConfig, CpuDevice};
use ferrotron_device::{DType, Device, Result, host};
use ferrotron_executor::{Chunk, Edges, Stage, run};
use ferrotron_models::{ModelConfig, build};
use ferrotron_nn::{Builder, Head};
use ferrotron_runtime::{
    Ctx, CtxOptions, Groups, Micro, MicroHost, ParamId, ParamStore, ParamTable, StoreOptions, stat,
};
use ferrotron_schedule::{ChunkPlan, Kind, Pipe, schedule};
use ferrotron_train::{Trainer, World};

/// One test at a time, while the guard lives: for tests that use the devices of a vendor's mock by the same numbers. These, their
/// reports, faults and patience are the process's, and cargo runs the tests of a file at once.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed leaves nothing half done here.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder of golden numbers.
pub fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(path)
}

/// All tensors of a safetensors file, as f32, with their shapes.
pub fn tensors(path: &str) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let file = SafetensorsFile::open(golden(path)).expect("golden file");
    let floats = file.tensors().iter().filter(|t| t.dtype.is_some_and(DType::is_float));
    floats.map(|t| (t.name.clone(), (t.shape.clone(), file.read_f32(&t.name).expect("readable")))).collect()
}

/// Relative error of a tensor: max |a - b| / max |b|.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "element counts");
    assert!(got.iter().all(|v| v.is_finite()), "all values are finite");
    let scale = want.iter().fold(0f64, |m, v| m.max(f64::from(v.abs())));
    let worst = got.iter().zip(want).fold(0f64, |m, (a, b)| m.max(f64::from((a - b).abs())));
    if worst == 0.0 { 0.0 } else { worst / scale }
}

/// One rank with a whole model on a device.
pub struct Rig {
    /// Its world.
    pub cx: Ctx,
    /// Its layers.
    pub stage: Stage,
    /// Its head, for logits.
    pub head: Arc<Head>,
}

/// A model on the CPU device with default threads.
pub fn cpu_rig(c: &ModelConfig, dtype: DType) -> Result<Rig> {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig::default())?);
    rig(device, c, dtype)
}

/// A model on a device; freed activations are poisoned.
pub fn rig(device: Arc<dyn Device>, c: &ModelConfig, dtype: DType) -> Result<Rig> {
    let stream = Ctx::home_stream(&device)?;
    let groups = Groups::solo(&device);
    let mut table = ParamTable::default();
    let whole = ChunkPlan { blocks: 0..c.num_layers, embedding: true, head: true };
    let mut models = build(&mut Builder::new(&mut table, &device, &stream, &groups, false), c, &[whole])?;
    let model = models.pop().expect("one chunk");
    let options = StoreOptions {
        dtype,
        dp_size: 1,
        dp_rank: 0,
        expert_dp_size: 1,
        expert_dp_rank: 0,
        shard_optimizer: false,
        bucket_elements: 1 << 20,
        seed: 1234,
    };
    let params = ParamStore::new(table, options, &*device, &stream)?;
    let o = CtxOptions {
        dtype,
        seed: 1234,
        sequence_parallel: false,
        pool_limit: 1 << 30,
        poison: true,
        sync: Default::default(),
    };
    let cx = Ctx::new(device, stream, groups, params, o)?;
    let stage = Stage { chunks: vec![Chunk { layers: model.layers }], edges: Edges::none() };
    Ok(Rig { cx, stage, head: model.head.expect("a whole model has its head") })
}

/// A micro-batch of samples of `s` tokens, all tokens counting, loss averaged over them and `micro_batches`.
pub fn plain_batch(ids: &[i32], labels: &[i32], s: usize, first_sample: usize, micro_batches: usize) -> MicroHost {
    let t = ids.len();
    MicroHost {
        ids: ids.to_vec(),
        labels: labels.to_vec(),
        positions: (0..t).map(|i| (i % s) as i32).collect(),
        sample: (0..t).map(|i| (first_sample + i / s) as i32).collect(),
        offset: (0..t).map(|i| (i % s) as i32).collect(),
        mask: vec![1.0; t],
        weight: vec![1.0 / (t * micro_batches) as f32; t],
        aux_weight: 1.0 / micro_batches as f32,
        cu_seqlens: (0..=t / s).map(|i| (i * s) as i32).collect(),
        context: None,
    }
}

impl Rig {
    /// Overwrites parameters by name; every parameter of the model must be there.
    pub fn load(&mut self, values: &BTreeMap<String, Vec<f32>>) -> Result<()> {
        for (id, name) in self.names() {
            let v = values.get(&name).unwrap_or_else(|| panic!("no value for {name}"));
            host::write_f32(&*self.cx.device, &self.cx.stream, v, &mut self.cx.params.weight(id))?;
        }
        Ok(())
    }

    /// Parameters and their names.
    pub fn names(&self) -> Vec<(ParamId, String)> {
        self.cx.params.table().iter().map(|(id, p)| (id, p.shard.name.clone())).collect()
    }

    /// All parameters, by name.
    pub fn weights(&self) -> Result<BTreeMap<String, Vec<f32>>> {
        let read = |id| host::read_f32(&*self.cx.device, &self.cx.stream, &self.cx.params.weight(id));
        self.names().into_iter().map(|(id, name)| Ok((name, read(id)?))).collect()
    }

    /// All main gradients, by name.
    pub fn grads(&self) -> Result<BTreeMap<String, Vec<f32>>> {
        let read = |id| host::read_f32(&*self.cx.device, &self.cx.stream, &self.cx.params.grad(id)?);
        self.names().into_iter().map(|(id, name)| Ok((name, read(id)?))).collect()
    }

    /// Zeroes gradients and statistics, runs forward and backward of all micro-batches; gives the mean loss.
    pub fn forward_backward(&mut self, batches: &[MicroHost]) -> Result<f32> {
        let cx = &mut self.cx;
        cx.training = true;
        cx.params.zero_grads(&*cx.device, &cx.stream)?;
        cx.begin_grads(batches.len());
        cx.device.fill_bytes(&cx.stream, cx.stats.ptr(), cx.stats.bytes(), 0)?;
        let pipe = Pipe { stage: 0, stages: 1, chunks: 1, microbatches: batches.len(), group: 1 };
        let steps = schedule(Kind::OneFOneB, &pipe).expect("a legal schedule");
        run(cx, &self.stage, &self.stage.edges, &steps, |cx, i| {
            Micro::upload(&*cx.device, &cx.stream, &cx.pool, i, &batches[i])
        })?;
        let stats = self.stats()?;
        Ok(stats[stat::LOSS] / stats[stat::TOKENS])
    }

    /// The step's statistics.
    pub fn stats(&self) -> Result<Vec<f32>> {
        host::read_f32(&*self.cx.device, &self.cx.stream, &self.cx.stats)
    }

    /// Logits of a micro-batch, `[T,V]`.
    pub fn logits(&mut self, batch: &MicroHost) -> Result<Vec<f32>> {
        let cx = &mut self.cx;
        cx.training = false;
        let mb = Micro::upload(&*cx.device, &cx.stream, &cx.pool, 0, batch)?;
        let mut x = ferrotron_runtime::Flow::Empty;
        let layers = &self.stage.chunks[0].layers;
        for layer in &layers[..layers.len() - 1] {
            (x, _) = layer.forward_any(cx, &mb, x)?;
        }
        let x = <ferrotron_device::Tensor as ferrotron_runtime::Edge>::from_flow(x)?;
        let z = self.head.logits(cx, &x)?;
        host::read_f32(&*cx.device, &cx.stream, &z)
    }
}

/// A validated command line of so many ranks.
pub fn resolved(line: &str, ranks: usize) -> Resolved {
    let table = Table::pretrain();
    let argv: Vec<String> = line.split_whitespace().map(String::from).collect();
    let parsed = parse(&table, &argv, &|path| std::fs::read_to_string(path));
    let env = Environment { world_size: ranks, ..Environment::default() };
    validate(&table, parsed.args, &env, parsed.violations)
        .unwrap_or_else(|refused| panic!("{line}: {}", report("test", &refused.violations)))
}

/// A rank's trainer, built from a command line.
pub fn trainer(device: Arc<dyn Device>, line: &Resolved, fabric: Arc<dyn Fabric>) -> ferrotron_train::Result<Trainer> {
    Trainer::on(device, line, World::new(fabric, &line.config.parallel)?)
}

/// Runs `body` for every rank of a world of threads; an error of one ends the waits of all.
pub fn on_ranks<T: Send>(
    ranks: usize,
    options: Options,
    body: impl Fn(Arc<dyn Fabric>) -> ferrotron_train::Result<T> + Sync,
) -> Vec<ferrotron_train::Result<T>> {
    let world = ThreadWorld::new(ranks, options);
    std::thread::scope(|scope| {
        let start = |r: usize| {
            let (world, body) = (world.clone(), &body);
            scope.spawn(move || {
                let fabric = Arc::new(world.rank(r));
                body(fabric.clone()).inspect_err(|e| fabric.abort(&e.to_string()))
            })
        };
        let all: Vec<_> = (0..ranks).map(start).collect();
        all.into_iter().map(|t| t.join().expect("a rank does not panic")).collect()
    })
}
