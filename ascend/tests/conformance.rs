//! The Ascend device over the mock passes the suite that every device must pass, and breaks no rule of the runtime.

mod common;

use std::sync::Arc;

use ferrotron_conformance::{run_cases, suite};
use ferrotron_device::Device;

/// Runs one half of the suite: two tests run at once.
fn half(odd: bool) {
    let ordinal = usize::from(odd);
    let home = common::home(&format!("conformance-{ordinal}"));
    let opened = Arc::new(common::open(&home, ordinal, None));
    let device: Arc<dyn Device> = opened.clone();
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
    // what ran is what the report at start says
    let said = device.describe();
    for (op, operator) in opened.used() {
        let part = operator.strip_prefix("aclnn").unwrap_or(operator);
        let line = said.iter().find_map(|l| l.strip_prefix(&format!("npu:{ordinal}: {op} = ")));
        assert!(line.is_some_and(|l| l.split(", ").any(|p| p == part)), "{op} used {operator}: {said:?}");
    }
    drop((device, opened));
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
