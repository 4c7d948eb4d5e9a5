//! Our lines read by regular expressions that a user of Megatron would write from the documented formats, not from our code.

use std::path::Path;

use ferrotron_telemetry::lines::{self, EvaluationPoint, Event, MemoryReport, ModelParallelRank};
use ferrotron_telemetry::{TimerReport, Timestamp, TrainingLine};
use regex::Regex;

fn now() -> Timestamp {
    Timestamp::from_micros(1_767_225_600_123_456)
}

fn line() -> TrainingLine {
    TrainingLine {
        time: now(),
        iteration: 10,
        train_iters: 100,
        consumed_samples: 160,
        skipped_samples: 0,
        elapsed_ms_per_iteration: 123.44,
        throughput: None,
        energy_and_power: None,
        learning_rate: Some(1.5e-5),
        global_batch_size: 16,
        losses: vec![("lm loss".into(), 10.8)],
        metrics: vec![],
        loss_scale: 1.0,
        grad_norm: Some(2.345),
        num_zeros: None,
        params_norm: None,
        skipped_iterations: 0,
        nan_iterations: 0,
    }
}

/// Field by field, in the order of the table: a tolerant reader's expression.
#[allow(clippy::unwrap_used, reason = "a constant expression")]
fn training() -> Regex {
    Regex::new(concat!(
        r"^ (?:\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{6})?)\] )?",
        r"iteration (?P<iteration>[ \d]{8})/(?P<of>[ \d]{8}) \|",
        r" consumed samples: (?P<consumed>[ \d]{12,}) \|",
        r"(?: skipped samples: (?P<skipped_samples>[ \d]{12,}) \|)?",
        r" elapsed time per iteration \(ms\): (?P<ms>\d+\.\d) \|",
        r"(?: throughput per GPU \(TFLOP/s/GPU\): (?P<tflops>\d+\.\d) \|)?",
        r"(?: energy per GPU \(J/iter/GPU\): \d+\.\d \| power per GPU \(W/GPU\): \d+\.\d \|)?",
        r"(?: learning rate: (?P<lr>\d\.\d{3,6}E[+-]\d\d) \|)?",
        r" global batch size: (?P<batch>[ \d]{5,}) \|",
        r"(?P<losses>(?: [a-z_0-9 ]+: \d\.\d{6}E[+-]\d\d \|)*)",
        r"(?P<metrics>(?: [a-z_0-9 ]+: \d+\.\d\d \|)*)",
        r"(?: loss scale: (?P<scale>\d+\.\d) \|)",
        r"(?: grad norm: (?P<grad>\d+\.\d{3}) \|)?",
        r"(?: num zeros: (?P<zeros>\d+(?:\.\d)?) \|)?",
        r"(?: params norm: (?P<params>\d+\.\d{3}) \|)?",
        r" number of skipped iterations: (?P<skipped>[ \d]{3,}) \|",
        r" number of nan iterations: (?P<nan>[ \d]{3,}) \|$",
    ))
    .unwrap()
}

#[test]
fn the_documented_example_is_our_line() {
    let mut line = line();
    (line.time, line.elapsed_ms_per_iteration) = (Timestamp::from_micros(1_767_225_600_000_000), 123.4);
    assert_eq!(
        line.to_string(),
        " [2026-01-01 00:00:00.000000] iteration       10/     100 | consumed samples:          160 | elapsed time per iteration (ms): \
         123.4 | learning rate: 1.500000E-05 | global batch size:    16 | lm loss: 1.080000E+01 | loss scale: 1.0 | grad norm: 2.345 | \
         number of skipped iterations:   0 | number of nan iterations:   0 |"
    );
}

#[test]
fn training_lines_in_all_their_forms() {
    let reader = training();
    let full = TrainingLine {
        skipped_samples: 5,
        throughput: Some(412.34),
        energy_and_power: Some((1200.5, 700.0)),
        losses: vec![("lm loss".into(), 2.5), ("mtp_1 loss".into(), 3.25), ("load_balancing_loss".into(), 0.0101)],
        metrics: vec![("expert load".into(), 1.25)],
        loss_scale: 65536.0,
        num_zeros: Some(12),
        params_norm: Some(1234.5678),
        skipped_iterations: 2,
        nan_iterations: 1,
        ..line()
    };
    let text = full.to_string();
    let found = reader.captures(&text).unwrap_or_else(|| panic!("not read: {text}"));
    for (name, want) in [
        ("time", "2026-01-01 00:00:00.123456"),
        ("tflops", "412.3"),
        ("lr", "1.500000E-05"),
        ("losses", " lm loss: 2.500000E+00 | mtp_1 loss: 3.250000E+00 | load_balancing_loss: 1.010000E-02 |"),
        ("metrics", " expert load: 1.25 |"),
        ("scale", "65536.0"),
        ("zeros", "12.0"),
        ("params", "1234.568"),
    ] {
        assert_eq!(&found[name], want, "{name} of {text}");
    }
    for (name, want) in [
        ("iteration", 10),
        ("of", 100),
        ("consumed", 160),
        ("skipped_samples", 5),
        ("batch", 16),
        ("skipped", 2),
        ("nan", 1),
    ] {
        assert_eq!(found[name].trim().parse::<u64>().unwrap(), want, "{name} of {text}");
    }
    // Every optional part may be absent, and numbers may outgrow their columns.
    let bare = TrainingLine { learning_rate: None, losses: vec![], grad_norm: None, ..line() };
    let large = TrainingLine {
        consumed_samples: 12_345_678_901_234,
        global_batch_size: 1_234_567,
        skipped_iterations: 12_345,
        ..line()
    };
    for line in [bare, large] {
        assert!(reader.is_match(&line.to_string()), "{line}");
    }
}

