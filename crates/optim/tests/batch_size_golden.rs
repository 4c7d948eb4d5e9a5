//! Batch-size tables recorded from Megatron (0.16.1 for the ramp, main for the step schedule).

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failed test

use ferrotron_optim::{Batch, BatchSchedule, BatchSizeError, MicrobatchCalculator};
use serde_json::Value;

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not an integer"))
}

/// A golden row `[consumed, global, running, micro-batches]`.
fn row(value: &Value) -> (u64, Batch) {
    let batch = Batch {
        global_batch_size: u(&value[1]),
        running_global_batch_size: u(&value[2]),
        num_microbatches: u(&value[3]),
    };
    (u(&value[0]), batch)
}

#[test]
fn rampup_and_constant() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/microbatches.json")).unwrap();
    assert_eq!(cases.len(), 11);
    for case in &cases {
        let (mbs, dp, global) = (u(&case["micro_batch_size"]), u(&case["dp"]), u(&case["global_batch_size"]));
        let decrease = case["decrease_batch_size_if_needed"].as_bool().unwrap();
        let constant = BatchSchedule::Constant { global_batch_size: global };
        match (case["kind"].as_str().unwrap(), case.get("error")) {
            ("constant", Some(message)) => {
                let error = MicrobatchCalculator::new(constant, mbs, dp, decrease, 0).unwrap_err().to_string();
                assert!(error.starts_with(message.as_str().unwrap()), "{error}");
            }
            ("constant", None) => {
                let batch = MicrobatchCalculator::new(constant, mbs, dp, decrease, 0).unwrap().current();
                assert_eq!(batch.global_batch_size, u(&case["current_global_batch_size"]));
                assert_eq!(batch.running_global_batch_size, u(&case["running"]));
                assert_eq!(batch.num_microbatches, u(&case["num_microbatches"]));
            }
            _ => {
                let ramp = &case["rampup"];
                let schedule = BatchSchedule::rampup(u(&ramp[0]), u(&ramp[1]), u(&ramp[2]), global).unwrap();
                check_ramp(case, schedule, mbs, dp, decrease);
            }
        }
    }
}

fn check_ramp(case: &Value, schedule: BatchSchedule, mbs: u64, dp: u64, decrease: bool) {
    let changes = case["table"]["changes"].as_array().unwrap();
    for probe in case["probe"].as_array().unwrap() {
        assert_eq!(schedule.global_batch_size_at(u(&probe[0])), u(&probe[1]), "{probe} of {case}");
    }
    // Megatron recorded this case without its consistency check in the probes and with it in the table.
    if changes[0][1] == "assert" {
        let error = MicrobatchCalculator::new(schedule, mbs, dp, decrease, 0).unwrap_err();
        assert!(matches!(error, BatchSizeError::NotDivisible { global_batch_size: 10, .. }), "{error}");
        return;
    }
    let mut calculator = MicrobatchCalculator::new(schedule, mbs, dp, decrease, 0).unwrap();
    for probe in case["probe"].as_array().unwrap() {
        let (consumed, expected) = row(probe);
        assert_eq!(calculator.at(consumed).unwrap(), expected, "{probe} of {case}");
    }
    calculator.check_from(0).unwrap();

    // The run itself: consumed samples grow by the running size.
    let mut seen = vec![(0, calculator.current())];
    let mut consumed = 0;
    for _ in 1..u(&case["table"]["iterations"]) {
        consumed += calculator.current().running_global_batch_size;
        if calculator.update(consumed).unwrap() {
            seen.push((consumed, calculator.current()));
        }
    }
    assert_eq!(seen, changes.iter().map(row).collect::<Vec<_>>());
    let (last_consumed, last) = row(&case["table"]["last"]);
    assert_eq!((consumed, calculator.current()), (last_consumed, last), "{case}");
}

