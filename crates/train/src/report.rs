//! What a run prints and writes: Megatron's lines on standard output, and the metric files, pages and ports that the command
//! line asks for.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use ferrotron_base::DType;
use ferrotron_config::settings::{Config, TimingLogOption};
use ferrotron_config::{Environment, Origin, Resolved};
use ferrotron_device::host;
use ferrotron_optim::Decision;
use ferrotron_telemetry::lines::{self, EvaluationPoint, Event};
use ferrotron_telemetry::{
    EventWriter, GptShape, JsonlWriter, MemoryScalars, ProgressLog, RunState, Scalar, SinkOptions, Sinks, Standing,
    StepMetrics, TimerReport, Timestamp, TrainingLine, TrainingScalars, ValidationScalars, WandbNames, peak_tflops,
    timers::names_to_log,
};

use crate::step::StepReport;
use crate::{Result, Trainer};

/// Name of GPT's loss in Megatron's lines.
const LM_LOSS: &str = "lm loss";

/// The writer of a run's output: on the one rank that logs. On the others everything is off, and what ranks do together
/// is done.
pub struct Reporter<'a> {
    out: &'a mut dyn Write,
    logs: bool,
    tensorboard: Option<EventWriter>,
    metrics: Option<JsonlWriter>,
    progress: Option<ProgressLog>,
    sinks: Sinks,
    flops: GptShape,
    started: Instant,
    first: bool,
}

impl<'a> Reporter<'a> {
    /// Prints to `out`; on the rank that logs, opens what the configuration names.
    pub fn new(out: &'a mut dyn Write, resolved: &Resolved, vocab: usize, logs: bool) -> Result<Reporter<'a>> {
        let c = &resolved.config;
        let mut log = Reporter {
            out,
            logs,
            tensorboard: None,
            metrics: None,
            progress: None,
            sinks: Sinks::default(),
            flops: shape(c, vocab),
            started: Instant::now(),
            first: true,
        };
        if !logs {
            return Ok(log);
        }
        if let Some(dir) = &c.log.tensorboard_dir {
            log.tensorboard = Some(EventWriter::create(dir, Timestamp::now())?);
            log.metrics = Some(JsonlWriter::open(&dir.join("metrics.jsonl"))?);
        }
        let options = sink_options(resolved);
        log.sinks = Sinks::open(&options)?;
        for line in log.sinks.lines(&options) {
            log.line(line)?;
        }
        Ok(log)
    }

    /// Begins `progress.txt` (`--log-progress`), once it is known where the run resumes.
    pub fn start_progress(&mut self, t: &Trainer, env: &Environment) -> Result<()> {
        if let Some(save) = t.config.checkpoint.save.as_ref().filter(|_| self.logs && t.config.log.progress) {
            let job = env.value("SLURM_JOB_ID").unwrap_or_default();
            self.progress = Some(ProgressLog::start(save, job, t.world.size() as u64, t.progress.flops)?);
        }
        Ok(())
    }

    /// Prints a line.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<()> {
        writeln!(self.out, "{}", text.as_ref())?;
        self.out.flush()?;
        Ok(())
    }

    /// Prints an event with its time.
    pub fn event(&mut self, event: Event) -> Result<()> {
        self.line(lines::event(event, Timestamp::now()))
    }

    /// A checkpoint below `root` is complete.
    pub fn saved(&mut self, t: &Trainer, root: &Path, place: lines::ModelParallelRank) -> Result<()> {
        let iteration = t.progress.iteration;
        if let Some(progress) = &self.progress {
            let tokens = t.progress.consumed_samples * t.config.data.seq_length as u64;
            progress.saved(Standing { iteration, flops: t.progress.flops, tokens })?;
        }
        self.line(lines::saved_checkpoint(Timestamp::now(), iteration, root, place))
    }

