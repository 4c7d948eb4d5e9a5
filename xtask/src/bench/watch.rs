//! Runs a program and watches it from outside: its output, its peak memory, and what else kept the processors busy.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Linux counts processor time in `/proc` in hundredths of a second, on every architecture (USER_HZ).
const TICK_MS: f64 = 10.0;
/// How often `/proc` is read.
const PERIOD: Duration = Duration::from_millis(50);

/// What a finished run was like.
pub struct Run {
    /// Lines of standard output, each with the processor time in ms that the program had used when it came.
    pub lines: Vec<(String, f64)>,
    /// Largest resident memory in bytes (VmHWM).
    pub peak: u64,
    /// Share of all processors' time that other processes took meanwhile, 0 to 1.
    pub others: f64,
}

/// Runs `command` to its end.
///
/// # Errors
/// When it cannot be started or fails; its own messages go to standard error.
pub fn watch(command: &mut Command) -> Result<Run, String> {
    let name = format!("{:?}", command.get_program());
    let before = busy()?;
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
    let pid = child.id();
    let stdout = child.stdout.take().ok_or_else(|| format!("{name} has no output"))?;
    let (done, peak, own) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (lines, after) = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Both figures only grow, so the last reading before the end is the total.
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(peak_memory(pid), Ordering::Relaxed);
                own.fetch_max(cpu_ticks(pid), Ordering::Relaxed);
                std::thread::sleep(PERIOD);
            }
        });
        let output = BufReader::new(stdout).lines().map_while(Result::ok);
        let lines: Vec<(String, f64)> = output.map(|l| (l, TICK_MS * cpu_ticks(pid) as f64)).collect();
        let after = busy();
        done.store(true, Ordering::Relaxed);
        (lines, after)
    });
    let status = child.wait().map_err(|e| format!("{name}: {e}"))?;
    if !status.success() {
        let last: Vec<&str> = lines.iter().rev().take(5).rev().map(|(l, _)| l.as_str()).collect();
        return Err(format!("{name} failed with {status}; its last lines:\n{}", last.join("\n")));
    }
    let after = after?;
    let (busy, all) = ((after.0 - before.0) as f64, (after.1 - before.1).max(1) as f64);
    let others = ((busy - own.into_inner() as f64) / all).max(0.0);
    Ok(Run { lines, peak: peak.into_inner(), others })
}

/// Ticks that all processors together were busy, and their ticks in all, since the start of the system.
fn busy() -> Result<(u64, u64), String> {
    let text = std::fs::read_to_string("/proc/stat").map_err(|e| format!("/proc/stat: {e}"))?;
    parse_busy(&text).ok_or_else(|| "/proc/stat has another form than expected".to_string())
}

/// `cpu user nice system idle iowait irq softirq steal ...`
fn parse_busy(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|t| t.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    Some((all - ticks.get(3)? - ticks.get(4)?, all))
}

/// VmHWM of a process in bytes; 0 once it has ended.
fn peak_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = text.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Ticks that a process has used, user and system; 0 once it has ended.
fn cpu_ticks(pid: u32) -> u64 {
    parse_ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()).unwrap_or(0)
}

/// `pid (name) state ...`: fields 14 and 15 of proc(5). The name may hold blanks and parentheses.
fn parse_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files() {
        let stat = "cpu  10 1 5 100 4 0 2 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_busy(stat), Some((21, 125)));
        let one = "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 70 30 0 0 20 0 3 0";
        assert_eq!(parse_ticks(one), Some(100));
        assert_eq!(parse_ticks(""), None);
        assert!(peak_memory(std::process::id()) > 100_000 && peak_memory(u32::MAX) == 0);
    }

    #[test]
    fn a_program_is_run_to_its_end() {
        let run = watch(Command::new("sh").args(["-c", "echo one; sleep 0.2; echo two"])).unwrap();
        assert_eq!(run.lines.iter().map(|(l, _)| l.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert!(run.peak > 0 && (0.0..=1.0).contains(&run.others));
        assert!(watch(Command::new("sh").args(["-c", "exit 3"])).is_err());
        assert!(watch(&mut Command::new("/nowhere/at-all")).is_err());
    }
}
