//! Every op in plain f64 loops, and one test suite that any device must pass.

mod cases;
pub mod reference;
mod report;
mod rig;
mod tolerance;

use std::sync::Arc;

use ferrotron_device::{Device, Result};

pub use report::{Failure, OpSummary, Report};
pub use rig::{Buf, Rig};
pub use tolerance::Tol;

/// One call of one op on one shape, with its reference.
pub struct Case {
    /// The op.
    pub op: &'static str,
    /// Shape, dtype and variant in words.
    pub name: String,
    body: Body,
}

type Body = Box<dyn Fn(&Rig) -> Result<()> + Send + Sync>;

/// All cases, in a fixed order.
pub fn suite() -> Vec<Case> {
    cases::all()
}

/// Ops of mixtures of experts, which a device may refuse by name.
pub const EXPERT_OPS: [&str; 7] =
    ["route", "route_backward", "sort_by_expert", "load_balance", "gather_rows", "combine", "combine_backward"];

/// All cases but those of mixtures of experts.
pub fn suite_without_experts() -> Vec<Case> {
    suite().into_iter().filter(|c| !EXPERT_OPS.contains(&c.op)).collect()
}

/// Asserts that a device refuses each op of mixtures of experts, naming it and itself, and goes on.
pub fn assert_refuses_experts(device: &Arc<dyn Device>) {
    let small = |c: &Case| c.name.starts_with("T=7 E=4") || c.name.starts_with("T=7 K=2 H=7 F32");
    let cases: Vec<Case> = suite().into_iter().filter(|c| EXPERT_OPS.contains(&c.op) && small(c)).collect();
    let report = run_cases(device, &cases).expect("streams and memory");
    assert_eq!((report.failures.len(), report.ops.len()), (cases.len(), EXPERT_OPS.len()), "{report}");
    for f in &report.failures {
        assert!(f.what.contains(&format!("{} is not available on {}", f.op, device.info().name)), "{f}");
    }
    // Errors of the calls, not of the stream.
    let s = device.stream(ferrotron_device::StreamRole::Compute).expect("a stream");
    s.synchronize().expect("no work, no error");
}

/// Runs [`suite`] on a device. `Err` only when the device cannot even give streams and memory; what the cases find
/// is in the report.
pub fn run(device: &Arc<dyn Device>) -> Result<Report> {
    run_cases(device, &suite())
}

/// Runs some cases on a device.
pub fn run_cases(device: &Arc<dyn Device>, cases: &[Case]) -> Result<Report> {
    let mut rig = Rig::new(device)?;
    for case in cases {
        rig.begin(case.op, &case.name);
        if let Err(e) = (case.body)(&rig) {
            rig.fail(e.to_string());
            rig.recover()?;
        }
    }
    Ok(rig.into_report())
}
