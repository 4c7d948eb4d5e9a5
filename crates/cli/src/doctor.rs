//! `ferrotron doctor`: which devices are here, whether they calculate, and why the others are not.

use ferrotron_backends::{DeviceOptions, all, select, self_test};
use ferrotron_conformance::{run_cases, suite};

const USAGE: &str = "usage: ferrotron doctor                  every device: opened, copies, sums and products tested
       ferrotron doctor --ops KIND [OP ...]
                                         the first npu, cuda or cpu: every op, or these, in every shape and type of the
                                         conformance suite, against the same in plain float64 loops (a minute)";

/// Prints the report; gives the exit code: 1 when there is no device, or one that does not pass its test.
pub fn run(words: &[String]) -> u8 {
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => devices(),
        ["--ops", kind, ref wanted @ ..] => match ops(kind, wanted) {
            Ok(passed) => u8::from(!passed),
            Err(e) => crate::fail("ferrotron doctor", e),
        },
        ["--help" | "-h"] => {
            println!("{USAGE}");
            0
        }
        _ => {
            eprintln!("ferrotron doctor: what is {:?}?\n{USAGE}", words.join(" "));
            2
        }
    }
}

/// Runs the conformance suite on the first device of a kind, or the cases of some ops; true when it passed.
fn ops(kind: &str, wanted: &[&str]) -> Result<bool, String> {
    let mut cases = suite();
    if let Some(no) = wanted.iter().find(|w| cases.iter().all(|c| c.op != **w)) {
        return Err(format!("no op is called {no}; docs/ops.md lists them"));
    }
    cases.retain(|c| wanted.is_empty() || wanted.contains(&c.op));
    // sums in a fixed order, which is what the suite's bounds are for
    let options = DeviceOptions { deterministic: true, ..DeviceOptions::default() };
    let choice = select(kind, &options).map_err(|e| e.to_string())?;
    choice.why.iter().for_each(|line| println!("{line}"));
    let device = choice.open(0).map_err(|e| e.to_string())?;
    println!("{}: {}", device.info().name, device.info().model);
    device.describe().iter().for_each(|line| println!("{line}"));
    let began = std::time::Instant::now();
    let report = run_cases(&device, &cases).map_err(|e| e.to_string())?;
    print!("{report}");
    let (name, failed, took) = (&device.info().name, report.failures.len(), began.elapsed().as_secs_f64());
    println!("{name}: {} cases, {failed} failures, {took:.1} s", cases.len());
    Ok(report.passed())
}

/// Tests every device a little.
fn devices() -> u8 {
    let (mut found, mut broken) = (false, false);
    for backend in all(&DeviceOptions::default()) {
        let devices = match backend.probe() {
            Ok(devices) => devices,
            Err(e) => {
                println!("{e}");
                continue;
            }
        };
        for (i, d) in devices.iter().enumerate() {
            found = true;
            println!("{}: {}", d.name, d.model);
            let device = match backend.open(i) {
                Ok(device) => device,
                Err(e) => {
                    broken = true;
                    println!("{}: cannot be opened: {e}", d.name);
                    continue;
                }
            };
            println!("{}: {:.1} GiB available", d.name, device.info().memory as f64 / (1u64 << 30) as f64);
            // what a kind of device is made of is told once
            if i == 0 {
                device.describe().iter().for_each(|line| println!("{line}"));
            }
            match self_test(&device) {
                Ok(line) => println!("{line}"),
                Err(e) => {
                    broken = true;
                    println!("{}: the self-test failed: {e}", d.name);
                }
            }
        }
    }
    u8::from(!found || broken)
}
