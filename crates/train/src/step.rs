//! One training step.

use ferrotron_config::settings::ParallelConfig;
use ferrotron_device::{DType, Tensor, host};
use ferrotron_executor::{Edges, run_watched};
use ferrotron_optim::{Decision, StepStats, UpdateScalars};
use ferrotron_runtime::{Micro, MicroHost, stat};
use ferrotron_schedule::{Pipe, Ring, Step, schedule};

use crate::not_finite::OwnPart;
use crate::profile::StepTimers;
use crate::{Error, Phase, Result, Trainer};

/// What a step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Mean loss of the tokens that count.
    pub loss: f32,
    /// Auxiliary losses that the model has, by Megatron's names, without coefficients: means over layers and
    /// micro-batches.
    pub aux_losses: Vec<(&'static str, f32)>,
    /// Global norm of the gradients, unscaled, before clipping.
    pub grad_norm: f64,
    /// Zeros in the gradients, when asked for.
    pub num_zeros: Option<u64>,
    /// Norm of the parameters, when asked for.
    pub params_norm: Option<f64>,
    /// Samples of the batch.
    pub samples: u64,
    /// Whether the update was applied, or why not.
    pub decision: Decision,
    /// What ranks ask for: the most urgent wish of all, known to all.
    pub leave: Leave,
}

/// A wish to end the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leave {
    /// Go on.
    No,
    /// Save and end.
    Save,
    /// End without a save.
    Stop,
}

impl Leave {
    /// As a number that adds up over ranks: any `Stop` outweighs all `Save`s.
    fn weight(self) -> f32 {
        match self {
            Leave::No => 0.0,
            Leave::Save => 1.0,
            Leave::Stop => STOP,
        }
    }

    fn of_sum(sum: f32) -> Leave {
        match sum {
            s if s >= STOP => Leave::Stop,
            s if s > 0.0 => Leave::Save,
            _ => Leave::No,
        }
    }
}

/// More than there are ranks; sums stay exact in f32.
const STOP: f32 = 1048576.0;

impl Trainer {
    /// Reads a global batch, runs it forward and backward, and updates the parameters, or skips the update: decided
    /// once, from numbers that all ranks share. The host waits for the device once.
    ///
    /// `leave` is this rank's wish to end the run; the report says whether any rank has it, so that all agree.
    pub fn step(&mut self, leave: Leave) -> Result<StepReport> {
        let samples = self.batches.current().running_global_batch_size;
        let micros = self.next_batch()?;
        let (own, sums) = self.as_graph(|t| {
            let losses = t.gradients(micros.len(), |i| &micros[i])?;
            Ok((t.gather_stats(leave, losses)?, t.cx.sum_stats()?))
        })?;
        let stats = host::read_f32(&*self.cx.device, &self.cx.stream, &sums)?;
        let report = match self.judge(&stats, samples) {
            Err(e @ Error::NotFinite { .. }) => return Err(self.blame(e, own)?),
            judged => judged?,
        };
        if report.decision == Decision::Apply {
            self.timers.start("optimizer", 1);
            self.apply(report.grad_norm, self.unscale(stats[stat::TOKENS].max(1.0)))?;
            self.timers.stop("optimizer");
            self.scheduler.step(samples);
        }
        // After the update, which still divides by the scale that these gradients have.
        self.scaler.update(report.decision == Decision::Skip(ferrotron_optim::SkipReason::GradientOverflow));
        self.advance(samples)?;
        Ok(report)
    }

    /// Does `work`, during which the host does not wait for the device: as one graph of the device, when that is asked for
    /// and the first steps, which take memory and make ready, are done.
    fn as_graph<T>(&mut self, work: impl FnOnce(&mut Trainer) -> Result<T>) -> Result<T> {
        let (device, home) = (self.cx.device.clone(), self.cx.stream.clone());
        match (device.graphs(), &mut self.steps_before_graphs) {
            (Some(graphs), Some(0)) => graphs.of(&home, || work(self)),
            (_, Some(steps)) => {
                *steps = steps.saturating_sub(1);
                work(self)
            }
            (_, None) => work(self),
        }
    }

    /// A step on a device that holds no values: every call of [`Trainer::step`] but the reading of its numbers, as if
    /// they asked for an update. It tells a rank's memory, work and collectives.
    pub fn rehearse(&mut self) -> Result<()> {
        let micros = self.next_batch()?;
        self.rehearse_with(micros.len(), |i| &micros[i])
    }

