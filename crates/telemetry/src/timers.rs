//! Named wall-clock timers of one rank, and their report over all ranks. (Megatron: `timers.py`.)

use std::time::{Duration, Instant};

use crate::MetricsFileError;
use crate::pyfmt::fixed;
use crate::scopes::{ScopeSink, Scopes, SinkId};
use crate::tensorboard::Scalar;

/// Names printed from `--timing-log-level 1` on, in Megatron's order.
const LEVEL_1: [&str; 12] = [
    "forward-backward",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "all-grads-sync",
    "params-all-gather",
    "optimizer-copy-to-main-grad",
    "optimizer-unscale-and-check-inf",
    "optimizer-clip-main-grad",
    "optimizer-count-zeros",
    "optimizer-inner-step",
    "optimizer-copy-main-to-model-params",
    "optimizer",
];

/// Names printed from `--timing-log-level 2` on, behind those of level 1.
const LEVEL_2: [&str; 12] = [
    "batch-generator",
    "forward-compute",
    "backward-compute",
    "forward-recv",
    "forward-send",
    "backward-recv",
    "backward-send",
    "forward-send-forward-recv",
    "forward-send-backward-recv",
    "backward-send-forward-recv",
    "backward-send-backward-recv",
    "forward-backward-send-forward-backward-recv",
];

/// Names of the timers behind a training log line at a `--timing-log-level` (0 to 2).
pub fn names_to_log(log_level: u8) -> Vec<&'static str> {
    let mut names = Vec::new();
    if log_level >= 1 {
        names.extend(LEVEL_1);
    }
    if log_level >= 2 {
        names.extend(LEVEL_2);
    }
    names
}

#[derive(Debug)]
struct Timer {
    name: &'static str,
    elapsed: Duration,
    started: Option<Instant>,
}

/// Waits until the device has done what it was told.
struct Wait(Box<dyn Fn() + Send>);

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wait")
    }
}

/// The timers of one rank. Timers above the log level cost nothing and never appear. Every timer is a scope too, those above
/// the log level included, while somebody records scopes.
#[derive(Debug)]
pub struct Timers {
    log_level: u8,
    timers: Vec<Timer>,
    scopes: Scopes,
    wait: Option<Wait>,
}

impl Timers {
    /// No timers yet; those of a level above `log_level` (`--timing-log-level`) will be ignored.
    pub fn new(log_level: u8) -> Timers {
        Timers { log_level, timers: Vec::new(), scopes: Scopes::default(), wait: None }
    }

    /// Timers that are logged call this before they look at the clock, as Megatron's wait for the device: else they would tell
    /// how long the host takes to queue the work.
    pub fn wait_with(&mut self, wait: impl Fn() + Send + 'static) {
        self.wait = Some(Wait(Box::new(wait)));
    }

    fn waited(&self) {
        if let Some(Wait(wait)) = &self.wait {
            wait();
        }
    }

    fn find(&mut self, name: &str) -> Option<&mut Timer> {
        self.timers.iter_mut().find(|timer| timer.name == name)
    }

    fn find_or_insert(&mut self, name: &'static str) -> &mut Timer {
        let index = self.timers.iter().position(|timer| timer.name == name).unwrap_or_else(|| {
            self.timers.push(Timer { name, elapsed: Duration::ZERO, started: None });
            self.timers.len() - 1
        });
        &mut self.timers[index]
    }

    /// Starts a timer of the given level (0 always runs). Panics when it already runs: the caller's brackets are wrong.
    pub fn start(&mut self, name: &'static str, level: u8) {
        self.scopes.begin(name);
        if level > self.log_level {
            return;
        }
        self.waited();
        let timer = self.find_or_insert(name);
        assert!(timer.started.is_none(), "timer {name} has already been started");
        timer.started = Some(Instant::now());
    }

    /// Stops a timer and adds to its sum; nothing happens when it does not run.
    pub fn stop(&mut self, name: &str) {
        self.scopes.end(name);
        if self.find(name).is_some_and(|timer| timer.started.is_some()) {
            self.waited();
        }
        if let Some(timer) = self.find(name)
            && let Some(started) = timer.started.take()
        {
            timer.elapsed += started.elapsed();
        }
    }

    /// Runs `work` under a timer.
    pub fn time<T>(&mut self, name: &'static str, level: u8, work: impl FnOnce() -> T) -> T {
        self.start(name, level);
        let out = work();
        self.stop(name);
        out
    }

    /// From now on every timer is a scope that `sink` records.
    pub fn attach(&mut self, sink: Box<dyn ScopeSink>) -> SinkId {
        self.scopes.attach(sink)
    }

