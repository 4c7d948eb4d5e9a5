//! One line for people at a terminal: progress, loss, speed, use of the device, memory, time left. Written over itself by a
//! carriage return, on standard error, so that Megatron's lines on standard output stay as they are.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use crate::step::StepMetrics;

/// Iterations over which speed and time left are averaged.
const WINDOW: usize = 20;

/// Text of the line, without carriage return.
#[derive(Debug, Default)]
pub struct ConsoleLine {
    /// (seconds, tokens) of the latest iterations.
    recent: VecDeque<(f64, u64)>,
}

impl ConsoleLine {
    /// Nothing seen yet.
    pub fn new() -> ConsoleLine {
        ConsoleLine::default()
    }

    /// The line after this iteration, at most `width` columns wide.
    pub fn line(&mut self, s: &StepMetrics, width: usize) -> String {
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back((s.seconds, s.tokens));
        let seconds: f64 = self.recent.iter().map(|(seconds, _)| seconds).sum();
        let tokens: u64 = self.recent.iter().map(|(_, tokens)| tokens).sum();
        let rate = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        let percent = 100.0 * s.iteration as f64 / s.train_iters.max(1) as f64;
        let mut text = format!("{}/{} {percent:.0}%", s.iteration, s.train_iters);
        for (name, loss) in &s.losses {
            let _ = write!(text, " | {} {loss:.4}", name.strip_prefix("lm ").unwrap_or(name));
        }
        let _ = write!(text, " | lr {:.2e} | {} tok/s", s.learning_rate, si(rate));
        match (s.mfu, s.tflops_per_device) {
            (Some(mfu), _) => {
                let _ = write!(text, " | MFU {:.1}%", mfu * 100.0);
            }
            (None, Some(tflops)) => {
                let _ = write!(text, " | {tflops:.1} TFLOP/s");
            }
            (None, None) => {}
        }
        if let Some(peak) = s.memory_peak.or(s.memory_allocated) {
            let _ = write!(text, " | {:.1} GiB", peak as f64 / (1u64 << 30) as f64);
        }
        let left = s.train_iters.saturating_sub(s.iteration) as f64 * seconds / self.recent.len() as f64;
        let _ = write!(text, " | ETA {}", duration(left));
        text.chars().take(width).collect()
    }
}

/// Writes the line where it helps: if standard error is a terminal and standard output is not the same screen's log, or if
/// asked for.
pub struct Console {
    line: ConsoleLine,
    width: usize,
    shown: usize,
}

impl Console {
    /// A console if standard error is a terminal and standard output is none: else the line would run into the log.
    pub fn detect() -> Option<Console> {
        let width = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).unwrap_or(120);
        let wanted = io::stderr().is_terminal() && !io::stdout().is_terminal();
        wanted.then(|| Console { line: ConsoleLine::new(), width, shown: 0 })
    }

    /// Shows the iteration. What cannot be written is dropped: a vanished terminal must not end a run.
    pub fn step(&mut self, s: &StepMetrics) {
        let text = self.line.line(s, self.width);
        let blanks = " ".repeat(self.shown.saturating_sub(text.chars().count()));
        self.shown = text.chars().count();
        let mut err = io::stderr().lock();
        let _ = write!(err, "\r{text}{blanks}").and_then(|()| err.flush());
    }

    /// Ends the line.
    pub fn finish(&mut self) {
        if self.shown > 0 {
            let _ = writeln!(io::stderr().lock());
        }
    }
}

/// `950`, `12.3k`, `4.56M`.
fn si(x: f64) -> String {
    match x {
        x if x >= 1e9 => format!("{:.2}G", x / 1e9),
        x if x >= 1e6 => format!("{:.2}M", x / 1e6),
        x if x >= 1e3 => format!("{:.1}k", x / 1e3),
        x => format!("{x:.0}"),
    }
}

/// `42s`, `3m12s`, `5h07m`, `12d03h`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "?".to_string();
    }
    let s = seconds.max(0.0).round() as u64;
    let (minutes, hours, days) = (s / 60, s / 3600, s / 86_400);
    match () {
        () if days > 0 => format!("{days}d{:02}h", hours % 24),
        () if hours > 0 => format!("{hours}h{:02}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{:02}s", s % 60),
        () => format!("{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_matters() {
        let mut console = ConsoleLine::new();
        let mut s = StepMetrics {
            iteration: 10,
            train_iters: 110,
            tokens: 4096,
            losses: vec![("lm loss".into(), 3.21987)],
            learning_rate: 1.5e-4,
            seconds: 0.5,
            mfu: Some(0.4567),
            memory_peak: Some(3 << 29),
            ..StepMetrics::default()
        };
        let line = "10/110 9% | loss 3.2199 | lr 1.50e-4 | 8.2k tok/s | MFU 45.7% | 1.5 GiB | ETA 50s";
        assert_eq!(console.line(&s, 200), line);
        assert_eq!(console.line(&s, 6), "10/110");
        (s.mfu, s.tflops_per_device) = (None, Some(12.34));
        assert!(console.line(&s, 200).contains("| 12.3 TFLOP/s |"));
    }

    #[test]
    fn the_speed_is_that_of_the_latest_iterations() {
        let mut console = ConsoleLine::new();
        let step = |seconds| StepMetrics { train_iters: 9, tokens: 100, seconds, ..StepMetrics::default() };
        console.line(&step(1000.0), 99); // the first iteration allocates and compiles
        for _ in 0..WINDOW {
            console.line(&step(1.0), 99);
        }
        assert!(console.line(&step(1.0), 99).contains("| 100 tok/s"));
    }

    #[test]
    fn durations() {
        for (seconds, text) in [
            (0.4, "0s"),
            (59.6, "1m00s"),
            (192.0, "3m12s"),
            (18_420.0, "5h07m"),
            (1e6, "11d13h"),
            (f64::NAN, "?"),
            (-3.0, "0s"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!(
            (si(999.0), si(12_345.0), si(4.56e6), si(2e9)),
            ("999".into(), "12.3k".into(), "4.56M".into(), "2.00G".into())
        );
    }
}
