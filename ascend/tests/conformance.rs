//! The Ascend device over the mock passes the suite that every device must pass, but for the ops that wait for kernels
//! of our own, and breaks no rule of the runtime on the way.

mod common;

use std::sync::Arc;

use ferrotron_conformance::{Case, run_cases, suite};
use ferrotron_device::Device;

/// Ops that say they are not there.
const MISSING: [&str; 10] = [
    "attention",
    "attention_backward",
    "dropout",
    "route",
    "route_backward",
    "sort_by_expert",
    "load_balance",
    "gather_rows",
    "combine",
    "combine_backward",
];

fn cases(keep: impl Fn(&Case) -> bool) -> Vec<Case> {
    suite().into_iter().filter(keep).collect()
}

/// Runs one half of the suite: two tests run at once.
fn half(odd: bool) {
    let ordinal = usize::from(odd);
    let home = common::home(&format!("conformance-{ordinal}"));
    let device: Arc<dyn Device> = Arc::new(common::open(&home, ordinal, None));
    let control = common::control();
    let mut cases = cases(|c| !MISSING.contains(&c.op));
    let mut i = 0;
    cases.retain(|_| {
        i += 1;
        (i % 2 == 0) == odd
    });
    let report = run_cases(&device, &cases).expect("streams and memory");
    println!("{report}");
    report.assert_passed();
    assert!(report.ops.len() >= 25, "{:?}", report.ops.keys());
    drop(device);
    assert_eq!(control.report(ordinal as u32), "");
    assert_eq!(control.memory(ordinal as u32), 0, "memory was not given back");
    common::remove(&home);
}

#[test]
fn every_op_that_is_there_conforms_and_no_rule_is_broken_first_half() {
    half(false);
}

#[test]
fn every_op_that_is_there_conforms_and_no_rule_is_broken_second_half() {
    half(true);
}

#[test]
fn what_is_missing_says_so() {
    let home = common::home("missing");
    let device: Arc<dyn Device> = Arc::new(common::open(&home, 2, None));
    let report = run_cases(&device, &cases(|c| c.op == "dropout")).expect("streams and memory");
    assert_eq!(report.failures.len(), report.ops["dropout"].cases);
    assert!(report.failures[0].what.contains("dropout is not available on npu:2"), "{}", report.failures[0]);
    // it is an error of the call, not of the stream
    let s = device.stream(ferrotron_device::StreamRole::Compute).unwrap();
    s.synchronize().unwrap();
    common::remove(&home);
}
