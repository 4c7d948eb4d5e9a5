//! Timers and the three report formats, with texts as Megatron's Python prints them.

use std::thread::sleep;
use std::time::Duration;

use ferrotron_telemetry::timers::names_to_log;
use ferrotron_telemetry::{TimerReport, Timers};

const NAMES: [&str; 3] = ["forward-backward", "params-all-gather", "optimizer"];

/// Three ranks, times of ten iterations; nobody gathers parameters, and rank 1 does not run the optimizer.
fn table() -> Vec<Vec<f32>> {
    vec![vec![0.25, 0.0, 0.03125], vec![0.0125, 0.0, 0.0], vec![0.125, 0.0, 0.0625]]
}

#[test]
fn min_and_max() {
    assert_eq!(
        TimerReport::MinMax.format(&NAMES, &table(), 10).unwrap(),
        "(min, max) time across ranks (ms):\n    \
         forward-backward ...............................: (1.25, 25.00)\n    \
         optimizer ......................................: (3.12, 6.25)"
    );
}

#[test]
fn max_only() {
    assert_eq!(
        TimerReport::Max.format(&NAMES, &table(), 10).unwrap(),
        "max time across ranks (ms):\n    \
         forward-backward ...............................: 25.00\n    \
         optimizer ......................................: 6.25"
    );
}

#[test]
fn all_ranks() {
    assert_eq!(
        TimerReport::All.format(&NAMES, &table(), 10).unwrap(),
        "times across ranks (ms):\n  \
         forward-backward:\n     rank  0: 25.00\n     rank  1: 1.25\n     rank  2: 12.50\n  \
         optimizer:\n     rank  0: 3.12\n     rank  2: 6.25"
    );
}

#[test]
fn nothing_ran() {
    for report in [TimerReport::Max, TimerReport::MinMax, TimerReport::All] {
        assert_eq!(report.format(&NAMES, &[vec![0.0; 3], vec![]], 10), None);
        assert_eq!(report.format(&[], &table(), 10), None);
    }
    assert_eq!(TimerReport::parse("minmax"), Some(TimerReport::MinMax));
    assert_eq!(TimerReport::parse("mean"), None);
}

#[test]
fn levels_decide_what_is_timed() {
    assert_eq!(names_to_log(0), Vec::<&str>::new());
    assert_eq!((names_to_log(1).len(), names_to_log(1)[11]), (12, "optimizer"));
    assert_eq!((names_to_log(2).len(), names_to_log(2)[12]), (24, "batch-generator"));

    let mut timers = Timers::new(1);
    timers.start("interval-time", 0);
    timers.start("forward-backward", 1);
    timers.start("forward-compute", 2);
    sleep(Duration::from_millis(2));
    timers.stop("forward-compute");
    timers.stop("forward-backward");
    timers.stop("forward-backward"); // a second stop changes nothing
    let row = timers.row(&["forward-backward", "forward-compute", "interval-time"], false);
    assert!(row[0] >= 0.002 && row[2] >= row[0], "{row:?}");
    assert_eq!(row[1], 0.0);
    assert_eq!(timers.elapsed("forward-compute", false), None);
}

#[test]
fn sums_reset_and_running_timers_go_on() {
    let mut timers = Timers::new(0);
    timers.add("optimizer", 0, Duration::from_millis(5));
    timers.add("optimizer", 0, Duration::from_millis(7));
    timers.add("batch-generator", 2, Duration::from_millis(7));
    assert_eq!(timers.elapsed("optimizer", true), Some(0.012));
    assert_eq!(timers.elapsed("optimizer", true), Some(0.0));
    assert_eq!(timers.elapsed("batch-generator", true), None);

    timers.start("interval-time", 0);
    sleep(Duration::from_millis(2));
    let first = timers.elapsed("interval-time", true).unwrap();
    sleep(Duration::from_millis(2));
    timers.stop("interval-time");
    let second = timers.elapsed("interval-time", true).unwrap();
    assert!(first >= 0.002 && second >= 0.002, "{first} {second}");
}

/// A timer that is logged waits for the device at both ends, as Megatron's does; one that is not, and a stop without a start,
/// do not.
#[test]
fn logged_timers_wait_for_the_device() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (waits, mut timers) = (Arc::new(AtomicUsize::new(0)), Timers::new(1));
    let counted = waits.clone();
    timers.wait_with(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let waited = || waits.load(Ordering::Relaxed);
    timers.time("batch-generator", 2, || ());
    timers.stop("optimizer");
    assert_eq!(waited(), 0);
    timers.start("optimizer", 1);
    assert_eq!(waited(), 1);
    timers.stop("optimizer");
    assert_eq!(waited(), 2);
    timers.stop("optimizer");
    assert_eq!(waited(), 2);
}
