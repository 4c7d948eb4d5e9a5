//! Compiles the kernels with the NVRTC of a folder, as a device does where it must: `compile FOLDER sm_N|compute_N OUT`.
//! Warnings are errors. `cargo xtask cuda-check` runs it; no driver and no GPU is needed.

use std::process::ExitCode;

use ferrotron_cuda::{Compiler, Target};
use ferrotron_dynlib::{Place, Search};

fn compile(folder: &str, target: &str, out: &str) -> Result<String, String> {
    let names = ["libnvrtc.so.13", "libnvrtc.so.12"];
    let library = Search::new(names).places([Place::folder("the first argument", folder)]).open();
    let compiler = Compiler::of(library.map_err(|e| e.to_string())?)?;
    let chip = |text: &str| text.parse().map_err(|_| format!("{target} is no target"));
    let target = match (target.strip_prefix("sm_"), target.strip_prefix("compute_")) {
        (Some(n), _) => Target::Chip(chip(n)?),
        (_, Some(n)) => Target::Ptx(chip(n)?),
        _ => return Err(format!("{target} is neither sm_N nor compute_N")),
    };
    let made = compiler.compile(target)?;
    if !made.log.is_empty() {
        return Err(format!("{} warns:\n{}", compiler.name(), made.log));
    }
    std::fs::write(out, made.image).map_err(|e| format!("{out}: {e}"))?;
    Ok(compiler.name())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, target, out] = &arguments[..] else {
        eprintln!("compile FOLDER sm_N|compute_N OUT");
        return ExitCode::FAILURE;
    };
    match compile(folder, target, out) {
        Ok(name) => {
            println!("{name}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("compile: {why}");
            ExitCode::FAILURE
        }
    }
}
