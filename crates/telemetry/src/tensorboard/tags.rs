//! Megatron's tags. Most scalars appear twice: over iterations, and as `<tag> vs samples` over consumed samples.

use crate::lines::perplexity;

/// One point of one curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Name of the curve.
    pub tag: String,
    /// x: an iteration or a number of samples.
    pub step: u64,
    /// y; event files store f32.
    pub value: f32,
}

/// What one training iteration writes. `None` leaves a curve out.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingScalars {
    /// Iteration just finished.
    pub iteration: u64,
    /// Samples consumed so far.
    pub consumed_samples: u64,
    /// `learning-rate`.
    pub learning_rate: Option<f64>,
    /// `skipped-train-samples`, without a twin; left out while 0.
    pub skipped_samples: u64,
    /// `batch-size`.
    pub batch_size: u64,
    /// (name, value of this iteration), for instance `lm loss`.
    pub losses: Vec<(String, f64)>,
    /// `loss-scale` (off with `--no-log-loss-scale-to-tensorboard`).
    pub loss_scale: Option<f64>,
    /// `world-size` (`--log-world-size-to-tensorboard`).
    pub world_size: Option<u64>,
    /// `grad-norm`.
    pub grad_norm: Option<f64>,
    /// `num-zeros` (`--log-num-zeros-in-grad`).
    pub num_zeros: Option<u64>,
    /// `params-norm` (`--log-params-norm`).
    pub params_norm: Option<f64>,
    /// `iteration-time` in seconds, without a twin (`--log-timers-to-tensorboard`, on log intervals).
    pub iteration_time: Option<f64>,
    /// `throughput` in TFLOP/s per device, without a twin (same flag, with `--log-throughput`).
    pub throughput: Option<f64>,
}

impl TrainingScalars {
    /// The points in Megatron's order.
    pub fn scalars(&self) -> Vec<Scalar> {
        let mut out = Curves { iteration: self.iteration, consumed_samples: self.consumed_samples, points: Vec::new() };
        if let Some(learning_rate) = self.learning_rate {
            out.twice("learning-rate", learning_rate);
        }
        if self.skipped_samples > 0 {
            out.once("skipped-train-samples", self.skipped_samples as f64);
        }
        out.twice("batch-size", self.batch_size as f64);
        for (name, loss) in &self.losses {
            out.twice(name, *loss);
        }
        let rest = [
            ("loss-scale", self.loss_scale),
            ("world-size", self.world_size.map(|size| size as f64)),
            ("grad-norm", self.grad_norm),
            ("num-zeros", self.num_zeros.map(|zeros| zeros as f64)),
            ("params-norm", self.params_norm),
        ];
        for (tag, value) in rest {
            if let Some(value) = value {
                out.twice(tag, value);
            }
        }
        for (tag, value) in [("iteration-time", self.iteration_time), ("throughput", self.throughput)] {
            if let Some(value) = value {
                out.once(tag, value);
            }
        }
        out.points
    }
}

/// What one evaluation writes.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationScalars {
    /// Iteration of the evaluation.
    pub iteration: u64,
    /// Samples consumed by training so far.
    pub consumed_samples: u64,
    /// One of several validation sets, by index or name.
    pub set: Option<String>,
    /// (name, average), for instance `lm loss`.
    pub losses: Vec<(String, f64)>,
    /// Also write perplexity (`--log-validation-ppl-to-tensorboard`).
    pub with_perplexity: bool,
}

impl ValidationScalars {
    /// The points in Megatron's order.
    pub fn scalars(&self) -> Vec<Scalar> {
        let mut out = Curves { iteration: self.iteration, consumed_samples: self.consumed_samples, points: Vec::new() };
        let suffix = self.set.as_ref().map_or(String::new(), |set| format!("-{set}"));
        for (name, loss) in &self.losses {
            out.twice(&format!("{name} validation{suffix}"), *loss);
            if self.with_perplexity {
                out.twice(&format!("{name} validation{suffix} ppl"), perplexity(*loss));
            }
        }
        out.points
    }
}

/// Device memory of one iteration (`--log-memory-to-tensorboard`). These curves have no twin over samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryScalars {
    /// `mem-reserved-bytes`: held by the pool.
    pub reserved: u64,
    /// `mem-allocated-bytes`: in use.
    pub allocated: u64,
    /// `mem-max-allocated-bytes`: most in use so far.
    pub max_allocated: u64,
    /// `mem-allocated-count`: blocks in use.
    pub allocated_count: u64,
}

impl MemoryScalars {
    /// The points in Megatron's order. Event files store f32: sizes above 16 MiB keep 24 bits.
    pub fn scalars(&self, iteration: u64) -> Vec<Scalar> {
        let point = |(tag, value): (&str, u64)| Scalar { tag: tag.to_string(), step: iteration, value: value as f32 };
        [
            ("mem-reserved-bytes", self.reserved),
            ("mem-allocated-bytes", self.allocated),
            ("mem-max-allocated-bytes", self.max_allocated),
            ("mem-allocated-count", self.allocated_count),
        ]
        .map(point)
        .to_vec()
    }
}

struct Curves {
    iteration: u64,
    consumed_samples: u64,
    points: Vec<Scalar>,
}

impl Curves {
    fn once(&mut self, tag: &str, value: f64) {
        self.points.push(Scalar { tag: tag.to_string(), step: self.iteration, value: value as f32 });
    }

    fn twice(&mut self, tag: &str, value: f64) {
        self.once(tag, value);
        let tag = format!("{tag} vs samples");
        self.points.push(Scalar { tag, step: self.consumed_samples, value: value as f32 });
    }
}
