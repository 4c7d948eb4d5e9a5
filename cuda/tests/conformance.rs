//! The CUDA device over the mock, with the real kernels in the emulator, passes the suite that every device must pass,
//! and breaks no rule of the driver on the way.

mod common;

use std::sync::Arc;

use ferrotron_conformance::{run_cases, suite};
use ferrotron_device::Device;

/// Runs one part of the suite on a device of its own: as many tests run at once as there are cores.
fn part(part: usize) {
    if !common::kernels() {
        return;
    }
    let home = common::home(&format!("conformance-{part}"));
    let device: Arc<dyn Device> = Arc::new(common::open(&home, part, None));
    let control = common::control();
    let mine = |i: &usize| i / 2 % 4 == part;
    let cases = suite().into_iter().enumerate().filter(|(i, _)| mine(i)).map(|(_, c)| c);
    let cases: Vec<_> = cases.collect();
    let report = run_cases(&device, &cases).expect("streams and memory");
    println!("{report}");
    report.assert_passed();
    assert!(report.ops.len() >= 28, "{:?}", report.ops.keys());
    drop(device);
    assert_eq!(control.report(part as u32), "");
    assert_eq!(control.memory(part as u32), 0, "memory was not given back");
    common::remove(&home);
}

#[test]
fn every_op_conforms_and_no_rule_is_broken_first_part() {
    part(0);
}

#[test]
fn every_op_conforms_and_no_rule_is_broken_second_part() {
    part(1);
}

#[test]
fn every_op_conforms_and_no_rule_is_broken_third_part() {
    part(2);
}

#[test]
fn every_op_conforms_and_no_rule_is_broken_fourth_part() {
    part(3);
}
