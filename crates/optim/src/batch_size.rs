//! Global batch size and number of micro-batches as functions of the samples seen so far.
//! (Megatron: `num_microbatches_calculator.py`.)
//!
//! * constant: `--global-batch-size`
//! * ramp (`--rampup-batch-size START INCREMENT SAMPLES`): k = (global − start)/increment increments spread evenly over
//!   `SAMPLES`. Megatron dropped it in core 0.18; it works here as it did before.
//! * steps (`--step-batch-size-schedule "0:16 1K:32"`): the last entry whose threshold has been reached.
//!
//! A batch must be a multiple of micro-batch size × data-parallel size. With `--decrease-batch-size-if-needed` it is
//! rounded down to one instead, and consumed samples grow by that *running* size.

use thiserror::Error;

/// Why a batch size cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BatchSizeError {
    /// A size that must be positive is zero.
    #[error("{flag} is 0; it must be at least 1")]
    Zero {
        /// The flag or quantity.
        flag: &'static str,
    },
    /// The sizes multiply beyond 64 bits.
    #[error("micro-batch size {micro_batch_size} times data-parallel size {data_parallel_size} overflows 64 bits")]
    Overflow {
        /// `--micro-batch-size`.
        micro_batch_size: u64,
        /// Number of data-parallel replicas.
        data_parallel_size: u64,
    },
    /// The batch does not split evenly.
    #[error(
        "global batch size ({global_batch_size}) is not divisible by micro batch size ({micro_batch_size}) times data \
         parallel size ({data_parallel_size}); the nearest legal sizes are {}; with a \
         constant or ramped batch, --decrease-batch-size-if-needed rounds down",
        legal_neighbours(*global_batch_size, *micro_batch_size, *data_parallel_size)
    )]
    NotDivisible {
        /// Batch size at the current sample.
        global_batch_size: u64,
        /// `--micro-batch-size`.
        micro_batch_size: u64,
        /// Number of data-parallel replicas.
        data_parallel_size: u64,
    },
    /// Rounding down leaves nothing.
    #[error(
        "number of microbatches should be at least 1: global batch size {global_batch_size} is below micro batch size \
         {micro_batch_size} times data parallel size {data_parallel_size}"
    )]
    NoMicrobatch {
        /// Batch size at the current sample.
        global_batch_size: u64,
        /// `--micro-batch-size`.
        micro_batch_size: u64,
        /// Number of data-parallel replicas.
        data_parallel_size: u64,
    },
    /// The ramp does not reach the global batch size in whole increments, or has none.
    #[error(
        "--rampup-batch-size {start} {increment} {samples}: {why} (global batch size {global_batch_size}); START plus \
         a positive number of INCREMENTs must give the global batch size, and SAMPLES must be positive"
    )]
    Rampup {
        /// First batch size.
        start: u64,
        /// Growth at a time.
        increment: u64,
        /// Length of the ramp.
        samples: u64,
        /// Batch size after the ramp.
        global_batch_size: u64,
        /// The rule that is broken.
        why: &'static str,
    },
    /// The text of a step schedule cannot be used.
    #[error(
        "--step-batch-size-schedule, entry {entry:?}: {why}; expected THRESHOLD:BATCH entries such as \"0:16 1K:32\", \
         the first threshold 0, strictly increasing"
    )]
    StepSchedule {
        /// The entry as typed.
        entry: String,
        /// The rule that is broken.
        why: String,
    },
    /// Two flags that exclude each other.
    #[error("--step-batch-size-schedule cannot be combined with --decrease-batch-size-if-needed; drop one of them")]
    StepWithDecrease,
}

/// Largest multiple of `unit` (positive) that is not above `size`.
const fn below(size: u64, unit: u64) -> u64 {
    size - size % unit
}

fn legal_neighbours(size: u64, micro_batch_size: u64, data_parallel_size: u64) -> String {
    let unit = micro_batch_size.saturating_mul(data_parallel_size).max(1);
    let lower = below(size, unit);
    let upper = lower.saturating_add(unit);
    if lower == 0 { format!("{upper}") } else { format!("{lower} and {upper}") }
}

/// A growth in equal increments, checked by [`BatchSchedule::rampup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rampup {
    start: u64,
    increment: u64,
    samples: u64,
    global_batch_size: u64,
}

/// Global batch size over the samples seen so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchSchedule {
    /// One size.
    Constant {
        /// `--global-batch-size`.
        global_batch_size: u64,
    },
    /// Growth in equal increments; see [`BatchSchedule::rampup`].
    Rampup(Rampup),
    /// (first sample, size) in increasing order, the first at 0. Build it with [`BatchSchedule::parse_steps`].
    Steps(Vec<(u64, u64)>),
}