    /// The same with `n` micro-batches that need not come from data.
    pub fn rehearse_with<'a>(&mut self, n: usize, micro: impl Fn(usize) -> &'a MicroHost) -> Result<()> {
        let samples = self.batches.current().running_global_batch_size;
        let losses = self.gradients(n, micro)?;
        let _own = self.gather_stats(Leave::No, losses)?;
        let _sums = self.cx.sum_stats()?;
        self.apply(1.0, 1.0)?;
        self.scheduler.step(samples);
        self.advance(samples)
    }

    /// This rank's micro-batches of the next global batch.
    fn next_batch(&mut self) -> Result<Vec<MicroHost>> {
        self.world.at.begin(self.progress.iteration + 1);
        self.world.at.enter(Phase::Data);
        self.timers.start("batch-generator", 2);
        let source = self.data.train.as_mut().ok_or_else(no_training_data)?;
        let micros = source.global_batch(self.progress.consumed_samples, self.batches.current().num_microbatches)?;
        self.timers.stop("batch-generator");
        Ok(micros)
    }

    /// Gradients of a global batch, summed over all ranks; gives the sums of losses before each micro-batch.
    fn gradients<'a>(&mut self, n: usize, micro: impl Fn(usize) -> &'a MicroHost) -> Result<Option<Tensor>> {
        self.cx.step = self.progress.iteration;
        self.cx.training = true;
        let at = self.world.at.clone();
        at.enter(Phase::ForwardBackward);
        self.timers.start("forward-backward", 1);
        let losses = self.forward_backward(n, micro)?;
        self.timers.stop("forward-backward");

        at.enter(Phase::GradSync);
        self.timers.start("all-grads-sync", 1);
        self.cx.finish_grads()?;
        self.timers.stop("all-grads-sync");
        Ok(losses)
    }

    /// Counts a step of so many samples.
    fn advance(&mut self, samples: u64) -> Result<()> {
        self.progress.iteration += 1;
        self.progress.consumed_samples += samples;
        self.batches.update(self.progress.consumed_samples)?;
        Ok(())
    }

    /// True when the next iteration's data is to be passed over (`--iterations-to-skip`, which Megatron
    /// compares with the number of iterations done before).
    pub fn skips_next(&self) -> bool {
        self.config.train.iterations_to_skip.contains(&self.progress.iteration)
    }

    /// Passes over a global batch: its samples count as consumed and as skipped, nothing else changes.
    pub fn skip(&mut self) -> Result<()> {
        let samples = self.batches.current().running_global_batch_size;
        self.progress.iteration += 1;
        self.progress.consumed_samples += samples;
        self.progress.skipped_samples += samples;
        self.batches.update(self.progress.consumed_samples)?;
        Ok(())
    }

    /// Gradients of a global batch, into zeroed buffers, under the loss scale. Where NaN ends a run, gives the sum of
    /// losses before each micro-batch, `F32[n]`: it tells which one brought it.
    fn forward_backward<'a>(&mut self, n: usize, micro: impl Fn(usize) -> &'a MicroHost) -> Result<Option<Tensor>> {
        let steps = steps_of(&self.config.parallel, &self.stage.edges, n)?;
        let cx = &mut self.cx;
        cx.params.zero_grads(&*cx.device, &cx.stream)?;
        cx.begin_grads(n);
        cx.device.fill_bytes(&cx.stream, cx.stats.ptr(), cx.stats.bytes(), 0)?;
        cx.device.ops().fill(&cx.stream, self.scaler.scale(), &mut cx.loss_scale)?;
        let losses = match self.config.train.check_for_nan {
            true => Some(cx.pool.alloc(DType::F32, [n])?),
            false => None,
        };
        run_watched(cx, &self.stage, &self.stage.edges, &steps, &mut StepTimers(&mut self.timers), |cx, i| {
            if let Some(losses) = &losses {
                cx.ops().copy(&cx.stream, &cx.stat(stat::LOSS), &mut losses.view(i, [1]))?;
            }
            Micro::upload(&*cx.device, &cx.stream, &cx.pool, i, micro(i))
        })?;
        Ok(losses)
    }

    /// Completes this rank's part of all numbers that the host needs from a step. Gives a copy, where it may be asked
    /// who brought a NaN into the sum.
    fn gather_stats(&mut self, leave: Leave, losses: Option<Tensor>) -> Result<Option<OwnPart>> {
        self.world.at.enter(Phase::Numbers);
        let cx = &self.cx;
        self.optimizer.gather_grad_squares(cx)?;
        if self.config.log.num_zeros_in_grad {
            self.optimizer.gather_grad_zeros(cx)?;
        }
        if self.config.log.params_norm {
            self.optimizer.gather_param_squares(cx)?;
        }
        if leave != Leave::No {
            cx.ops().fill(&cx.stream, leave.weight(), &mut cx.stat(stat::LEAVE))?;
        }
        let Some(losses) = losses else { return Ok(None) };
        let mut stats = cx.pool.alloc(cx.stats.dtype(), *cx.stats.shape())?;
        cx.ops().copy(&cx.stream, &cx.stats, &mut stats)?;
        Ok(Some(OwnPart { stats, losses }))
    }

    fn judge(&self, stats: &[f32], samples: u64) -> Result<StepReport> {
        let tokens = stats[stat::TOKENS].max(1.0);
        let loss = stats[stat::LOSS] / tokens;
        let unscale = self.unscale(tokens);
        let grad_norm = f64::from(stats[stat::GRAD_SQUARES]).sqrt() * unscale;
        let scaled = self.scaler.state().is_some();
        let found_inf = scaled && !grad_norm.is_finite();
        let measured = StepStats { loss: f64::from(loss), grad_norm: Some(grad_norm), found_inf };
        let decision = self.guards.decide(&measured);
        if self.config.train.check_for_nan && decision == Decision::Apply {
            for (what, value) in [("the loss", f64::from(loss)), ("the gradient norm", grad_norm)] {
                if !value.is_finite() {
                    let last_good = self.progress.iteration;
                    let about = String::new();
                    return Err(Error::NotFinite { iteration: last_good + 1, what, value, last_good, about });
                }
            }
        }
        Ok(StepReport {
            loss,
            aux_losses: self.aux_losses(stats, samples),
            grad_norm,
            num_zeros: self.config.log.num_zeros_in_grad.then_some(stats[stat::GRAD_ZEROS] as u64),
            params_norm: self.config.log.params_norm.then_some(f64::from(stats[stat::PARAM_SQUARES]).sqrt()),
            samples,
            decision,
            leave: Leave::of_sum(stats[stat::LEAVE]),
        })
    }

    /// Megatron: `track_moe_metrics`.
    fn aux_losses(&self, stats: &[f32], samples: u64) -> Vec<(&'static str, f32)> {
        let Some(experts) = &self.model.experts else { return vec![] };
        let micro_batches = samples as f32 / self.config.train.micro_batch_size as f32;
        let layers = self.model.expert_layers() as f32;
        let tokens = samples as f32 * self.config.data.seq_length as f32;
        let mut losses = vec![];
        if experts.balance > 0.0 {
            losses.push(("load_balancing_loss", stats[stat::BALANCE] / (micro_batches * layers)));
        }
        if experts.z_loss > 0.0 {
            losses.push(("z_loss", stats[stat::ROUTER_Z] / (tokens * layers)));
        }
        losses
    }

    /// Factor that turns accumulated gradients into those of the mean loss.
    fn unscale(&self, tokens: f32) -> f64 {
        let per_token = if self.config.parallel.per_token_loss { f64::from(tokens) } else { 1.0 };
        f64::from(self.scaler.inv_scale()) / per_token
    }

    /// Clips and updates. (Megatron: `clip_grad_by_total_norm_fp32`.)
    fn apply(&mut self, grad_norm: f64, unscale: f64) -> Result<()> {
        let clip = self.config.optim.clip_grad;
        let coefficient = if clip > 0.0 { (clip / (grad_norm + 1e-6)).min(1.0) } else { 1.0 };
        self.world.at.enter(Phase::Optimizer);
        self.progress.updates += 1;
        let update = UpdateScalars {
            lr: self.scheduler.lr(),
            weight_decay: self.scheduler.wd(),
            grad_factor: coefficient * unscale,
            step: self.progress.updates,
        };
        self.optimizer.update(&self.cx, &update)?;
        self.cx.gather_params()?;
        Ok(())
    }
}

/// What a stage does for a global batch.
pub(crate) fn steps_of(p: &ParallelConfig, edges: &Edges, microbatches: usize) -> Result<Vec<Step>> {
    schedule(p.schedule, &pipe_of(p, edges.stage, edges.ring, microbatches)).map_err(|e| Error::Setting(e.to_string()))
}

/// A stage's place and work.
pub(crate) fn pipe_of(p: &ParallelConfig, stage: usize, ring: Ring, microbatches: usize) -> Pipe {
    Pipe { stage, stages: ring.stages, chunks: ring.chunks, microbatches, group: p.microbatch_group }
}

fn no_training_data() -> Error {
    Error::Setting("the training split is empty: give it a share in --split, or --train-data-path".into())
}
