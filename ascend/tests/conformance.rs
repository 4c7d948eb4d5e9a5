//! The Ascend device over the mock passes the whole suite that every device must pass, and breaks no rule of the runtime
//! on the way.

mod common;

use std::sync::Arc;

use ferrotron_conformance::{run_cases, suite};
use ferrotron_device::Device;

/// Runs one half of the suite: two tests run at once.
fn half(odd: bool) {
    let ordinal = usize::from(odd);
    let home = common::home(&format!("conformance-{ordinal}"));
    let device: Arc<dyn Device> = Arc::new(common::open(&home, ordinal, None));
    let control = common::control();
    let mut cases = suite();
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
fn every_op_conforms_and_no_rule_is_broken_first_half() {
    half(false);
}

#[test]
fn every_op_conforms_and_no_rule_is_broken_second_half() {
    half(true);
}
