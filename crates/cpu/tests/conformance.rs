//! The CPU device passes the suite that every device must pass, on any number of threads, on every instruction set of
//! this processor, and with streams that run late; and all of those agree to the bit where they must.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ferrotron_base::philox::hash_name;
use ferrotron_conformance::{Report, run_cases, suite};
use ferrotron_cpu::{CpuConfig, CpuDevice, Isa, StreamMode};
use ferrotron_device::Device;

/// Runs one case in `of`, picked by name.
fn report(threads: usize, streams: StreamMode, isa: Isa, of: u64) -> Report {
    let device =
        CpuDevice::with_isa(CpuConfig { threads, streams }, isa).expect("the processor has this instruction set");
    let device: Arc<dyn Device> = Arc::new(device);
    let mut cases = suite();
    cases.retain(|c| hash_name(&c.name).is_multiple_of(of));
    let report = run_cases(&device, &cases).expect("streams and memory");
    report.assert_passed();
    report
}

/// Asserts that a run gave the same bits as the whole suite on one thread, in the cases it ran of some ops.
fn assert_same_bits(other: &Report, ops: impl Fn(&str) -> bool) {
    static PLAIN: OnceLock<HashMap<String, u64>> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| {
        let report = report(1, StreamMode::Inline, Isa::detect(), 1);
        println!("{report}");
        report.fingerprints.into_iter().collect()
    });
    assert!(other.fingerprints.len() > plain.len() / 10);
    for (case, bits) in &other.fingerprints {
        assert!(plain[case] == *bits || !ops(case), "{case} has other bits");
    }
}

#[test]
fn two_threads_give_the_same_bits() {
    assert_same_bits(&report(2, StreamMode::Inline, Isa::detect(), 1), |_| true);
}

#[test]
fn three_threads_give_the_same_bits() {
    assert_same_bits(&report(3, StreamMode::Inline, Isa::detect(), 3), |_| true);
}

/// Every stream on its own thread, each job late by chance: only events keep uploads, kernels and downloads in order.
#[test]
fn late_streams_give_the_same_bits() {
    assert_same_bits(&report(3, StreamMode::Chaos { seed: 7 }, Isa::detect(), 4), |_| true);
}

/// All ops but matrix products and attention write products and sums apart, in lanes of one number: the same bits.
#[test]
fn every_instruction_set_passes() {
    for &isa in &Isa::available()[1..] {
        let other = report(2, StreamMode::Inline, isa, 3);
        assert_same_bits(&other, |case| !case.starts_with("gemm") && !case.starts_with("attention"));
    }
}
