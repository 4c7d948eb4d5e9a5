//! `cargo xtask bench`: our speed and memory, beside a peer's in the same minutes.
//!
//! * `kernels`: matrix products against the fused multiply-adds that this processor can do, attention, row kernels
//! * `train`: whole training steps, with `--python` interleaved with PyTorch eager on the same model

mod train;
mod watch;

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    parts: Vec<String>,
    /// A Python that has torch.
    python: Option<PathBuf>,
    /// Turns of both programs for each model.
    rounds: usize,
    /// Steps of a turn.
    steps: usize,
    /// Models whose name begins so; all when empty.
    model: String,
}

const PARTS: [&str; 2] = ["kernels", "train"];

fn parse(words: &[&str]) -> Result<Options, String> {
    let mut options = Options { rounds: 3, steps: 9, ..Options::default() };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        match word {
            "--python" => options.python = Some(words.next().ok_or("--python names no program")?.into()),
            "--model" => options.model = words.next().ok_or("--model names no model")?.to_string(),
            "--rounds" => options.rounds = number(word, words.next(), 1)?,
            "--steps" => options.steps = number(word, words.next(), train::WARM_UP + 1)?,
            part if PARTS.contains(&part) => options.parts.push(part.into()),
            other => return Err(format!("there is no benchmark {other:?}; there are: {}", PARTS.join(", "))),
        }
    }
    if options.parts.is_empty() {
        options.parts = PARTS.map(String::from).into();
    }
    Ok(options)
}

fn number(flag: &str, word: Option<&&str>, least: usize) -> Result<usize, String> {
    let n = word.and_then(|n| n.parse().ok()).filter(|n| *n >= least);
    n.ok_or_else(|| format!("{flag} takes a number from {least} up"))
}

/// Runs the benchmarks that `words` name, or all.
///
/// # Errors
/// A message that says which program failed, and how.
pub fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let options = parse(words)?;
    println!("{}\n", machine());
    for part in &options.parts {
        match part.as_str() {
            "kernels" => cargo(root, &["bench", "--quiet", "--package", "ferrotron-cpu", "--bench", "kernels"])?,
            _ => {
                cargo(root, &["build", "--quiet", "--release", "--package", "ferrotron-cli", "--bin", "pretrain_gpt"])?;
                train::run(root, &options)?;
            }
        }
    }
    Ok(())
}

fn cargo(root: &Path, args: &[&str]) -> Result<(), String> {
    let status =
        Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into())).args(args).current_dir(root).status();
    match status {
        Ok(s) if s.success() => Ok(()),
        Ok(s) => Err(format!("cargo {} ended with {s}", args.join(" "))),
        Err(e) => Err(format!("cannot run cargo: {e}")),
    }
}

/// The processor, and how busy it was before this began.
fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(": "));
        line.map_or("unknown", |(_, v)| v.trim()).to_string()
    };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_string();
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    format!(
        "{} (family {}, model {}), {cores} cores; load average at the start: {load}",
        field("model name"),
        field("cpu family"),
        field("model\t")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let all = parse(&[]).unwrap();
        assert_eq!((all.parts.len(), all.python, all.rounds, all.steps), (2, None, 3, 9));
        let one = parse(&["train", "--python", "py", "--rounds", "2", "--steps", "5", "--model", "small"]).unwrap();
        let parts = vec!["train".into()];
        assert_eq!(one, Options { parts, python: Some("py".into()), rounds: 2, steps: 5, model: "small".into() });
        for bad in [&["fly"][..], &["--python"], &["--rounds", "0"], &["--rounds"], &["--steps", "3"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
