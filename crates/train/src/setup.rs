//! From a validated command line to a trainer that is ready to step.

use std::sync::Arc;

use ferrotron_backends::{CpuConfig, DeviceOptions, select};
use ferrotron_config::settings::{self, Config, DeviceKind};
use ferrotron_config::{Environment, Resolved};
use ferrotron_data::{Datasets, Order, Sampler, SplitDataset, build_datasets, data_table};
use ferrotron_device::Device;
use ferrotron_executor::{Chunk, Edges, Stage};
use ferrotron_models::{ModelConfig, build};
use ferrotron_nn::{Builder, Head};
use ferrotron_optim::{MicrobatchCalculator, Optimizer, ParamScheduler};
use ferrotron_runtime::{Ctx, CtxOptions, GroupNeeds, ParamStore, ParamTable, StoreOptions, SyncOptions};
use ferrotron_schedule::{ChunkPlan, Ring, chunks_of_stage};
use ferrotron_telemetry::Timers;
use ferrotron_tokenizer::{TikTokenOptions, Tokenizer};

use crate::batch::BatchSource;
use crate::step::{pipe_of, steps_of};
use crate::trainer::Sources;
use crate::{Error, Progress, Result, Trainer, World, bridge};

/// Elements of a gradient bucket: Megatron's default of 40 million, enough to fill a link.
const BUCKET_ELEMENTS: usize = 40_000_000;

/// A model with its parameters on a device.
pub struct Built {
    /// Device, memory, groups, parameters.
    pub cx: Ctx,
    /// Layers.
    pub stage: Stage,
    /// The head, on the last stage.
    pub head: Option<Arc<Head>>,
    /// Shape.
    pub model: ModelConfig,
}

/// Opens the device that the command line names, for rank `local_rank` of `local_ranks` that share this host.
pub fn open_device(c: &Config, env: &Environment, local_rank: usize, local_ranks: usize) -> Result<Arc<dyn Device>> {
    let mut cpu = CpuConfig::default();
    cpu.threads = env.omp_num_threads.unwrap_or(cpu.threads / local_ranks.max(1)).max(1);
    let name = match c.device {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Npu => "npu",
        DeviceKind::Cuda => "cuda",
        DeviceKind::Auto => "auto",
    };
    Ok(select(name, &DeviceOptions { cpu, deterministic: c.train.deterministic })?.open(local_rank)?)
}

/// The tokenizer and the padded vocabulary.
pub fn tokenizer(c: &Config) -> Result<(Arc<dyn Tokenizer>, usize)> {
    let t = &c.data.tokenizer;
    let tiktoken = TikTokenOptions {
        pattern: t.tiktoken_pattern.clone(),
        num_special_tokens: usize::try_from(t.tiktoken_num_special_tokens).unwrap_or(usize::MAX),
    };
    let tokenizer = ferrotron_tokenizer::build_with(&bridge::tokenizer_spec(c), &tiktoken)?;
    let size = c.model.vocab.vocab_size.unwrap_or(0).max(tokenizer.vocab_size());
    let padded = c.model.vocab.padded(size, c.parallel.tp).map_err(Error::Setting)?;
    Ok((tokenizer, padded))
}

/// What the chunks of a stage hold.
fn chunks(c: &Config, layers: usize, stage: usize, stages: usize) -> Result<Vec<ChunkPlan>> {
    let counts = &c.parallel.stage_layers;
    if counts.iter().sum::<usize>() != layers || !counts.len().is_multiple_of(stages) {
        let what = format!("{layers} layers, and stages of {counts:?} layers for {stages} pipeline stages");
        return Err(Error::Setting(format!("the division of layers is of another model: {what}")));
    }
    Ok(chunks_of_stage(counts, stages, stage))
}

/// What the groups of a rank depend on beside the mesh.
pub(crate) fn needs(c: &Config) -> GroupNeeds {
    GroupNeeds { chunks: c.parallel.virtual_stages, kv_groups: c.model.num_query_groups }
}

