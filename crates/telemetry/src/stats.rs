//! What accumulates between two training log lines. (Megatron: `total_loss_dict` of `training_log`.)

/// Sums over a log interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalStats {
    /// (name, sum over applied iterations) in order of first appearance; f32 as on Megatron's device.
    loss_sums: Vec<(String, f32)>,
    advanced: u64,
    skipped: u64,
    nan: u64,
    elapsed: f64,
}

/// What [`IntervalStats`] holds, in numbers that keep their bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalState {
    /// Name and bits of the f32 sum of each loss.
    pub losses: Vec<(String, u32)>,
    /// Iterations whose update was applied.
    pub advanced: u64,
    /// Iterations whose update was skipped.
    pub skipped: u64,
    /// Skipped iterations with a loss that is not finite.
    pub nan: u64,
}

impl IntervalStats {
    /// Nothing accumulated yet.
    pub fn new() -> IntervalStats {
        IntervalStats::default()
    }

    /// Takes note of one iteration: its losses (name, value), whether its update was skipped, and its wall time in
    /// seconds.
    ///
    /// Losses of skipped iterations are not summed; the iteration counts as NaN when one of them is not finite. A NaN
    /// in an applied iteration spoils the average instead, as in Megatron, and so removes it from the line.
    pub fn record(&mut self, losses: &[(&str, f32)], skipped: bool, seconds: f64) {
        self.elapsed += seconds;
        if skipped {
            self.skipped += 1;
            self.nan += u64::from(losses.iter().any(|(_, loss)| !loss.is_finite()));
            return;
        }
        self.advanced += 1;
        for &(name, loss) in losses {
            match self.loss_sums.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += loss,
                None => self.loss_sums.push((name.to_string(), loss)),
            }
        }
    }

    /// (name, average over applied iterations). A name known from an earlier interval averages to 0 when every
    /// iteration was skipped: Megatron prints that zero too.
    pub fn averages(&self) -> Vec<(String, f64)> {
        let count = self.advanced.max(1) as f64;
        self.loss_sums.iter().map(|(name, sum)| (name.clone(), f64::from(*sum) / count)).collect()
    }

    /// Mean wall time of an iteration in milliseconds, skipped ones included; 0 before the first.
    pub fn elapsed_ms_per_iteration(&self) -> f64 {
        self.seconds_per_iteration() * 1000.0
    }

    /// Mean wall time of an iteration in seconds, skipped ones included; 0 before the first.
    pub fn seconds_per_iteration(&self) -> f64 {
        match self.iterations() {
            0 => 0.0,
            iterations => self.elapsed / iterations as f64,
        }
    }

    /// Iterations of the interval.
    pub fn iterations(&self) -> u64 {
        self.advanced + self.skipped
    }

    /// Iterations whose update was skipped.
    pub fn skipped_iterations(&self) -> u64 {
        self.skipped
    }

    /// Skipped iterations with a loss that is not finite.
    pub fn nan_iterations(&self) -> u64 {
        self.nan
    }

    /// The sums so far, for a checkpoint: a resumed run then prints the same averages. Wall time is not part of it.
    pub fn state(&self) -> IntervalState {
        let losses = self.loss_sums.iter().map(|(name, sum)| (name.clone(), sum.to_bits())).collect();
        IntervalState { losses, advanced: self.advanced, skipped: self.skipped, nan: self.nan }
    }

    /// Inverse of [`IntervalStats::state`].
    pub fn from_state(state: &IntervalState) -> IntervalStats {
        let loss_sums = state.losses.iter().map(|(name, bits)| (name.clone(), f32::from_bits(*bits))).collect();
        let &IntervalState { advanced, skipped, nan, .. } = state;
        IntervalStats { loss_sums, advanced, skipped, nan, elapsed: 0.0 }
    }

    /// Begins the next interval. Not called after the extra line of the first iteration, whose numbers belong to the
    /// first regular interval as well.
    pub fn reset(&mut self) {
        let names = self.loss_sums.drain(..).map(|(name, _)| (name, 0.0)).collect();
        *self = IntervalStats { loss_sums: names, ..IntervalStats::default() };
    }
}
