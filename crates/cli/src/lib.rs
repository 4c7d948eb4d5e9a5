//! The binaries: pretrain_gpt, preprocess_data, ferrotron.
//!
//! Each `src/bin/*.rs` only collects arguments and environment and turns an exit code into one; what a command does is
//! here, one file a command. Exit codes: 0 success, 1 a run failed, 2 the command line is refused, 3 it is valid but
//! needs a planned feature, 128 + n stopped by signal n.

pub mod corpus;
pub mod curve;
pub mod data_tools;
pub mod doctor;
pub mod explain;
pub mod export;
pub mod generate;
pub mod inspect;
pub mod preprocess;
pub mod pretrain;
pub mod ranks;
pub mod table;

use std::fmt::Display;

/// Prints `program: message` on standard error and gives exit code 1.
pub fn fail(program: &str, e: impl Display) -> u8 {
    eprintln!("{program}: {e}");
    1
}

/// The arguments after the program's name; an error for one that is not UTF-8.
pub fn arguments() -> Result<Vec<String>, String> {
    std::env::args_os()
        .skip(1)
        .map(|a| a.into_string().map_err(|a| format!("argument {a:?} is not valid UTF-8")))
        .collect()
}