/// Builds this rank's part of the model on `device`.
pub fn build_model(c: &Config, vocab: usize, device: Arc<dyn Device>, world: &World) -> Result<Built> {
    let model = bridge::model_config(c, vocab)?;
    let dtype = c.train.params_dtype.dtype();
    if !device.ops().supports(dtype) {
        let (name, model) = (&device.info().name, &device.info().model);
        return Err(Error::Setting(format!(
            "{name} ({model}) does not store {dtype}; use --fp16, or neither flag for float32"
        )));
    }
    let stream = Ctx::home_stream(&device)?;
    let groups = world.groups(needs(c), &device)?;
    let (stage, stages) = (groups.pp.rank(), groups.pp.size());
    let mut table = ParamTable::default();
    let mut builder = Builder::new(&mut table, &device, &stream, &groups, c.parallel.sequence_parallel);
    let sharded = c.parallel.distributed_optimizer && groups.instance.size() > 1;
    builder.shard_blocks = sharded && c.parallel.zero_stage == Some(3);
    let models = build(&mut builder, &model, &chunks(c, model.num_layers, stage, stages)?)?;
    let store = StoreOptions {
        dtype,
        dp_size: groups.instance.size(),
        dp_rank: groups.instance.rank(),
        expert_dp_size: groups.edp_instance.size(),
        expert_dp_rank: groups.edp_instance.rank(),
        shard_optimizer: sharded,
        bucket_elements: c.parallel.ddp_bucket_size.unwrap_or(BUCKET_ELEMENTS.max(1_000_000 * groups.dp.size())),
        seed: c.train.seed,
    };
    let params = ParamStore::new(table, store, &*device, &stream)?;
    let sync = SyncOptions {
        overlap_grads: c.parallel.overlap_grad_reduce,
        overlap_params: c.parallel.overlap_param_gather && sharded,
        grads_in_bf16: c.parallel.grad_reduce_in_bf16,
    };
    let options = CtxOptions {
        dtype,
        seed: c.train.seed,
        sequence_parallel: c.parallel.sequence_parallel,
        pool_limit: device.info().memory,
        poison: false,
        sync,
    };
    let cx = Ctx::new(device, stream, groups, params, options)?;
    let shares = c.parallel.cp * if cx.sequence_parallel { c.parallel.tp } else { 1 };
    let rows = c.train.micro_batch_size * c.data.seq_length / shares;
    let ring = Ring { stages, chunks: models.len() };
    let in_flight = pipe_of(&c.parallel, stage, ring, usize::MAX).sends_in_flight();
    let edges = Edges { rows, hidden: model.hidden, stage, ring, in_flight };
    let head = models.iter().find_map(|m| m.head.clone());
    let stage = Stage { chunks: models.into_iter().map(|m| Chunk { layers: m.layers }).collect(), edges };
    Ok(Built { cx, stage, head, model })
}

impl Trainer {
    /// Opens device, tokenizer and data, builds this rank's part of the model, loads nothing. `local_ranks` ranks share
    /// this host.
    pub fn new(resolved: &Resolved, env: &Environment, world: World, local_ranks: usize) -> Result<Trainer> {
        // threads of one process are numbered by the world, processes by their launcher
        let threads = resolved.config.parallel.thread_ranks > 1;
        let local_rank = if threads { world.rank() } else { env.local_rank };
        let device = open_device(&resolved.config, env, local_rank, local_ranks)?;
        Trainer::on(device, resolved, world)
    }

    /// The same, on a device that is open.
    pub fn on(device: Arc<dyn Device>, resolved: &Resolved, world: World) -> Result<Trainer> {
        let (tokenizer, vocab) = tokenizer(&resolved.config)?;
        let mut t = Trainer::without_data(device, resolved, world, tokenizer, vocab)?;
        let data = bridge::data_config(&t.config, &*t.tokenizer, vocab, t.train_iters)?;
        let datasets = build_datasets(&data)?;
        let table = data_table(&data, &datasets);
        t.graphs();
        t.notices.push(table.to_string());
        t.notices.extend(t.world.links_line());
        t.notices.extend(table.notes().iter().chain(&datasets.notices).map(|n| format!("note: {n}")));
        t.data = sources(&t.config, datasets, &t.cx)?;
        Ok(t)
    }

    /// Steps are graphs where that is asked for and the device has them; the log says which.
    fn graphs(&mut self) {
        let Some(steps) = self.config.train.steps_before_graphs else { return };
        if self.cx.device.graphs().is_some() {
            self.steps_before_graphs = Some(steps);
            self.notices
                .push(format!("CUDA graphs: after {steps} steps, forward and backward of a step are one graph"));
        } else {
            let name = &self.cx.device.info().name;
            self.notices
                .push(format!("no effect: --cuda-graph-impl (CUDA graphs are of CUDA devices; this is {name})"));
        }
    }

