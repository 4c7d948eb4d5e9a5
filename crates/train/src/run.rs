//! The loop, as one page of plain steps.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use ferrotron_config::{Environment, Resolved};
use ferrotron_telemetry::lines::{self, EvaluationPoint, Event, ModelParallelRank};
use ferrotron_telemetry::{RunState, Timestamp};

use crate::evaluate::EvalSet;
use crate::profile::{Profile, SCOPE_ONLY};
use crate::report::Reporter;
use crate::save_load::Loaded;
use crate::signals::{Asked, Signals};
use crate::step::{Leave, StepReport};
use crate::{Result, Trainer, World};

/// How a run that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All iterations are done.
    Finished,
    /// An exit flag asked for it, after a save.
    Early,
    /// A signal, without a save: leave with 128 + its number.
    Signal(i32),
}

/// Name of our format in Megatron's "saving checkpoint" line.
const FORMAT: &str = "ferrotron";

/// One rank of a run.
pub struct Rank<'a> {
    /// The validated command line.
    pub resolved: &'a Resolved,
    /// The launcher's variables.
    pub env: &'a Environment,
    /// All ranks.
    pub world: World,
    /// Ranks that share this host's processors.
    pub local_ranks: usize,
    /// Signals of this process.
    pub signals: Signals,
}

/// Trains as one rank. Prints to `out` what Megatron prints, on the rank that logs; on the others nothing.
pub fn pretrain(rank: Rank<'_>, out: &mut dyn Write) -> Result<Ending> {
    let logs = rank.world.logs();
    let mut nowhere = std::io::sink();
    let out: &mut dyn Write = if logs { out } else { &mut nowhere };
    let mut t = Trainer::new(rank.resolved, rank.env, rank.world.clone(), rank.local_ranks)?;
    let mut log = Reporter::new(out, rank.resolved, t.model.vocab, logs)?;
    let mut profile = Profile::new(&mut t);
    let ended = train(&rank, &mut t, &mut log, &mut profile);
    let state = match &ended {
        Ok(Ending::Finished | Ending::Early) => RunState::Finished,
        Ok(Ending::Signal(signal)) => RunState::Failed(format!("stopped by signal {signal}")),
        Err(e) => RunState::Failed(e.to_string()),
    };
    // Every writer has its last word before the first error is told.
    let captured = if ended.is_ok() { profile.finish(&mut t) } else { Ok(()) };
    let traced = t.timers.detach_all();
    let told = log.finish(&state);
    let ending = ended?;
    captured?;
    traced?;
    told?;
    Ok(ending)
}

fn train(rank: &Rank<'_>, t: &mut Trainer, log: &mut Reporter<'_>, profile: &mut Profile) -> Result<Ending> {
    let (tp, pp) = (&t.cx.groups.tp, &t.cx.groups.pp);
    log.line(lines::parameter_count(tp.rank(), pp.rank(), t.cx.params.table().numel() as u64))?;
    for line in t.cx.device.describe() {
        log.line(line)?;
    }
    for notice in std::mem::take(&mut t.notices) {
        log.line(notice)?;
    }
    load(t, log)?;
    let timeout = t.config.parallel.timeout_seconds_after_init;
    t.world.fabric.set_timeout(std::time::Duration::from_secs(timeout));
    log.start_progress(t, rank.env)?;
    log.event(Event::ModelBuilt)?;
    log.event(Event::DataBuilt)?;

    let mut saved_at = None;
    if !t.config.train.skip_train {
        log.event(Event::TrainingStarts)?;
        while t.progress.iteration < t.train_iters {
            if t.skips_next() {
                t.skip()?;
                continue;
            }
            let began = Instant::now();
            let report = step(t, wish(t, log, &rank.signals), profile)?;
            log.step(t, &report, began.elapsed().as_secs_f64())?;

            if due(t.progress.iteration, t.config.eval.interval)
                && t.config.eval.start_at_iter.is_none_or(|n| t.progress.iteration >= n)
            {
                let point = EvaluationPoint::During(t.progress.iteration);
                evaluate(t, log, EvalSet::Valid, point)?;
            }
            if due(t.progress.iteration, t.config.checkpoint.save_interval) {
                save(t, log, &mut saved_at)?;
            }
            if let Some(ending) = leave_early(t, log, report.leave, &rank.signals, &mut saved_at)? {
                return Ok(ending);
            }
        }
        log.event(Event::TrainingDone)?;
        save(t, log, &mut saved_at)?;
    }
    let n = t.progress.iteration;
    evaluate(t, log, EvalSet::Valid, EvaluationPoint::FinalValidation(n))?;
    evaluate(t, log, EvalSet::Test, EvaluationPoint::FinalTest(n))?;
    Ok(Ending::Finished)
}

