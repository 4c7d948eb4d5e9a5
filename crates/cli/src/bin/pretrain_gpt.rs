//! `pretrain_gpt`; see `ferrotron_cli::pretrain`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(match ferrotron_cli::arguments() {
        Ok(argv) => ferrotron_cli::pretrain::run(&argv, |name| std::env::var(name).ok()),
        Err(e) => ferrotron_cli::fail("pretrain_gpt", e),
    })
}