    /// Takes note of a step; prints the line when it is due. (Megatron: `training_log`.)
    pub fn step(&mut self, t: &mut Trainer, r: &StepReport, seconds: f64) -> Result<()> {
        t.progress.flops += self.flops.flops_per_iteration(r.samples);
        let skipped = r.decision != Decision::Apply;
        let losses: Vec<_> = [(LM_LOSS, r.loss)].into_iter().chain(r.aux_losses.iter().copied()).collect();
        t.progress.interval.record(&losses, skipped, seconds);
        if let Decision::Skip(reason) = &r.decision {
            self.line(format!(" iteration {:8}: update skipped: {reason}", t.progress.iteration))?;
        }
        let due = t.progress.iteration.is_multiple_of(t.config.log.interval.max(1));
        if self.logs {
            self.write_files(t, r, seconds, due)?;
        }
        let first = std::mem::take(&mut self.first);
        if !due && !first {
            return Ok(());
        }
        let line = self.training_line(t, r);
        self.line(line.to_string())?;
        if first || t.config.log.memory_interval.is_some_and(|n| t.progress.iteration.is_multiple_of(n)) {
            self.line(lines::memory(t.world.rank(), t.progress.iteration, memory(t)))?;
        }
        if due {
            self.timers(t)?;
            t.progress.interval.reset();
        }
        Ok(())
    }

    fn training_line(&self, t: &Trainer, r: &StepReport) -> TrainingLine {
        let interval = &t.progress.interval;
        let seconds = interval.seconds_per_iteration();
        TrainingLine {
            time: Timestamp::now(),
            iteration: t.progress.iteration,
            train_iters: t.train_iters,
            consumed_samples: t.progress.consumed_samples,
            skipped_samples: t.progress.skipped_samples,
            elapsed_ms_per_iteration: seconds * 1000.0,
            throughput: t.config.log.throughput.then(|| self.tflops(t, r, seconds)),
            energy_and_power: None,
            learning_rate: Some(t.scheduler.lr()),
            global_batch_size: r.samples,
            losses: interval.averages(),
            metrics: vec![],
            loss_scale: f64::from(t.scaler.scale()),
            grad_norm: Some(r.grad_norm),
            num_zeros: r.num_zeros,
            params_norm: r.params_norm,
            skipped_iterations: interval.skipped_iterations(),
            nan_iterations: interval.nan_iterations(),
        }
    }

    fn tflops(&self, t: &Trainer, r: &StepReport, seconds: f64) -> f64 {
        self.flops.tflops_per_device(r.samples, seconds, t.world.size() as u64)
    }

    /// The times of all ranks, gathered; all ranks take part.
    fn timers(&mut self, t: &mut Trainer) -> Result<()> {
        let names = names_to_log(t.config.log.timing_level);
        if names.is_empty() {
            return Ok(());
        }
        let interval = t.config.log.interval.max(1);
        if t.config.log.timers_to_tensorboard {
            let points = t.timers.scalars(&names, t.progress.iteration, interval);
            if let Some(tensorboard) = &mut self.tensorboard {
                tensorboard.write(&points, Timestamp::now())?;
            }
        }
        let row = t.timers.row(&names, true);
        let rows = gather(t, &row)?;
        let report = match t.config.log.timing_option {
            TimingLogOption::Max => TimerReport::Max,
            TimingLogOption::Minmax => TimerReport::MinMax,
            TimingLogOption::All => TimerReport::All,
        };
        match report.format(&names, &rows, interval) {
            Some(text) => self.line(text),
            None => Ok(()),
        }
    }

    fn write_files(&mut self, t: &Trainer, r: &StepReport, seconds: f64, line_due: bool) -> Result<()> {
        let metrics = self.metrics(t, r, seconds);
        if let Some(file) = &mut self.metrics {
            file.write(&metrics.fields())?;
        }
        let due = t.progress.iteration.is_multiple_of(t.config.log.tensorboard_interval.max(1));
        let points = if due { self.points(t, r, line_due) } else { vec![] };
        if let Some(tensorboard) = self.tensorboard.as_mut().filter(|_| due) {
            tensorboard.write(&points, Timestamp::now())?;
        }
        self.sinks.step(&metrics, &points)?;
        Ok(())
    }

