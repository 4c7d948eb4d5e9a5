//! The loop, as one page of plain steps.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use ferrotron_config::{Environment, Resolved};
use ferrotron_telemetry::Timestamp;
use ferrotron_telemetry::lines::{self, EvaluationPoint, Event, ModelParallelRank};

use crate::evaluate::EvalSet;
use crate::report::Reporter;
use crate::save_load::Loaded;
use crate::signals::{Asked, Signals};
use crate::{Result, Trainer};

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
/// The only rank, while there is one.
const RANK: ModelParallelRank =
    ModelParallelRank { tensor_rank: 0, tensor_size: 1, pipeline_rank: 0, pipeline_size: 1 };

/// Trains. Prints to `out` what Megatron prints on its logging rank.
pub fn pretrain(resolved: &Resolved, env: &Environment, out: &mut dyn Write) -> Result<Ending> {
    let signals = Signals::watch(&resolved.config.train.exit)?;
    let mut t = Trainer::new(resolved, env)?;
    let mut log = Reporter::new(out, &t.config, t.model.vocab)?;
    log.line(lines::parameter_count(0, 0, t.cx.params.table().numel() as u64))?;
    for notice in std::mem::take(&mut t.notices) {
        log.line(format!("note: {notice}"))?;
    }
    load(&mut t, &mut log)?;
    log.event(Event::ModelBuilt)?;
    log.event(Event::DataBuilt)?;

    let mut saved_at = None;
    if !t.config.train.skip_train {
        log.event(Event::TrainingStarts)?;
        while t.progress.iteration < t.train_iters {
            let began = Instant::now();
            let report = t.step()?;
            log.step(&mut t, &report, began.elapsed().as_secs_f64())?;

            if due(t.progress.iteration, t.config.eval.interval)
                && t.config.eval.start_at_iter.is_none_or(|n| t.progress.iteration >= n)
            {
                let point = EvaluationPoint::During(t.progress.iteration);
                evaluate(&mut t, &mut log, EvalSet::Valid, point)?;
            }
            if due(t.progress.iteration, t.config.checkpoint.save_interval) {
                save(&t, &mut log, &mut saved_at)?;
            }
            if let Some(ending) = leave_early(&t, &mut log, &signals, &mut saved_at)? {
                return Ok(ending);
            }
        }
        log.event(Event::TrainingDone)?;
        save(&t, &mut log, &mut saved_at)?;
    }
    let n = t.progress.iteration;
    evaluate(&mut t, &mut log, EvalSet::Valid, EvaluationPoint::FinalValidation(n))?;
    evaluate(&mut t, &mut log, EvalSet::Test, EvaluationPoint::FinalTest(n))?;
    Ok(Ending::Finished)
}

fn due(iteration: u64, interval: Option<u64>) -> bool {
    interval.is_some_and(|n| n > 0 && iteration.is_multiple_of(n))
}

fn load(t: &mut Trainer, log: &mut Reporter<'_>) -> Result<()> {
    let loaded = t.load()?;
    let dir: Option<PathBuf> = t.config.checkpoint.load.clone().or_else(|| t.config.checkpoint.pretrained.clone());
    match (loaded, dir) {
        (Loaded::From(iteration), Some(dir)) => log.line(lines::loaded_checkpoint(&dir, RANK, iteration)),
        (Loaded::Fresh, Some(dir)) => log.line(lines::no_checkpoint(&dir)),
        (_, None) => Ok(()),
    }
}

/// Saves below `--save`, unless this iteration is saved already or nothing was trained.
fn save(t: &Trainer, log: &mut Reporter<'_>, saved_at: &mut Option<u64>) -> Result<()> {
    let Some(root) = &t.config.checkpoint.save else { return Ok(()) };
    let n = t.progress.iteration;
    if n == 0 || *saved_at == Some(n) {
        return Ok(());
    }
    log.line(lines::saving_checkpoint(Timestamp::now(), n, root, FORMAT))?;
    t.save(root)?;
    *saved_at = Some(n);
    log.line(lines::saved_checkpoint(Timestamp::now(), n, root, RANK))
}

fn evaluate(t: &mut Trainer, log: &mut Reporter<'_>, set: EvalSet, point: EvaluationPoint) -> Result<()> {
    match t.evaluate(set)? {
        Some(loss) => log.evaluation(t, point, loss),
        None => Ok(()),
    }
}

/// The exits of Megatron's `checkpoint_and_decide_exit`, in its order.
fn leave_early(
    t: &Trainer,
    log: &mut Reporter<'_>,
    signals: &Signals,
    saved_at: &mut Option<u64>,
) -> Result<Option<Ending>> {
    let exit = &t.config.train.exit;
    let n = t.progress.iteration;
    match signals.asked() {
        Some(Asked::SaveAndExit) => {
            save(t, log, saved_at)?;
            log.event(Event::ExitOnSignal)?;
            return Ok(Some(Ending::Early));
        }
        Some(Asked::Stop(signal)) => {
            log.line(format!("stopped by signal {signal} after iteration {n}, not saved"))?;
            return Ok(Some(Ending::Signal(signal)));
        }
        None => {}
    }
    let minutes = log.minutes();
    if exit.duration_in_mins.is_some_and(|limit| minutes > limit as f64) {
        save(t, log, saved_at)?;
        log.event(Event::ExitAfterMinutes(minutes))?;
        return Ok(Some(Ending::Early));
    }
    if due(n, exit.interval) {
        save(t, log, saved_at)?;
        log.event(Event::ExitAtIteration(n))?;
        return Ok(Some(Ending::Early));
    }
    Ok(None)
}
