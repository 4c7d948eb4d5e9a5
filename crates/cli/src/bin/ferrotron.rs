//! `ferrotron`: the tools around training.

use std::process::ExitCode;

use ferrotron_cli::{corpus, curve, data_tools, doctor, explain, export, generate, inspect, preprocess, pretrain};

const USAGE: &str = "\
usage: ferrotron COMMAND ...
  pretrain_gpt     train: Megatron's command line (also a binary of its own)
  launch           start ranks: torchrun's, torch.distributed.launch's and deepspeed's spellings
  shims            write stand-ins, so that old launch scripts run unchanged
  preprocess_data  JSONL to .bin/.idx (also a binary of its own)
  merge_datasets   several .bin/.idx pairs to one
  repair           a copy of a .bin/.idx pair with the end of its last document set right
  tokenizer train  a byte-level BPE vocabulary from JSONL
  generate         a few lines of text from a checkpoint
  export           a checkpoint as a Hugging Face folder
  curve            draw the loss curve of a log
  inspect          what is in a checkpoint, published model, token file or safetensors file
  corpus           text files to JSONL, one document a file
  doctor           which devices are here, and why others are not; --ops KIND tests every op of one
  explain          what a code of CANN or CUDA means and what to try: 507015, hccl:9, cuda:700, xid:79, or a whole message
Each command explains itself with --help.";

fn main() -> ExitCode {
    let argv = match ferrotron_cli::arguments() {
        Ok(argv) => argv,
        Err(e) => return ExitCode::from(ferrotron_cli::fail("ferrotron", e)),
    };
    let (command, rest) = argv.split_first().map_or(("--help", &[][..]), |(c, rest)| (c.as_str(), rest));
    ExitCode::from(match command {
        "pretrain_gpt" => pretrain::run(rest, |name| std::env::var(name).ok()),
        "preprocess_data" => preprocess::run(rest),
        "launch" => ferrotron_launch::run(rest),
        "shims" => ferrotron_launch::shims(rest),
        "merge_datasets" => data_tools::merge_datasets(rest),
        "repair" => data_tools::repair_dataset(rest),
        "tokenizer" => data_tools::tokenizer(rest),
        "generate" => generate::run(rest),
        "curve" => curve::run(rest),
        "export" => export::run(rest),
        "inspect" => inspect::run(rest),
        "corpus" => corpus::run(rest),
        "doctor" => doctor::run(rest),
        "explain" => explain::run(rest),
        "--help" | "-h" | "help" => {
            println!("{USAGE}");
            0
        }
        "--version" | "-V" => {
            println!("ferrotron {}", env!("CARGO_PKG_VERSION"));
            0
        }
        other => {
            eprintln!("ferrotron: no command is called {other}\n{USAGE}");
            2
        }
    })
}