    fn metrics(&self, t: &Trainer, r: &StepReport, seconds: f64) -> StepMetrics {
        let memory = memory(t);
        let tflops = self.tflops(t, r, seconds);
        let peak = t.config.log.peak_tflops.or_else(|| peak_tflops(&t.cx.device.info().model));
        StepMetrics {
            iteration: t.progress.iteration,
            train_iters: t.train_iters,
            consumed_samples: t.progress.consumed_samples,
            batch_size: r.samples,
            tokens: r.samples * t.config.data.seq_length as u64,
            losses: losses(r),
            learning_rate: t.scheduler.lr(),
            grad_norm: Some(r.grad_norm),
            params_norm: r.params_norm,
            num_zeros: r.num_zeros,
            loss_scale: f64::from(t.scaler.scale()),
            skipped: r.decision != Decision::Apply,
            seconds,
            tflops_per_device: Some(tflops),
            mfu: peak.map(|peak| tflops / peak),
            memory_allocated: Some(memory.allocated),
            memory_peak: Some(memory.max_allocated),
        }
    }

    /// TensorBoard's points of an iteration; times are written with the log lines (`line_due`), as means of their interval.
    fn points(&self, t: &Trainer, r: &StepReport, line_due: bool) -> Vec<Scalar> {
        let log = &t.config.log;
        let seconds = t.progress.interval.seconds_per_iteration();
        let times = log.timers_to_tensorboard && line_due;
        let scalars = TrainingScalars {
            iteration: t.progress.iteration,
            consumed_samples: t.progress.consumed_samples,
            learning_rate: Some(t.scheduler.lr()),
            skipped_samples: t.progress.skipped_samples,
            batch_size: r.samples,
            losses: losses(r),
            loss_scale: log.loss_scale_to_tensorboard.then(|| f64::from(t.scaler.scale())),
            world_size: log.world_size_to_tensorboard.then_some(t.world.size() as u64),
            grad_norm: Some(r.grad_norm),
            num_zeros: r.num_zeros,
            params_norm: r.params_norm,
            iteration_time: times.then_some(seconds),
            throughput: (times && log.throughput).then(|| self.tflops(t, r, seconds)),
        };
        let mut points = scalars.scalars();
        if log.memory_to_tensorboard {
            let m = memory(t);
            let blocks = fixed_tensors(t).count() + t.cx.pool.stats().live_blocks;
            let scalars = MemoryScalars {
                reserved: m.reserved,
                allocated: m.allocated,
                max_allocated: m.max_allocated,
                allocated_count: blocks as u64,
            };
            points.extend(scalars.scalars(t.progress.iteration));
        }
        points
    }

    /// Prints and writes an evaluation.
    pub fn evaluation(&mut self, t: &Trainer, point: EvaluationPoint, loss: f64) -> Result<()> {
        let losses = vec![(LM_LOSS.to_string(), loss)];
        self.line(lines::evaluation(point, None, &losses))?;
        if !self.logs || !matches!(point, EvaluationPoint::During(_)) {
            return Ok(());
        }
        let (iteration, consumed_samples) = (t.progress.iteration, t.progress.consumed_samples);
        let scalars = ValidationScalars {
            iteration,
            consumed_samples,
            set: None,
            losses: losses.clone(),
            with_perplexity: t.config.log.validation_ppl_to_tensorboard,
        };
        let points = scalars.scalars();
        if let Some(tensorboard) = &mut self.tensorboard {
            tensorboard.write(&points, Timestamp::now())?;
        }
        self.sinks.validation(iteration, consumed_samples, &losses, &points)?;
        Ok(())
    }

    /// Minutes since the start.
    pub fn minutes(&self) -> f64 {
        self.started.elapsed().as_secs_f64() / 60.0
    }

    /// The last words of every writer: how the run ended.
    pub fn finish(self, state: &RunState) -> Result<()> {
        Ok(self.sinks.finish(state)?)
    }
}

/// All losses of a step by name.
fn losses(r: &StepReport) -> Vec<(String, f64)> {
    let all = [(LM_LOSS, r.loss)].into_iter().chain(r.aux_losses.iter().copied());
    all.map(|(name, loss)| (name.to_string(), f64::from(loss))).collect()
}