impl BatchSchedule {
    /// `--rampup-batch-size`. Errors when the ramp has no increments, uneven ones, or no samples.
    pub fn rampup(
        start: u64,
        increment: u64,
        samples: u64,
        global_batch_size: u64,
    ) -> Result<BatchSchedule, BatchSizeError> {
        let broken = if start == 0 {
            Some("the start batch size is 0")
        } else if increment == 0 {
            Some("the increment is 0")
        } else if samples == 0 {
            Some("the ramp has 0 samples")
        } else if start > global_batch_size {
            Some("the start is above the global batch size")
        } else if start == global_batch_size {
            Some("the start already is the global batch size, so there are 0 increments")
        } else if !(global_batch_size - start).is_multiple_of(increment) {
            Some("the distance to the global batch size is not a multiple of the increment")
        } else {
            None
        };
        match broken {
            Some(why) => Err(BatchSizeError::Rampup { start, increment, samples, global_batch_size, why }),
            None => Ok(BatchSchedule::Rampup(Rampup { start, increment, samples, global_batch_size })),
        }
    }

    /// `--step-batch-size-schedule`: entries `THRESHOLD:BATCH` separated by spaces or commas, numbers with an optional
    /// decimal suffix K, M, B or T. Thresholds are tokens when `seq_length` is given (divided by it, rounded down),
    /// else samples.
    pub fn parse_steps(text: &str, seq_length: Option<u64>) -> Result<BatchSchedule, BatchSizeError> {
        let fail = |entry: &str, why: String| Err(BatchSizeError::StepSchedule { entry: entry.to_string(), why });
        let mut steps = Vec::new();
        for entry in text.split([',', ' ', '\t', '\n']).filter(|part| !part.is_empty()) {
            let Some((threshold, batch)) = entry.split_once(':') else {
                return fail(entry, "there is no colon".to_string());
            };
            let (Some(threshold), Some(batch)) = (parse_count(threshold), parse_count(batch)) else {
                return fail(entry, "a number is missing, negative or too large".to_string());
            };
            if batch == 0 {
                return fail(entry, "the batch size is 0".to_string());
            }
            let first_sample = match seq_length {
                Some(0) => return fail(entry, "the sequence length is 0".to_string()),
                Some(length) => threshold / length,
                None => threshold,
            };
            steps.push((first_sample, batch));
        }
        steps.sort_by_key(|&(first_sample, _)| first_sample);
        match steps.first() {
            None => return fail(text, "there are no entries".to_string()),
            Some(&(first, _)) if first > 0 => return fail(text, format!("the first threshold is {first} samples")),
            Some(_) => {}
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return fail(text, format!("two entries begin at sample {}", pair[0].0));
        }
        Ok(BatchSchedule::Steps(steps))
    }

    /// Global batch size once `consumed` samples have been seen, before any rounding to whole micro-batches.
    pub fn global_batch_size_at(&self, consumed: u64) -> u64 {
        match self {
            BatchSchedule::Constant { global_batch_size } => *global_batch_size,
            BatchSchedule::Rampup(Rampup { start, increment, samples, global_batch_size }) => {
                let increments = (global_batch_size - start) / increment;
                if consumed > *samples {
                    return *global_batch_size;
                }
                // Megatron divides floats here and truncates; integers would differ at some boundaries.
                let samples_per_increment = *samples as f64 / increments as f64;
                let reached = (consumed as f64 / samples_per_increment) as u64;
                start + reached.min(increments) * increment
            }
            BatchSchedule::Steps(steps) => {
                let reached = steps.partition_point(|&(first_sample, _)| first_sample <= consumed);
                steps.get(reached.saturating_sub(1)).map_or(0, |&(_, batch)| batch)
            }
        }
    }

    /// The size at the end of the schedule: what `--global-batch-size` stands for elsewhere.
    pub fn final_global_batch_size(&self) -> u64 {
        self.global_batch_size_at(u64::MAX)
    }
}

/// A number with an optional suffix K, M, B or T (powers of 1000), truncated to an integer.
fn parse_count(text: &str) -> Option<u64> {
    /// Integers above 2^53 are not exact as f64, and no run is that long.
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    let text = text.trim().to_ascii_uppercase();
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        b'B' => (&text[..text.len() - 1], 1e9),
        b'T' => (&text[..text.len() - 1], 1e12),
        _ => (text.as_str(), 1.0),
    };
    let value = digits.parse::<f64>().ok()? * unit;
    (0.0..LIMIT).contains(&value).then_some(value as u64)
}

