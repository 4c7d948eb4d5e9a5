//! The line that Megatron's last rank prints every `--log-interval` iterations. (Megatron: `training_log`.)

use std::fmt;

use crate::pyfmt::{exp_upper, fixed};
use crate::timestamp::Timestamp;

/// One training log line; [`fmt::Display`] prints it as Megatron main does. Optional parts are left out when `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingLine {
    /// Time of printing.
    pub time: Timestamp,
    /// Iteration just finished, from 1.
    pub iteration: u64,
    /// Iterations of the whole run.
    pub train_iters: u64,
    /// Samples consumed since the beginning of training.
    pub consumed_samples: u64,
    /// Samples skipped on purpose; not printed while 0.
    pub skipped_samples: u64,
    /// Mean wall time of an iteration over the interval, skipped iterations included, in milliseconds.
    pub elapsed_ms_per_iteration: f64,
    /// TFLOP/s of one device (`--log-throughput`).
    pub throughput: Option<f64>,
    /// Joules per iteration and watts of one device (`--log-energy`).
    pub energy_and_power: Option<(f64, f64)>,
    /// Learning rate of the *next* iteration: the schedule has moved on when the line is printed.
    pub learning_rate: Option<f64>,
    /// Samples of one iteration.
    pub global_batch_size: u64,
    /// (name, average over the interval). Averages that are negative or NaN are not printed.
    pub losses: Vec<(String, f64)>,
    /// (name, value) of other metrics, printed with two digits.
    pub metrics: Vec<(String, f64)>,
    /// 1 unless fp16 scales the loss.
    pub loss_scale: f64,
    /// Norm of all gradients before clipping.
    pub grad_norm: Option<f64>,
    /// Zeros among the gradients (`--log-num-zeros-in-grad`).
    pub num_zeros: Option<u64>,
    /// Norm of all parameters (`--log-params-norm`).
    pub params_norm: Option<f64>,
    /// Iterations of the interval whose update was skipped.
    pub skipped_iterations: u64,
    /// Those of them whose loss was NaN or infinite.
    pub nan_iterations: u64,
}

impl fmt::Display for TrainingLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " [{}] iteration {:8}/{:8} |", self.time, self.iteration, self.train_iters)?;
        write!(f, " consumed samples: {:12} |", self.consumed_samples)?;
        if self.skipped_samples > 0 {
            write!(f, " skipped samples: {:12} |", self.skipped_samples)?;
        }
        write!(f, " elapsed time per iteration (ms): {} |", fixed(self.elapsed_ms_per_iteration, 1))?;
        if let Some(throughput) = self.throughput {
            write!(f, " throughput per GPU (TFLOP/s/GPU): {} |", fixed(throughput, 1))?;
        }
        if let Some((energy, power)) = self.energy_and_power {
            write!(f, " energy per GPU (J/iter/GPU): {} |", fixed(energy, 1))?;
            write!(f, " power per GPU (W/GPU): {} |", fixed(power, 1))?;
        }
        if let Some(learning_rate) = self.learning_rate {
            // Megatron takes the maximum over ranks in f32 first, which can show in the seventh digit.
            write!(f, " learning rate: {} |", exp_upper(f64::from(learning_rate as f32), 6))?;
        }
        write!(f, " global batch size: {:5} |", self.global_batch_size)?;
        for (name, average) in self.losses.iter().filter(|(_, average)| *average >= 0.0) {
            write!(f, " {name}: {} |", exp_upper(*average, 6))?;
        }
        for (name, value) in &self.metrics {
            write!(f, " {name}: {} |", fixed(*value, 2))?;
        }
        write!(f, " loss scale: {} |", fixed(self.loss_scale, 1))?;
        if let Some(grad_norm) = self.grad_norm {
            write!(f, " grad norm: {} |", fixed(grad_norm, 3))?;
        }
        if let Some(num_zeros) = self.num_zeros {
            // Also gathered over ranks in f32, hence printed by Python as a float.
            write!(f, " num zeros: {} |", fixed(f64::from(num_zeros as f32), 1))?;
        }
        if let Some(params_norm) = self.params_norm {
            write!(f, " params norm: {} |", fixed(params_norm, 3))?;
        }
        write!(f, " number of skipped iterations: {:3} |", self.skipped_iterations)?;
        write!(f, " number of nan iterations: {:3} |", self.nan_iterations)
    }
}
