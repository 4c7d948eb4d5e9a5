//! `ferrotron doctor`: which devices are here, whether they calculate, and why the others are not.

use ferrotron_backends::{DeviceOptions, all, self_test};

/// Prints the report; gives the exit code: 1 when there is no device, or one that does not pass its test.
pub fn run() -> u8 {
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