/// Batch of one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Size that the schedule asks for.
    pub global_batch_size: u64,
    /// Size that runs: the same, or rounded down by `--decrease-batch-size-if-needed`. Consumed samples grow by it.
    pub running_global_batch_size: u64,
    /// Micro-batches per data-parallel replica.
    pub num_microbatches: u64,
}

/// Splits the scheduled batch into micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicrobatchCalculator {
    schedule: BatchSchedule,
    micro_batch_size: u64,
    data_parallel_size: u64,
    decrease_if_needed: bool,
    current: Batch,
}

impl MicrobatchCalculator {
    /// A calculator that stands at `consumed` samples.
    ///
    /// Sizes of the schedule before that sample are not checked: a resumed run on more devices may have outgrown them.
    pub fn new(
        schedule: BatchSchedule,
        micro_batch_size: u64,
        data_parallel_size: u64,
        decrease_if_needed: bool,
        consumed: u64,
    ) -> Result<MicrobatchCalculator, BatchSizeError> {
        for (flag, size) in [("--micro-batch-size", micro_batch_size), ("data-parallel size", data_parallel_size)] {
            if size == 0 {
                return Err(BatchSizeError::Zero { flag });
            }
        }
        if micro_batch_size.checked_mul(data_parallel_size).is_none() {
            return Err(BatchSizeError::Overflow { micro_batch_size, data_parallel_size });
        }
        if decrease_if_needed && matches!(schedule, BatchSchedule::Steps(_)) {
            return Err(BatchSizeError::StepWithDecrease);
        }
        let current = Batch { global_batch_size: 0, running_global_batch_size: 0, num_microbatches: 0 };
        let mut calculator =
            MicrobatchCalculator { schedule, micro_batch_size, data_parallel_size, decrease_if_needed, current };
        calculator.update(consumed)?;
        Ok(calculator)
    }

    /// Moves to `consumed` samples; true when the global batch size changed.
    pub fn update(&mut self, consumed: u64) -> Result<bool, BatchSizeError> {
        let next = self.at(consumed)?;
        let changed = next.global_batch_size != self.current.global_batch_size;
        self.current = next;
        Ok(changed)
    }

    /// The batch once `consumed` samples have been seen.
    pub fn at(&self, consumed: u64) -> Result<Batch, BatchSizeError> {
        let global_batch_size = self.schedule.global_batch_size_at(consumed);
        let (micro_batch_size, data_parallel_size) = (self.micro_batch_size, self.data_parallel_size);
        let unit = micro_batch_size * data_parallel_size;
        let running_global_batch_size = below(global_batch_size, unit);
        if running_global_batch_size != global_batch_size && !self.decrease_if_needed {
            return Err(BatchSizeError::NotDivisible { global_batch_size, micro_batch_size, data_parallel_size });
        }
        if running_global_batch_size == 0 {
            return Err(BatchSizeError::NoMicrobatch { global_batch_size, micro_batch_size, data_parallel_size });
        }
        let num_microbatches = running_global_batch_size / unit;
        Ok(Batch { global_batch_size, running_global_batch_size, num_microbatches })
    }

    /// Follows the run from `consumed` to the final batch size, so that a size that does not fit is found before the
    /// first iteration and not weeks into the ramp. The error is the first one that the run would meet.
    pub fn check_from(&self, mut consumed: u64) -> Result<(), BatchSizeError> {
        let last = self.schedule.final_global_batch_size();
        loop {
            let batch = self.at(consumed)?;
            if batch.global_batch_size == last {
                return Ok(());
            }
            // Jump over iterations of the same size: doubling strides while the size stays, single steps at the end.
            let mut iterations = 1_u64;
            let lands = |n: u64| consumed.saturating_add(batch.running_global_batch_size.saturating_mul(n));
            let stays = |n: u64| self.schedule.global_batch_size_at(lands(n)) == batch.global_batch_size;
            while stays(iterations.saturating_mul(2)) {
                iterations = iterations.saturating_mul(2);
            }
            consumed = lands(iterations);
        }
    }

    /// The batch of the current iteration.
    pub fn current(&self) -> Batch {
        self.current
    }

    /// Micro-batches per data-parallel replica in the current iteration.
    pub fn num_microbatches(&self) -> u64 {
        self.current.num_microbatches
    }

    /// The schedule behind it.
    pub fn schedule(&self) -> &BatchSchedule {
        &self.schedule
    }

    /// Samples of one micro-batch on one replica.
    pub fn micro_batch_size(&self) -> u64 {
        self.micro_batch_size
    }
}