    /// Ends a sink and what it still holds open; nothing happens when it has ended.
    ///
    /// # Errors
    /// A scope, or the end, could not be recorded.
    pub fn detach(&mut self, sink: SinkId) -> Result<(), MetricsFileError> {
        self.scopes.detach(sink)
    }

    /// Ends every sink.
    ///
    /// # Errors
    /// As [`Timers::detach`]; the first of them.
    pub fn detach_all(&mut self) -> Result<(), MetricsFileError> {
        self.scopes.detach_all()
    }

    /// TensorBoard's `<timer>-time` points of the timers that ran, in seconds an iteration, as Megatron writes them with
    /// `--log-timers-to-tensorboard` on log intervals. Call it before [`Timers::row`] resets the sums.
    pub fn scalars(&mut self, names: &[&str], iteration: u64, iterations: u64) -> Vec<Scalar> {
        let per_iteration = |seconds: f64| (seconds / iterations.max(1) as f64) as f32;
        let point =
            |(name, seconds)| Scalar { tag: format!("{name}-time"), step: iteration, value: per_iteration(seconds) };
        names
            .iter()
            .filter_map(|name| Some((*name, self.elapsed(name, false).filter(|s| *s > 0.0)?)))
            .map(point)
            .collect()
    }

    /// Adds a duration that was measured elsewhere, for instance on a stream.
    pub fn add(&mut self, name: &'static str, level: u8, duration: Duration) {
        if level <= self.log_level {
            self.find_or_insert(name).elapsed += duration;
        }
    }

    /// Seconds so far, of a running timer too (it goes on running); `None` for a timer that never ran.
    pub fn elapsed(&mut self, name: &str, reset: bool) -> Option<f64> {
        let timer = self.find(name)?;
        if let Some(started) = timer.started {
            let now = Instant::now();
            timer.elapsed += now - started;
            timer.started = Some(now);
        }
        let seconds = timer.elapsed.as_secs_f64();
        if reset {
            timer.elapsed = Duration::ZERO;
        }
        Some(seconds)
    }

    /// This rank's row of the table that [`TimerReport::format`] prints: seconds per name, 0 for timers that never ran.
    pub fn row(&mut self, names: &[&str], reset: bool) -> Vec<f32> {
        names.iter().map(|name| self.elapsed(name, reset).unwrap_or(0.0) as f32).collect()
    }
}

/// How times of all ranks are summed up (`--timing-log-option`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerReport {
    /// The slowest rank.
    Max,
    /// The fastest and the slowest rank.
    MinMax,
    /// Every rank.
    All,
}

impl TimerReport {
    /// Megatron's spelling: `max`, `minmax`, `all`.
    pub fn parse(name: &str) -> Option<TimerReport> {
        match name {
            "max" => Some(TimerReport::Max),
            "minmax" => Some(TimerReport::MinMax),
            "all" => Some(TimerReport::All),
            _ => None,
        }
    }

    /// The report in milliseconds, or `None` when no timer ran.
    ///
    /// `seconds` has one row per rank with one column per name; a missing or zero entry means the timer did not run
    /// there. Times are divided by `iterations` (the log interval).
    pub fn format(self, names: &[&str], seconds: &[Vec<f32>], iterations: u64) -> Option<String> {
        let normalizer = iterations.max(1) as f64 / 1000.0;
        let mut text = match self {
            TimerReport::Max => "max time across ranks (ms):".to_string(),
            TimerReport::MinMax => "(min, max) time across ranks (ms):".to_string(),
            TimerReport::All => "times across ranks (ms):".to_string(),
        };
        let mut found = false;
        for (column, name) in names.iter().enumerate() {
            let ranks: Vec<(usize, f32)> = seconds
                .iter()
                .enumerate()
                .filter_map(|(rank, row)| row.get(column).map(|&time| (rank, time)))
                .filter(|&(_, time)| time > 0.0)
                .collect();
            if ranks.is_empty() {
                continue;
            }
            found = true;
            let times = || ranks.iter().map(|&(_, time)| time);
            let min = f64::from(times().fold(f32::INFINITY, f32::min)) / normalizer;
            let max = f64::from(times().fold(0.0, f32::max)) / normalizer;
            let padded = format!("{name} ");
            match self {
                TimerReport::Max => text += &format!("\n    {padded:.<48}: {}", fixed(max, 2)),
                TimerReport::MinMax => {
                    text += &format!("\n    {padded:.<48}: ({}, {})", fixed(min, 2), fixed(max, 2));
                }
                TimerReport::All => {
                    text += &format!("\n  {name}:");
                    for &(rank, time) in &ranks {
                        // Megatron divides the f32 tensor here, not Python floats.
                        let milliseconds = time / normalizer as f32;
                        text += &format!("\n     rank {rank:2}: {}", fixed(f64::from(milliseconds), 2));
                    }
                }
            }
        }
        found.then_some(text)
    }
}