/// A step, as one scope of whoever records them.
fn step(t: &mut Trainer, leave: Leave, profile: &mut Profile) -> Result<StepReport> {
    profile.before(t)?;
    let report = t.step(leave)?;
    profile.after(t)?;
    Ok(report)
}

/// Place of this rank in the model, as Megatron's checkpoint lines print it.
fn place(t: &Trainer) -> ModelParallelRank {
    let (tp, pp) = (&t.cx.groups.tp, &t.cx.groups.pp);
    ModelParallelRank {
        tensor_rank: tp.rank(),
        tensor_size: tp.size(),
        pipeline_rank: pp.rank(),
        pipeline_size: pp.size(),
    }
}

/// What this rank asks for before a step.
fn wish(t: &Trainer, log: &Reporter<'_>, signals: &Signals) -> Leave {
    let limit = t.config.train.exit.duration_in_mins;
    let late = limit.is_some_and(|limit| log.minutes() > limit as f64);
    let asked = signals.asked().map_or(Leave::No, Asked::wish);
    asked.max(if late { Leave::Save } else { Leave::No })
}

fn due(iteration: u64, interval: Option<u64>) -> bool {
    interval.is_some_and(|n| n > 0 && iteration.is_multiple_of(n))
}

fn load(t: &mut Trainer, log: &mut Reporter<'_>) -> Result<()> {
    let loaded = t.load()?;
    for notice in std::mem::take(&mut t.notices) {
        log.line(notice)?;
    }
    let dir: Option<PathBuf> = t.config.checkpoint.load.clone().or_else(|| t.config.checkpoint.pretrained.clone());
    match (loaded, dir) {
        (Loaded::From(iteration), Some(dir)) => log.line(lines::loaded_checkpoint(&dir, place(t), iteration)),
        (Loaded::Fresh, Some(dir)) => log.line(lines::no_checkpoint(&dir)),
        (_, None) => Ok(()),
    }
}

/// Saves below `--save`, unless this iteration is saved already or nothing was trained.
fn save(t: &mut Trainer, log: &mut Reporter<'_>, saved_at: &mut Option<u64>) -> Result<()> {
    let Some(root) = t.config.checkpoint.save.clone() else { return Ok(()) };
    let n = t.progress.iteration;
    if n == 0 || *saved_at == Some(n) {
        return Ok(());
    }
    log.line(lines::saving_checkpoint(Timestamp::now(), n, &root, FORMAT))?;
    t.timers.start("save-checkpoint", SCOPE_ONLY);
    t.save(&root)?;
    t.timers.stop("save-checkpoint");
    *saved_at = Some(n);
    log.saved(t, &root, place(t))
}

fn evaluate(t: &mut Trainer, log: &mut Reporter<'_>, set: EvalSet, point: EvaluationPoint) -> Result<()> {
    t.timers.start("eval-time", SCOPE_ONLY);
    let loss = t.evaluate(set)?;
    t.timers.stop("eval-time");
    match loss {
        Some(loss) => log.evaluation(t, point, loss),
        None => Ok(()),
    }
}

/// The exits of Megatron's `checkpoint_and_decide_exit`, in its order. All ranks come to the same answer: wishes were
/// summed over them in the step.
fn leave_early(
    t: &mut Trainer,
    log: &mut Reporter<'_>,
    leave: Leave,
    signals: &Signals,
    saved_at: &mut Option<u64>,
) -> Result<Option<Ending>> {
    let n = t.progress.iteration;
    match leave {
        Leave::Stop => {
            // Another rank may have been told; then this one ends as by SIGTERM.
            let signal = match signals.asked() {
                Some(Asked::Stop(signal)) => signal,
                _ => signal_hook::consts::SIGTERM,
            };
            log.line(format!("stopped by signal {signal} after iteration {n}, not saved"))?;
            return Ok(Some(Ending::Signal(signal)));
        }
        Leave::Save => {
            save(t, log, saved_at)?;
            let minutes = log.minutes();
            let late = t.config.train.exit.duration_in_mins.is_some_and(|limit| minutes > limit as f64);
            log.event(if late { Event::ExitAfterMinutes(minutes) } else { Event::ExitOnSignal })?;
            return Ok(Some(Ending::Early));
        }
        Leave::No => {}
    }
    if due(n, t.config.train.exit.interval) {
        save(t, log, saved_at)?;
        log.event(Event::ExitAtIteration(n))?;
        return Ok(Some(Ending::Early));
    }
    Ok(None)
}