    /// All but the data.
    pub(crate) fn without_data(
        device: Arc<dyn Device>,
        resolved: &Resolved,
        world: World,
        tokenizer: Arc<dyn Tokenizer>,
        vocab: usize,
    ) -> Result<Trainer> {
        let config = resolved.config.clone();
        let Built { cx, stage, head, model } = build_model(&config, vocab, device, &world)?;
        let optimizer = Optimizer::new(bridge::optimizer_kind(&config), &cx)?;
        let batches = MicrobatchCalculator::new(
            bridge::batch_schedule(&config)?,
            config.train.micro_batch_size as u64,
            cx.groups.readers().1 as u64,
            config.train.decrease_batch_size_if_needed,
            0,
        )?;
        batches.check_from(0)?;
        let train_iters = iterations(&config, &batches)?;
        check_schedules(&config, &stage.edges, &batches)?;
        let mut timers = Timers::new(config.log.timing_level);
        let home = cx.stream.clone();
        // An error of the device stays the stream's. A step that is collected as a graph cannot be waited for.
        timers.wait_with(move || drop(home.synchronize()));
        Ok(Trainer {
            arguments: resolved.args.to_json(),
            scheduler: ParamScheduler::from_args(&bridge::schedule_args(&config))?,
            scaler: bridge::loss_scaler(&config)?,
            guards: bridge::guards(&config)?,
            timers,
            progress: Progress::default(),
            config,
            model,
            tokenizer,
            cx,
            stage,
            head,
            world,
            optimizer,
            batches,
            data: Sources::default(),
            train_iters,
            steps_before_graphs: None,
            notices: vec![],
        })
    }
}

/// Length of the run. With `--train-samples` under a changing batch size, the iterations are counted out, as Megatron's
/// `update_train_iters` does: the ramp first, then whole batches of the final size.
pub(crate) fn iterations(c: &Config, batches: &MicrobatchCalculator) -> Result<u64> {
    let samples = match c.train.length {
        settings::RunLength::Iterations(n) => return Ok(n),
        settings::RunLength::Samples(n) => n,
    };
    let last = batches.schedule().final_global_batch_size();
    let (mut consumed, mut n) = (0u64, 0u64);
    while consumed <= samples && batches.at(consumed)?.global_batch_size < last {
        consumed += batches.at(consumed)?.running_global_batch_size.max(1);
        n += 1;
    }
    Ok(n + samples.saturating_sub(consumed) / last.max(1))
}

/// A batch size that grows must suit the pipeline's schedule at every size.
fn check_schedules(c: &Config, edges: &Edges, batches: &MicrobatchCalculator) -> Result<()> {
    let last = batches.schedule().final_global_batch_size();
    let (mut consumed, mut checked) = (0u64, None);
    loop {
        let batch = batches.at(consumed)?;
        if checked != Some(batch.num_microbatches) {
            steps_of(&c.parallel, edges, batch.num_microbatches as usize)?;
            checked = Some(batch.num_microbatches);
        }
        if batch.global_batch_size >= last {
            return Ok(());
        }
        consumed += batch.running_global_batch_size.max(1);
    }
}

fn sources(c: &Config, datasets: Datasets, cx: &Ctx) -> Result<Sources> {
    let (readers, context) = (cx.groups.readers(), (cx.groups.cp.rank(), cx.groups.cp.size()));
    let order = match c.data.dataloader {
        settings::DataloaderKind::Single => Order::Single { drop_last: true },
        settings::DataloaderKind::Cyclic => Order::Cyclic { data_sharding: true },
    };
    let source = |name, set: Option<Arc<SplitDataset>>, micro_batch_size| -> Result<Option<BatchSource>> {
        use ferrotron_data::Dataset;
        let Some(set) = set.filter(|s| !s.is_empty()) else { return Ok(None) };
        let sampler = Sampler::new(order, set.len(), micro_batch_size, readers.1)?;
        let source = BatchSource::new(name, set, sampler, readers).shared_by(context);
        Ok(Some(source.per_token(c.parallel.per_token_loss)))
    };
    let (train, eval) = (c.train.micro_batch_size, c.eval.micro_batch_size);
    Ok(Sources {
        train: source("training", datasets.train, train)?,
        valid: source("validation", datasets.valid, eval)?,
        test: source("test", datasets.test, eval)?,
    })
}
