//! `preprocess_data`; see `ferrotron_cli::preprocess`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(match ferrotron_cli::arguments() {
        Ok(argv) => ferrotron_cli::preprocess::run(&argv),
        Err(e) => ferrotron_cli::fail("preprocess_data", e),
    })
}
