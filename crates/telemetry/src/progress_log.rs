//! `progress.txt` in the save folder (`--log-progress`): one line an event, with the FLOPs of the whole training so far.
//! (Megatron: `append_to_progress_log`, `compute_throughputs_and_append_to_progress_log`.)

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::MetricsFileError;
use crate::pyfmt::fixed;
use crate::timestamp::Timestamp;

/// Longest file that is read back; a line has some 200 bytes, so this holds a quarter of a million saves.
const LIMIT: u64 = 64 << 20;

/// The appender of one job, on the one rank that logs.
#[derive(Debug)]
pub struct ProgressLog {
    path: PathBuf,
    job: String,
    world_size: u64,
    /// When this job began, and the operations of the training then.
    began: Instant,
    flops_at_start: f64,
    /// Begin of the first job on as many devices, and the operations then.
    first_job: Option<(i64, f64)>,
}

/// Where the training stands when a checkpoint is complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Iteration of the checkpoint.
    pub iteration: u64,
    /// Floating-point operations since the beginning of training, over all devices.
    pub flops: f64,
    /// Tokens consumed since the beginning of training.
    pub tokens: u64,
}

impl ProgressLog {
    /// Reads `folder/progress.txt`, creates both when missing, and appends `Starting job`. `job` is `SLURM_JOB_ID` or
    /// empty; `flops` are those of the checkpoint that is resumed from.
    ///
    /// # Errors
    /// The file cannot be read, is larger than 64 MiB, or cannot be written.
    pub fn start(folder: &Path, job: &str, world_size: u64, flops: f64) -> Result<ProgressLog, MetricsFileError> {
        let path = folder.join("progress.txt");
        let fail = |action, source| MetricsFileError { action, path: path.clone(), source };
        std::fs::create_dir_all(folder).map_err(|e| fail("create the folder of", e))?;
        let mut text = String::new();
        match File::open(&path) {
            Ok(file) => {
                let read = file.take(LIMIT + 1).read_to_string(&mut text).map_err(|e| fail("read", e))?;
                if read as u64 > LIMIT {
                    return Err(fail("read", std::io::Error::other(format!("it has more than {LIMIT} bytes"))));
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(fail("read", e)),
        }
        let log = ProgressLog {
            path,
            job: one_line(job),
            world_size,
            began: Instant::now(),
            flops_at_start: flops,
            first_job: first_job(&text, world_size),
        };
        log.append("Starting job")?;
        Ok(log)
    }

    /// The line of a checkpoint that has been written.
    pub fn saved(&self, standing: Standing) -> Result<(), MetricsFileError> {
        let now = Timestamp::now().seconds();
        let seconds = self.began.elapsed().as_secs_f64();
        self.append(&self.saved_message(standing, seconds, now))
    }

    fn saved_message(&self, s: Standing, seconds: f64, now: f64) -> String {
        let tflops = |flops: f64, seconds: f64| {
            if seconds > 0.0 { flops / (seconds * 1e12 * self.world_size as f64) } else { 0.0 }
        };
        let job = tflops(s.flops - self.flops_at_start, seconds);
        // Megatron counts from the first job on as many devices, its idle hours between jobs included.
        let cumulative = match self.first_job {
            Some((begin, flops)) => tflops(s.flops - flops, now - begin as f64),
            None => job,
        };
        format!(
            "Saved checkpoint\tIteration: {}\tJob throughput: {} TFLOP/s/GPU\tCumulative throughput: {} TFLOP/s/GPU\t\
             Floating-point operations: {}\tTokens (in billions): {}",
            s.iteration,
            fixed(job, 1),
            fixed(cumulative, 1),
            exponent(s.flops),
            fixed(s.tokens as f64 / 1e9, 2)
        )
    }

    fn append(&self, message: &str) -> Result<(), MetricsFileError> {
        let time = Timestamp::now().to_string();
        // Seconds suffice: the first 19 characters.
        let line = format!("{}\tJob ID: {}\t# GPUs: {}\t{message}\n", &time[..19], self.job, self.world_size);
        let fail = |source| MetricsFileError { action: "write", path: self.path.clone(), source };
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path).map_err(fail)?;
        file.write_all(line.as_bytes()).map_err(fail)
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Python's `{:.2e}`: at least two digits of exponent, signed.
fn exponent(x: f64) -> String {
    let text = format!("{x:.2e}");
    match text.split_once('e') {
        Some((digits, e)) => match e.strip_prefix('-') {
            Some(e) => format!("{digits}e-{e:0>2}"),
            None => format!("{digits}e+{e:0>2}"),
        },
        None => text,
    }
}

/// Begin of the latest series of jobs on `world_size` devices, and the operations that were done before it.
///
/// Lines that cannot be read are passed over: the file is for people, and people edit it.
fn first_job(text: &str, world_size: u64) -> Option<(i64, f64)> {
    let mut series: Option<(u64, i64, f64)> = None;
    let mut flops = 0.0;
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |i: usize, prefix: &str| fields.get(i)?.strip_prefix(prefix)?.trim().parse::<f64>().ok();
        let Some(devices) = number(2, "# GPUs: ").map(|n| n as u64) else { continue };
        match fields.get(3) {
            Some(&"Starting job") if series.is_none_or(|(n, ..)| n != devices) => {
                let Some(begin) = Timestamp::parse_seconds(fields[0]) else { continue };
                series = Some((devices, begin, flops));
            }
            Some(&"Saved checkpoint") => {
                if let Some(now) = number(7, "Floating-point operations: ") {
                    flops = now;
                }
            }
            _ => {}
        }
    }
    series.filter(|(n, ..)| *n == world_size).map(|(_, begin, flops)| (begin, flops))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(world_size: u64, first_job: Option<(i64, f64)>, flops_at_start: f64) -> ProgressLog {
        let (path, job, began) = (PathBuf::new(), String::new(), Instant::now());
        ProgressLog { path, job, world_size, began, flops_at_start, first_job }
    }

    #[test]
    fn throughputs_are_per_device() {
        let standing = Standing { iteration: 500, flops: 3e15, tokens: 1_234_567_890 };
        // This job: 2e15 operations in 100 s on 2 devices; all jobs: 3e15 in 1000 s.
        let message = log(2, Some((1000, 0.0)), 1e15).saved_message(standing, 100.0, 2000.0);
        assert_eq!(
            message,
            "Saved checkpoint\tIteration: 500\tJob throughput: 10.0 TFLOP/s/GPU\tCumulative throughput: 1.5 TFLOP/s/GPU\t\
             Floating-point operations: 3.00e+15\tTokens (in billions): 1.23"
        );
        assert_eq!(exponent(1.5e-7), "1.50e-07");
    }

    #[test]
    fn the_series_of_equal_size_is_found() {
        let line = |time: &str, gpus: u64, rest: &str| format!("{time}\tJob ID: 7\t# GPUs: {gpus}\t{rest}\n");
        let saved = |flops: &str| {
            format!(
                "Saved checkpoint\tIteration: 5\tJob throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: 1.0 TFLOP/s/GPU\t\
                     Floating-point operations: {flops}\tTokens (in billions): 0.10"
            )
        };
        let text = line("2026-01-01 00:00:00", 8, "Starting job")
            + &line("2026-01-01 01:00:00", 8, &saved("1.00e+18"))
            + &line("2026-01-02 00:00:00", 16, "Starting job")
            + &line("2026-01-02 01:00:00", 16, &saved("4.00e+18"))
            + "a line of prose\n"
            + &line("2026-01-03 00:00:00", 16, "Starting job");
        assert_eq!(first_job(&text, 16), Some((1_767_312_000, 1e18)));
        assert_eq!(first_job(&text, 8), None, "the series on 8 devices has ended");
        assert_eq!(first_job("", 1), None);
    }
}
