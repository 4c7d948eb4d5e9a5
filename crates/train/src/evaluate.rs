//! Evaluation: the mean loss over a number of batches, with no gradient and no dropout.

use ferrotron_executor::{Edges, run};
use ferrotron_runtime::{Micro, stat};
use ferrotron_schedule::forwards;

use crate::batch::BatchSource;
use crate::step::pipe_of;
use crate::{Error, Phase, Result, Trainer};

/// Which set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalSet {
    /// Validation: goes on where the last evaluation stopped.
    Valid,
    /// Test: from the start.
    Test,
}

impl Trainer {
    /// Mean loss over `--eval-iters` batches of a set (with `--full-validation`, all whole batches of the validation set,
    /// from its start): the sum over tokens that count, divided by their number.
    /// `None` when the set is empty or evaluation is off.
    pub fn evaluate(&mut self, set: EvalSet) -> Result<Option<f64>> {
        let mut iters = self.config.eval.iters;
        let (source, mut consumed) = match set {
            EvalSet::Valid => (self.data.valid.take(), self.progress.consumed_valid_samples),
            EvalSet::Test => (self.data.test.take(), 0),
        };
        if let Some(whole) = source.as_ref().filter(|_| self.config.eval.full_validation && set == EvalSet::Valid) {
            (iters, consumed) = ((whole.len() / self.config.eval.global_batch_size) as u64, 0);
        }
        let Some(mut source) = source.filter(|_| iters > 0) else { return Ok(None) };
        self.world.at.enter(Phase::Evaluate);
        self.cx.training = false;
        self.cx.finish_params();
        let done = self.sum_losses(&mut source, iters, &mut consumed);
        self.cx.training = true;
        match set {
            EvalSet::Valid => {
                self.data.valid = Some(source);
                self.progress.consumed_valid_samples = consumed;
            }
            EvalSet::Test => self.data.test = Some(source),
        }
        let (loss, tokens) = done?;
        Ok(Some(loss / tokens.max(1.0)))
    }

    /// Micro-batches follow each other through the pipeline as in training.
    fn sum_losses(&mut self, source: &mut BatchSource, iters: u64, consumed: &mut u64) -> Result<(f64, f64)> {
        let (cx, c) = (&mut self.cx, &self.config);
        let step = (c.eval.micro_batch_size * cx.groups.readers().1) as u64;
        let micro_batches = c.eval.global_batch_size as u64 / step.max(1);
        let train = &self.stage.edges;
        // Evaluation may have micro-batches of another size.
        let edges = Edges { rows: train.rows / c.train.micro_batch_size * c.eval.micro_batch_size, ..*train };
        let steps = forwards(&pipe_of(&c.parallel, edges.stage, edges.ring, micro_batches as usize))
            .map_err(|e| Error::Setting(e.to_string()))?;
        let (mut loss, mut tokens) = (0f64, 0f64);
        for _ in 0..iters {
            cx.device.fill_bytes(&cx.stream, cx.stats.ptr(), cx.stats.bytes(), 0)?;
            let micros = source.global_batch(*consumed, micro_batches)?;
            run(cx, &self.stage, &edges, &steps, |cx, i| {
                Micro::upload(&*cx.device, &cx.stream, &cx.pool, i, &micros[i])
            })?;
            let stats = cx.read_stats()?;
            loss += f64::from(stats[stat::LOSS]);
            tokens += f64::from(stats[stat::TOKENS]);
            *consumed += micro_batches * step;
        }
        Ok((loss, tokens))
    }
}
