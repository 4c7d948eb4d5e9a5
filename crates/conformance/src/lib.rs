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
