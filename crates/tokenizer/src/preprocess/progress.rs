//! How far a run is: Megatron's lines, or a bar on a terminal.

use super::Summary;
use crate::Error;
use std::io::Write;
use std::time::{Duration, Instant};

/// How often the bar is drawn.
const REDRAW: Duration = Duration::from_millis(200);
const BAR_WIDTH: usize = 24;

/// What has been done when, and what is left.
pub(super) struct Progress {
    started: Instant,
    drawn: Option<Instant>,
    /// Documents between lines, and the number at which the next is due.
    interval: u64,
    next: u64,
    terminal: bool,
    /// Bytes of input on disk.
    total: u64,
    /// What an earlier, interrupted run did: its time is not known, so it does not count in rates.
    before: Done,
}

/// Counters at one moment.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    pub documents: u64,
    /// Input, unpacked.
    pub bytes: u64,
    /// Input, as it lies on disk.
    pub disk: u64,
    pub tokens: u64,
}

impl Done {
    pub fn new(summary: &Summary, disk: u64, tokens: u64) -> Done {
        Done { documents: summary.documents, bytes: summary.bytes, disk, tokens }
    }
}

impl Progress {
    pub fn new(interval: u64, terminal: bool, total: u64, before: Done) -> Progress {
        let next = (before.documents / interval + 1) * interval;
        Progress { started: Instant::now(), drawn: None, interval, next, terminal, total, before }
    }

    pub fn report(&mut self, done: Done, out: &mut dyn Write) -> Result<(), Error> {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let rates = Rates {
            megabytes: (done.bytes - self.before.bytes) as f64 / seconds / 1024.0 / 1024.0,
            tokens: (done.tokens - self.before.tokens) as f64 / seconds / 1e6,
            left: self.seconds_left(done, seconds),
        };
        let printed = if self.terminal {
            if self.drawn.is_some_and(|at| at.elapsed() < REDRAW) {
                return Ok(());
            }
            self.drawn = Some(Instant::now());
            write!(out, "\r{}\x1b[K", self.bar(done, &rates)).and_then(|()| out.flush())
        } else {
            self.lines(done, &rates, seconds, out)
        };
        printed.map_err(Error::io("print to", "standard output"))
    }

    /// Takes the bar away, so that lines can follow.
    pub fn clear(&mut self, out: &mut dyn Write) -> Result<(), Error> {
        match self.drawn.take() {
            Some(_) => write!(out, "\r\x1b[K").map_err(Error::io("print to", "standard output")),
            None => Ok(()),
        }
    }

    fn seconds_left(&self, done: Done, seconds: f64) -> Option<u64> {
        let read = done.disk.checked_sub(self.before.disk).filter(|&n| n > 0)?;
        let left = self.total.saturating_sub(done.disk);
        Some((seconds * left as f64 / read as f64).min(1e9) as u64)
    }

    fn bar(&self, done: Done, rates: &Rates) -> String {
        let share = (done.disk as f64 / self.total.max(1) as f64).min(1.0);
        let full = (share * BAR_WIDTH as f64) as usize;
        format!(
            "[{}{}] {:5.1}%  {} documents  {rates}",
            "#".repeat(full),
            "-".repeat(BAR_WIDTH - full),
            100.0 * share,
            done.documents
        )
    }

    fn lines(&mut self, done: Done, rates: &Rates, seconds: f64, out: &mut dyn Write) -> std::io::Result<()> {
        while done.documents >= self.next {
            let speed = (self.next - self.before.documents) as f64 / seconds;
            writeln!(out, "Processed {} documents ({speed:.1} docs/s, {rates}).", self.next)?;
            self.next = self.next.saturating_add(self.interval);
        }
        Ok(())
    }
}

struct Rates {
    megabytes: f64,
    tokens: f64,
    left: Option<u64>,
}

impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} MB/s, {:.3} M tokens/s", self.megabytes, self.tokens)?;
        match self.left {
            Some(s) => write!(f, ", ETA {}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(p: &mut Progress, done: Done) -> String {
        let mut out = Vec::new();
        p.report(done, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_come_at_the_interval_and_the_bar_on_a_terminal() {
        let done = Done { documents: 25, bytes: 4 << 20, disk: 1 << 20, tokens: 1000 };
        let mut lines = Progress::new(10, false, 2 << 20, Done::default());
        assert_eq!(text(&mut lines, Done { documents: 9, ..done }), "");
        let printed = text(&mut lines, done);
        assert_eq!(printed.lines().count(), 2, "{printed}");
        assert!(printed.starts_with("Processed 10 documents (") && printed.contains(", ETA 0:00:0"), "{printed}");
        assert!(text(&mut lines, done).is_empty());

        let mut bar = Progress::new(10, true, 2 << 20, Done::default());
        let drawn = text(&mut bar, done);
        assert!(drawn.starts_with("\r[############------------]  50.0%  25 documents  "), "{drawn:?}");
        assert!(drawn.contains("M tokens/s") && drawn.contains("ETA") && !drawn.contains('\n'), "{drawn:?}");
        assert_eq!(text(&mut bar, done), "", "not drawn again at once");
        let mut out = Vec::new();
        bar.clear(&mut out).unwrap();
        assert_eq!(out, b"\r\x1b[K");
    }

    #[test]
    fn an_earlier_run_does_not_count_in_rates() {
        let before = Done { documents: 30, bytes: 300 << 20, disk: 300 << 20, tokens: 1000 };
        let mut p = Progress::new(10, false, 600 << 20, before);
        let printed = text(&mut p, Done { documents: 40, ..before });
        assert!(
            printed.starts_with("Processed 40 documents (") && printed.contains(" 0.00 MB/s, 0.000 M tokens/s"),
            "{printed}"
        );
    }
}