fn shape(c: &Config, vocab: usize) -> GptShape {
    let m = &c.model;
    // The experts that a token passes are as much work as one MLP of their widths together. (Megatron counts no more of
    // a mixture of experts: neither its router nor the ways of its tokens.)
    let (width, other_ffn) = match &m.moe {
        None => (m.ffn_hidden_size, None),
        Some(e) => {
            let dense = (e.dense_layers.len() as u64, m.ffn_hidden_size as u64);
            (e.ffn_hidden_size * e.router_topk + e.shared_ffn_hidden_size, (dense.0 > 0).then_some(dense))
        }
    };
    GptShape {
        num_layers: m.num_layers as u64,
        hidden_size: m.hidden_size as u64,
        num_attention_heads: m.num_attention_heads as u64,
        num_query_groups: m.num_query_groups as u64,
        kv_channels: m.kv_channels as u64,
        ffn_hidden_size: width as u64,
        other_ffn,
        gated_mlp: m.activation.is_gated(),
        seq_length: c.data.seq_length as u64,
        padded_vocab_size: vocab as u64,
    }
}

fn sink_options(resolved: &Resolved) -> SinkOptions {
    let log = &resolved.config.log;
    let name = log.wandb.as_ref().map(|w| w.name.clone()).filter(|name| !name.is_empty());
    let m = &resolved.config.model;
    let chosen = resolved.args.iter().filter(|(_, entry)| entry.origin != Origin::Default);
    SinkOptions {
        title: name.unwrap_or_else(|| format!("GPT, {} layers, hidden size {}", m.num_layers, m.hidden_size)),
        configuration: chosen.map(|(dest, entry)| (dest.to_string(), entry.value.to_string())).collect(),
        report: log.report.clone(),
        prometheus_port: log.prometheus_port,
        console: log.console,
        wandb: log.wandb.as_ref().map(|w| {
            let (project, entity, name) = (w.project.clone(), w.entity.clone(), w.name.clone());
            (w.folder.clone(), WandbNames { project, entity, name, id: String::new() })
        }),
        mlflow: log.mlflow.clone(),
    }
}

/// Bytes of the tensors that live as long as the run: parameters, gradients, optimizer states.
fn fixed_tensors(t: &Trainer) -> impl Iterator<Item = usize> {
    let buffers = t.cx.params.buffers().iter();
    let of_params = buffers.flat_map(|b| [Some(b.param.bytes()), b.grad.as_ref().map(|g| g.bytes())]).flatten();
    of_params.chain(t.optimizer.states().map(|s| s.tensor.bytes()))
}

fn memory(t: &Trainer) -> lines::MemoryReport {
    let pool = t.cx.pool.stats();
    let fixed = fixed_tensors(t).sum::<usize>() as u64;
    // Buffers of the vendor's library lie beside ours: reserved, but nothing of ours is in them.
    let links = t.world.fabric.links().iter().map(|l| l.bytes as u64).sum::<u64>();
    lines::MemoryReport {
        allocated: fixed + pool.live as u64,
        max_allocated: fixed + pool.peak_live as u64,
        reserved: fixed + pool.peak as u64 + links,
        max_reserved: fixed + pool.peak as u64 + links,
    }
}

/// The rows of all ranks, in their order: a host sync.
fn gather(t: &Trainer, row: &[f32]) -> Result<Vec<Vec<f32>>> {
    let (cx, world) = (&t.cx, &t.cx.groups.world);
    if world.size() == 1 {
        return Ok(vec![row.to_vec()]);
    }
    let mut own = cx.pool.alloc(DType::F32, [row.len()])?;
    host::write_f32(&*cx.device, &cx.stream, row, &mut own)?;
    let all = cx.pool.alloc(DType::F32, [row.len() * world.size()])?;
    let all = world.all_gather(&cx.stream, own, all)?.wait();
    let values = host::read_f32(&*cx.device, &cx.stream, &all)?;
    Ok(values.chunks(row.len()).map(<[f32]>::to_vec).collect())
}