#[test]
fn step_schedule() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/step_batch_schedule_head.json")).unwrap();
    assert_eq!(cases.len(), 3);
    for case in &cases {
        let schedule =
            BatchSchedule::parse_steps(case["schedule"].as_str().unwrap(), case["seq_length"].as_u64()).unwrap();
        let parsed: Vec<(u64, u64)> =
            case["parsed"].as_array().unwrap().iter().map(|pair| (u(&pair[0]), u(&pair[1]))).collect();
        assert_eq!(schedule, BatchSchedule::Steps(parsed.clone()));
        assert_eq!(schedule.final_global_batch_size(), parsed.last().unwrap().1);
        let calculator =
            MicrobatchCalculator::new(schedule, u(&case["micro_batch_size"]), u(&case["dp"]), false, 0).unwrap();
        for probe in case["probe"].as_array().unwrap() {
            let batch = calculator.at(u(&probe[0])).unwrap();
            assert_eq!((batch.global_batch_size, batch.num_microbatches), (u(&probe[1]), u(&probe[2])), "{probe}");
            assert_eq!(batch.running_global_batch_size, batch.global_batch_size);
        }
        calculator.check_from(0).unwrap();
    }
}

#[test]
fn step_schedule_texts_that_cannot_be_used() {
    for (text, part) in [
        ("", "no entries"),
        ("16", "no colon"),
        ("0:16 1K", "no colon"),
        ("1:16", "first threshold is 1"),
        ("0:16 5:0", "batch size is 0"),
        ("0:16 5:x", "number is missing"),
        ("0:16 -5:4", "negative"),
        ("0:16 inf:4", "too large"),
        ("0:16 nan:4", "number is missing"),
        ("0:16 K:4", "number is missing"),
        ("0:16 5:4 5:8", "two entries begin at sample 5"),
    ] {
        let error = BatchSchedule::parse_steps(text, None).unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
    // 100 and 120 tokens are the same sample of 128 tokens.
    assert!(BatchSchedule::parse_steps("0:4 100:8 120:16", Some(128)).is_err());
    assert!(BatchSchedule::parse_steps("0:4", Some(0)).is_err());
    let lower_case = BatchSchedule::parse_steps("1.5k:32, 0:16", None).unwrap();
    assert_eq!(lower_case, BatchSchedule::Steps(vec![(0, 16), (1500, 32)]));
}

#[test]
fn ramps_without_increments_are_errors_not_divisions_by_zero() {
    for (start, increment, samples, global, part) in [
        (32, 8, 300, 32, "0 increments"),
        (8, 0, 300, 32, "increment is 0"),
        (8, 8, 0, 32, "0 samples"),
        (0, 8, 300, 32, "start batch size is 0"),
        (64, 8, 300, 32, "above the global"),
        (8, 7, 300, 32, "not a multiple"),
    ] {
        let error = BatchSchedule::rampup(start, increment, samples, global).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn sizes_that_leave_no_microbatch_are_errors() {
    let constant = |size| BatchSchedule::Constant { global_batch_size: size };
    let new = |size, mbs, dp, decrease| MicrobatchCalculator::new(constant(size), mbs, dp, decrease, 0);
    assert!(matches!(new(3, 2, 2, true), Err(BatchSizeError::NoMicrobatch { global_batch_size: 3, .. })));
    assert!(matches!(new(0, 2, 2, false), Err(BatchSizeError::NoMicrobatch { .. })));
    assert!(matches!(new(4, 0, 2, false), Err(BatchSizeError::Zero { .. })));
    assert!(matches!(new(4, 2, 0, false), Err(BatchSizeError::Zero { .. })));
    assert!(matches!(new(4, u64::MAX, 2, false), Err(BatchSizeError::Overflow { .. })));
    assert!(new(6, 2, 2, false).unwrap_err().to_string().contains("4 and 8"));
    assert!(new(3, 2, 2, false).unwrap_err().to_string().contains("sizes are 4;"));
    let steps = BatchSchedule::parse_steps("0:16", None).unwrap();
    assert_eq!(MicrobatchCalculator::new(steps, 2, 2, true, 0), Err(BatchSizeError::StepWithDecrease));
}

#[test]
fn a_size_that_fits_only_later_is_found_before_the_run() {
    // 16 fits 2×4, the later 20 does not; a run that resumes behind 20 may go on.
    let schedule = BatchSchedule::parse_steps("0:16 1M:20 2M:32", None).unwrap();
    let calculator = MicrobatchCalculator::new(schedule, 2, 4, false, 0).unwrap();
    let error = calculator.check_from(0).unwrap_err();
    assert!(matches!(error, BatchSizeError::NotDivisible { global_batch_size: 20, .. }), "{error}");
    calculator.check_from(2_000_000).unwrap();
}
