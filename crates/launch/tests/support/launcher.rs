//! `ferrotron launch` and `ferrotron shims` as a program of their own, for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    match command.as_str() {
        "launch" => ferrotron_launch::run(&rest).into(),
        "shims" => ferrotron_launch::shims(&rest).into(),
        other => {
            eprintln!("'{other}' is neither launch nor shims");
            ExitCode::from(2)
        }
    }
}
