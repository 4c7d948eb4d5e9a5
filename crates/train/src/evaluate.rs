//! Evaluation: the mean loss over a number of batches, with no gradient and no dropout.

use ferrotron_executor::forward_only;
use ferrotron_runtime::{Micro, stat};

use crate::batch::BatchSource;
use crate::{Phase, Result, Trainer};

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

    fn sum_losses(&mut self, source: &mut BatchSource, iters: u64, consumed: &mut u64) -> Result<(f64, f64)> {
        let cx = &mut self.cx;
        let step = (self.config.eval.micro_batch_size * cx.groups.readers().1) as u64;
        let micro_batches = self.config.eval.global_batch_size as u64 / step.max(1);
        let (mut loss, mut tokens) = (0f64, 0f64);
        for _ in 0..iters {
            cx.device.fill_bytes(&cx.stream, cx.stats.ptr(), cx.stats.bytes(), 0)?;
            for (i, m) in source.global_batch(*consumed, micro_batches)?.iter().enumerate() {
                let mb = Micro::upload(&*cx.device, &cx.stream, &cx.pool, i, m)?;
                forward_only(cx, &self.stage, &mb)?;
            }
            let stats = cx.read_stats()?;
            loss += f64::from(stats[stat::LOSS]);
            tokens += f64::from(stats[stat::TOKENS]);
            *consumed += micro_batches * step;
        }
        Ok((loss, tokens))
    }
}