#[test]
fn evaluations_stand_between_rulers() {
    let row = Regex::new(concat!(
        r"^ validation(?:-(?P<set>\S+))? loss at (?P<at>iteration \d+(?: on (?:validation|test) set)?) \| ",
        r"(?:[a-z_0-9 ]+ value: \d\.\d{6}E[+-]\d\d \| [a-z_0-9 ]+ PPL: \d\.\d{6}E[+-]\d\d \| )+$"
    ))
    .unwrap();
    for (point, set, at) in [
        (EvaluationPoint::During(7), None, "iteration 7"),
        (EvaluationPoint::FinalValidation(7), Some("books"), "iteration 7 on validation set"),
        (EvaluationPoint::FinalTest(7), None, "iteration 7 on test set"),
    ] {
        let text = lines::evaluation(point, set, &[("lm loss".into(), 2.0), ("mtp_1 loss".into(), 30.0)]);
        let parts: Vec<&str> = text.lines().collect();
        let [above, middle, below] = parts[..] else { panic!("{text}") };
        assert!(above == below && above.chars().all(|c| c == '-') && above.len() == middle.len() + 1);
        let found = row.captures(middle).unwrap_or_else(|| panic!("not read: {middle}"));
        assert_eq!((&found["at"], found.name("set").map(|m| m.as_str())), (at, set));
    }
}

#[test]
fn the_other_lines() {
    let rank = ModelParallelRank { tensor_rank: 1, tensor_size: 2, pipeline_rank: 0, pipeline_size: 4 };
    let dir = Path::new("/ckpt/run");
    let memory = MemoryReport { allocated: 1 << 20, max_allocated: 3 << 20, reserved: 4 << 20, max_reserved: 5 << 20 };
    for (text, pattern) in [
        (
            lines::event(Event::TrainingStarts, now()),
            r"^\[before the start of training step\] datetime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6} $",
        ),
        (lines::event(Event::ExitOnSignal, now()), r"^\[exiting program after receiving SIGTERM\.\] datetime: .* $"),
        (lines::event(Event::ExitAtIteration(5), now()), r"^\[exiting program at iteration 5\] datetime: "),
        (
            lines::parameter_count(1, 3, 124_439_808),
            r"^ > number of parameters on \(tensor, gtp_weight_remat, pipeline\) model parallel rank \(1, 0, 3\): 124439808$",
        ),
        (
            lines::saving_checkpoint(now(), 500, dir, "torch_dist"),
            r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] saving checkpoint at iteration +(\d+) to (\S+) in (\w+) format$",
        ),
        (
            lines::saved_checkpoint(now(), 500, dir, rank),
            r"^  \[.{26}\] successfully saved checkpoint from iteration +500 to \S+ \[ t 2/2, gtp_remat 1/1, p 1/4 \]$",
        ),
        (
            lines::loaded_checkpoint(dir, rank, 500),
            r"^  successfully loaded checkpoint from \S+ \[ t (\d+)/(\d+), gtp_remat (\d+)/(\d+), p (\d+)/(\d+) \] at iteration (\d+)$",
        ),
        (
            lines::no_checkpoint(dir),
            r"^WARNING: could not find the metadata file \S+/latest_checkpointed_iteration\.txt\n    will not load any checkpoints and will start from random$",
        ),
        (
            lines::memory(3, 10, memory),
            r"^\[Rank 3\] \(after 10 iterations\) memory \(MB\) \| allocated: 1\.00 \| max allocated: 3\.00 \| reserved: 4\.00 \| max reserved: 5\.00$",
        ),
    ] {
        assert!(Regex::new(pattern).unwrap().is_match(&text), "{pattern} does not read: {text}");
    }
}

#[test]
fn timers_in_three_forms() {
    let names = ["forward-backward", "optimizer"];
    let seconds = [vec![1.0, 0.25], vec![2.0, 0.5]];
    for (report, head, row) in [
        (
            TimerReport::MinMax,
            r"^\(min, max\) time across ranks \(ms\):$",
            r"^    ([a-z-]+) \.+: \((\d+\.\d\d), (\d+\.\d\d)\)$",
        ),
        (TimerReport::Max, r"^max time across ranks \(ms\):$", r"^    ([a-z-]+) \.+: (\d+\.\d\d)$"),
        (TimerReport::All, r"^times across ranks \(ms\):$", r"^  ([a-z-]+):$|^     rank  ?\d+: \d+\.\d\d$"),
    ] {
        let text = report.format(&names, &seconds, 10).unwrap();
        let mut lines = text.lines();
        assert!(Regex::new(head).unwrap().is_match(lines.next().unwrap()), "{text}");
        let row = Regex::new(row).unwrap();
        for line in lines {
            assert!(row.is_match(line), "{line}");
            if report != TimerReport::All {
                // The name with its dots takes 48 columns.
                assert_eq!(line.find(':'), Some(52), "{line}");
            }
        }
    }
}
