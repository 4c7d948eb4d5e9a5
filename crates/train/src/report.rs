//! What a run prints and writes: Megatron's lines on standard output, TensorBoard, metrics as JSON lines.

use std::io::Write;
use std::time::Instant;

use ferrotron_config::settings::{Config, TimingLogOption};
use ferrotron_optim::Decision;
use ferrotron_telemetry::lines::{self, EvaluationPoint, Event};
use ferrotron_telemetry::{
    EventWriter, GptShape, JsonlWriter, Metric, TimerReport, Timestamp, TrainingLine, TrainingScalars,
    ValidationScalars, timers::names_to_log,
};

use crate::step::StepReport;
use crate::{Result, Trainer};

/// Name of GPT's loss in Megatron's lines.
const LM_LOSS: &str = "lm loss";

/// The writer of a run's output, on the one rank that logs.
pub struct Reporter<'a> {
    out: &'a mut dyn Write,
    tensorboard: Option<EventWriter>,
    metrics: Option<JsonlWriter>,
    flops: GptShape,
    started: Instant,
    first: bool,
}

impl<'a> Reporter<'a> {
    /// Prints to `out`; on the rank that logs, opens the files that the configuration names.
    pub fn new(out: &'a mut dyn Write, c: &Config, vocab: usize, logs: bool) -> Result<Reporter<'a>> {
        let (mut tensorboard, mut metrics) = (None, None);
        if let Some(dir) = c.log.tensorboard_dir.as_ref().filter(|_| logs) {
            tensorboard = Some(EventWriter::create(dir, Timestamp::now())?);
            metrics = Some(JsonlWriter::open(&dir.join("metrics.jsonl"))?);
        }
        let m = &c.model;
        let flops = GptShape {
            num_layers: m.num_layers as u64,
            hidden_size: m.hidden_size as u64,
            num_attention_heads: m.num_attention_heads as u64,
            num_query_groups: m.num_query_groups as u64,
            kv_channels: m.kv_channels as u64,
            ffn_hidden_size: m.ffn_hidden_size as u64,
            gated_mlp: m.activation.is_gated(),
            seq_length: c.data.seq_length as u64,
            padded_vocab_size: vocab as u64,
        };
        Ok(Reporter { out, tensorboard, metrics, flops, started: Instant::now(), first: true })
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

    /// Takes note of a step; prints the line when it is due. (Megatron: `training_log`.)
    pub fn step(&mut self, t: &mut Trainer, r: &StepReport, seconds: f64) -> Result<()> {
        let skipped = r.decision != Decision::Apply;
        t.progress.interval.record(&[(LM_LOSS, r.loss)], skipped, seconds);
        if let Decision::Skip(reason) = &r.decision {
            self.line(format!(" iteration {:8}: update skipped: {reason}", t.progress.iteration))?;
        }
        self.write_files(t, r, seconds)?;
        let due = t.progress.iteration.is_multiple_of(t.config.log.interval.max(1));
        let first = std::mem::take(&mut self.first);
        if !due && !first {
            return Ok(());
        }
        let interval = &t.progress.interval;
        let seconds = interval.seconds_per_iteration();
        let line = TrainingLine {
            time: Timestamp::now(),
            iteration: t.progress.iteration,
            train_iters: t.train_iters,
            consumed_samples: t.progress.consumed_samples,
            skipped_samples: t.progress.skipped_samples,
            elapsed_ms_per_iteration: seconds * 1000.0,
            throughput: t
                .config
                .log
                .throughput
                .then(|| self.flops.tflops_per_device(r.samples, seconds, t.world.size() as u64)),
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
        };
        self.line(line.to_string())?;
        if first || t.config.log.memory_interval.is_some_and(|n| t.progress.iteration.is_multiple_of(n)) {
            self.memory(t)?;
        }
        if due {
            self.timers(t)?;
            t.progress.interval.reset();
        }
        Ok(())
    }

    fn memory(&mut self, t: &Trainer) -> Result<()> {
        let pool = t.cx.pool.stats();
        let fixed: usize =
            t.cx.params.buffers().iter().map(|b| b.param.bytes() + b.grad.as_ref().map_or(0, |g| g.bytes())).sum();
        let optimizer: usize = t.optimizer.states().map(|s| s.tensor.bytes()).sum();
        let fixed = (fixed + optimizer) as u64;
        let report = lines::MemoryReport {
            allocated: fixed + pool.live as u64,
            max_allocated: fixed + pool.peak_live as u64,
            reserved: fixed + pool.peak as u64,
            max_reserved: fixed + pool.peak as u64,
        };
        self.line(lines::memory(t.world.rank(), t.progress.iteration, report))
    }

    fn timers(&mut self, t: &mut Trainer) -> Result<()> {
        let names = names_to_log(t.config.log.timing_level);
        let row = t.timers.row(&names, true);
        let report = match t.config.log.timing_option {
            TimingLogOption::Max => TimerReport::Max,
            TimingLogOption::Minmax => TimerReport::MinMax,
            TimingLogOption::All => TimerReport::All,
        };
        match report.format(&names, &[row], t.config.log.interval.max(1)) {
            Some(text) => self.line(text),
            None => Ok(()),
        }
    }

    fn write_files(&mut self, t: &Trainer, r: &StepReport, seconds: f64) -> Result<()> {
        let log = &t.config.log;
        if let Some(file) = &mut self.metrics {
            file.write(&[
                ("iteration", Metric::Int(t.progress.iteration)),
                ("consumed_samples", Metric::Int(t.progress.consumed_samples)),
                (LM_LOSS, Metric::Float(f64::from(r.loss))),
                ("grad_norm", Metric::Float(r.grad_norm)),
                ("learning_rate", Metric::Float(t.scheduler.lr())),
                ("loss_scale", Metric::Float(f64::from(t.scaler.scale()))),
                ("batch_size", Metric::Int(r.samples)),
                ("skipped", Metric::Int(u64::from(r.decision != Decision::Apply))),
                ("seconds", Metric::Float(seconds)),
            ])?;
        }
        let due = t.progress.iteration.is_multiple_of(log.tensorboard_interval.max(1));
        let Some(tensorboard) = self.tensorboard.as_mut().filter(|_| due) else { return Ok(()) };
        let scalars = TrainingScalars {
            iteration: t.progress.iteration,
            consumed_samples: t.progress.consumed_samples,
            learning_rate: Some(t.scheduler.lr()),
            skipped_samples: t.progress.skipped_samples,
            batch_size: r.samples,
            losses: vec![(LM_LOSS.to_string(), f64::from(r.loss))],
            loss_scale: log.loss_scale_to_tensorboard.then(|| f64::from(t.scaler.scale())),
            world_size: log.world_size_to_tensorboard.then_some(t.world.size() as u64),
            grad_norm: Some(r.grad_norm),
            num_zeros: r.num_zeros,
            params_norm: r.params_norm,
            iteration_time: log.timers_to_tensorboard.then_some(seconds),
            throughput: (log.timers_to_tensorboard && log.throughput)
                .then(|| self.flops.tflops_per_device(r.samples, seconds, t.world.size() as u64)),
        };
        tensorboard.write(&scalars.scalars(), Timestamp::now())?;
        Ok(())
    }

    /// Prints and writes an evaluation.
    pub fn evaluation(&mut self, t: &Trainer, point: EvaluationPoint, loss: f64) -> Result<()> {
        let losses = vec![(LM_LOSS.to_string(), loss)];
        self.line(lines::evaluation(point, None, &losses))?;
        if let (Some(tensorboard), EvaluationPoint::During(_)) = (&mut self.tensorboard, point) {
            let scalars = ValidationScalars {
                iteration: t.progress.iteration,
                consumed_samples: t.progress.consumed_samples,
                set: None,
                losses,
                with_perplexity: t.config.log.validation_ppl_to_tensorboard,
            };
            tensorboard.write(&scalars.scalars(), Timestamp::now())?;
        }
        Ok(())
    }

    /// Minutes since the start.
    pub fn minutes(&self) -> f64 {
        self.started.elapsed().as_secs_f64() / 60.0
    }
}
