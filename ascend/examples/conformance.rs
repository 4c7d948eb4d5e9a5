//! The conformance suite on Ascend device 0 of this machine: what a first hour on hardware begins with.
//!
//! `cargo run --release -p ferrotron-ascend --example conformance [OP ...]` runs all cases, or those of some ops. CANN is found through the environment, as training finds it.

use std::process::ExitCode;

use ferrotron_ascend::AscendBackend;
use ferrotron_conformance::{run_cases, suite};
use ferrotron_device::Backend;

fn main() -> ExitCode {
    let backend = AscendBackend::from_variables(|name| std::env::var_os(name), true);
    let device =
        match backend.probe().map_err(|e| e.to_string()).and_then(|_| backend.open(0).map_err(|e| e.to_string())) {
            Ok(device) => device,
            Err(e) => {
                eprintln!("{e}");
                return ExitCode::FAILURE;
            }
        };
    device.describe().iter().for_each(|line| println!("{line}"));
    let ops: Vec<String> = std::env::args().skip(1).collect();
    let mut cases = suite();
    cases.retain(|c| ops.is_empty() || ops.iter().any(|op| op == c.op));
    match run_cases(&device, &cases) {
        Ok(report) => {
            println!("{report}");
            if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
