//! House keeping: `cargo xtask <command>`.

mod bench;
mod flags;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "cargo xtask <command>

  tidy           check the rules of the house: who depends on whom, file sizes, where unsafe may be, no C
  bench [kernels|train]* [--python PATH] [--model NAME] [--rounds N] [--steps N]
                 our kernels and training steps; with a Python that has torch, PyTorch's beside them
  flags <lists>  rewrite the flag tables of crates/config from a folder of upstream flag lists (JSON)
  help           this page";

fn main() -> ExitCode {
    // The workspace's root: this crate lies directly below it.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["tidy"] => tidy::run(root),
        ["bench", ref words @ ..] => match bench::run(root, words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("xtask bench: {why}");
                ExitCode::FAILURE
            }
        },
        ["flags", lists] => match flags::run(Path::new(lists), &root.join("crates/config/src/flags/tables")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("xtask flags: {why}");
                ExitCode::FAILURE
            }
        },
        ["help" | "--help" | "-h"] | [] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("xtask: there is no command {:?}\n\n{HELP}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}
