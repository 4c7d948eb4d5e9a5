//! `ferrotron doctor`: which devices are here, and why the others are not.

use ferrotron_backends::{DeviceOptions, all};

/// Prints the report; gives the exit code.
pub fn run() -> u8 {
    let mut found = false;
    for backend in all(&DeviceOptions::default()) {
        match backend.probe() {
            Ok(devices) => {
                for d in devices {
                    found = true;
                    println!("{}: {}, {:.1} GiB available", d.name, d.model, d.memory as f64 / (1u64 << 30) as f64);
                }
            }
            Err(e) => println!("{e}"),
        }
    }
    u8::from(!found)
}
