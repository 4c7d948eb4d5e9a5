//! What a run knows after an iteration: the record that the report, the endpoint, the console line and the run folder show.

use crate::jsonl::Metric;

/// The numbers of one iteration. `None` where the run does not measure something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMetrics {
    /// Iteration just finished, from 1.
    pub iteration: u64,
    /// Iterations of the whole run.
    pub train_iters: u64,
    /// Samples consumed so far.
    pub consumed_samples: u64,
    /// Samples of this iteration.
    pub batch_size: u64,
    /// Tokens of this iteration.
    pub tokens: u64,
    /// (name, value), for instance `lm loss`.
    pub losses: Vec<(String, f64)>,
    /// Learning rate of the next iteration, as in the log line.
    pub learning_rate: f64,
    /// Norm of all gradients before clipping.
    pub grad_norm: Option<f64>,
    /// Norm of all parameters (`--log-params-norm`).
    pub params_norm: Option<f64>,
    /// Zeros among the gradients (`--log-num-zeros-in-grad`).
    pub num_zeros: Option<u64>,
    /// Loss scale.
    pub loss_scale: f64,
    /// The update was skipped.
    pub skipped: bool,
    /// Wall time of the iteration.
    pub seconds: f64,
    /// TFLOP/s of one device, recomputation not counted.
    pub tflops_per_device: Option<f64>,
    /// Share of the device's peak, 0 to 1; known where the peak is.
    pub mfu: Option<f64>,
    /// Bytes in use on the device.
    pub memory_allocated: Option<u64>,
    /// Most bytes in use so far.
    pub memory_peak: Option<u64>,
}

impl StepMetrics {
    /// Tokens a second over all devices; 0 before time has passed.
    pub fn tokens_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens as f64 / self.seconds } else { 0.0 }
    }

    /// (name, value) of everything that is known: the fields of a metrics line.
    pub fn fields(&self) -> Vec<(&str, Metric)> {
        let mut out =
            vec![("iteration", Metric::Int(self.iteration)), ("consumed_samples", Metric::Int(self.consumed_samples))];
        out.extend(self.losses.iter().map(|(name, loss)| (name.as_str(), Metric::Float(*loss))));
        let float = |name, value: Option<f64>| value.map(|v| (name, Metric::Float(v)));
        let int = |name, value: Option<u64>| value.map(|v| (name, Metric::Int(v)));
        out.extend(
            [
                float("grad_norm", self.grad_norm),
                float("learning_rate", Some(self.learning_rate)),
                float("loss_scale", Some(self.loss_scale)),
                int("batch_size", Some(self.batch_size)),
                int("skipped", Some(u64::from(self.skipped))),
                float("seconds", Some(self.seconds)),
                float("tokens_per_second", Some(self.tokens_per_second())),
                float("params_norm", self.params_norm),
                int("num_zeros", self.num_zeros),
                float("tflops_per_device", self.tflops_per_device),
                float("mfu", self.mfu),
                int("memory_allocated", self.memory_allocated),
                int("memory_peak", self.memory_peak),
            ]
            .into_iter()
            .flatten(),
        );
        out
    }
}
