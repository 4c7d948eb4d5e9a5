//! House keeping: `cargo xtask <command>`.

mod ascend;
mod bench;
mod binaries;
mod cuda;
mod cudarc;
mod flags;
mod netns;
mod nvtx;
mod python;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "cargo xtask <command>

  tidy           check the rules of the house: who depends on whom, file sizes, where unsafe may be, no C
  bench [kernels|train]* [--python PATH] [--model NAME] [--rounds N] [--steps N]
                 our kernels and training steps; with a Python that has torch, PyTorch's beside them
  ascend-check PYTHON
                 the vendor's headers (torch-npu) agree with our interface, and pyhccl runs over our HCCL mock; both from
                 PyPI by this Python's pip (needs g++)
  emu            compile the CUDA kernels for the host: what the mock of the CUDA driver runs (needs g++)
  cuda-check [--write]
                 compile them with nvcc and NVRTC from PyPI for sm_80, sm_90a and sm_100, compare our tables with NVIDIA's
                 headers; with --write make kernels.ptx and kernels.fatbin anew
  cudarc-check   cudarc, a client of the CUDA driver that is not ours, runs one of our kernels on the mock (needs g++)
  flags <lists>  rewrite the flag tables of crates/config from a folder of upstream flag lists (JSON)
  netns-check    train on two nodes that are network namespaces with a cable between them (Linux, root, iproute2)
  python-check PYTHON
                 TensorBoard, MLflow and W&B read a run's files, torchrun starts one: with a Python that has torch,
                 tensorboard, mlflow-skinny and wandb
  published-check PYTHON
                 transformers reads the models that we export, and we those that it saves: with a Python that has torch and
                 transformers
  help           this page";

fn main() -> ExitCode {
    // The workspace's root: this crate lies directly below it.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["tidy"] => tidy::run(root),
        ["bench", ref words @ ..] => told("bench", bench::run(root, words)),
        ["ascend-check", python] => told("ascend-check", ascend::check(root, python)),
        ["emu"] => told("emu", cuda::emu()),
        ["cuda-check"] => told("cuda-check", cuda::check(root, false)),
        ["cuda-check", "--write"] => told("cuda-check", cuda::check(root, true)),
        ["cudarc-check"] => told("cudarc-check", cudarc::check(root)),
        ["flags", lists] => told("flags", flags::run(Path::new(lists), &root.join("crates/config/src/flags/tables"))),
        ["python-check", python] => told("python-check", python::check(root, python)),
        ["published-check", python] => told("published-check", python::published(root, python)),
        ["netns-check"] => told("netns-check", netns::check(root)),
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

fn told<E: std::fmt::Display>(command: &str, result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {command}: {why}");
            ExitCode::FAILURE
        }
    }
}
