//! `ferrotron export`: a checkpoint, ours or Megatron-LM's, as a published model.

use std::path::Path;

use ferrotron_base::DType;
use ferrotron_checkpoint::Checkpoint;
use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Source};
use ferrotron_config::{RawArgs, Resolved};
use ferrotron_foreign::Megatron;
use ferrotron_published::{Export, Parameters, VOCABULARY, write};
use ferrotron_train::{Error, bridge};

use crate::generate::{arguments_of, megatron};
use crate::table::{count, parse_or_exit, required};

const PROGRAM: &str = "ferrotron export";

#[rustfmt::skip]
static FLAGS: Group = Group { name: "export", source: Source::Ferrotron, flags: &[
    Flag::new("--load", "load", Kind::Str, "Folder that a run, or Megatron-LM, saved into"),
    Flag::new("--ckpt-step", "ckpt_step", Kind::Int, "Iteration to export instead of the newest"),
    Flag::new("--output", "output", Kind::Str, "New folder: config.json and safetensors, as Hugging Face has them"),
    Flag::new("--dtype", "dtype", Kind::Str, "float32, bfloat16 or float16 instead of the type that was trained"),
    Flag::new("--vocab-size", "vocab_size", Kind::Int, "Rows of the vocabulary instead of the padded ones"),
    Flag::new("--max-shard-mib", "max_shard_mib", Kind::Int, "Most MiB of a file").or(Fallback::Int(5 << 10)),
] };

/// Parses and runs; gives the exit code.
pub fn run(argv: &[String]) -> u8 {
    let args = match parse_or_exit(PROGRAM, &FLAGS, argv) {
        Ok(args) => args,
        Err(code) => return code,
    };
    export(&args).unwrap_or_else(|code| code)
}

fn export(args: &RawArgs) -> Result<u8, u8> {
    let (from, to) = (required(PROGRAM, args, "load")?, required(PROGRAM, args, "output")?);
    let dtype = match args.text("dtype") {
        None => None,
        Some("float32" | "fp32") => Some(DType::F32),
        Some("bfloat16" | "bf16") => Some(DType::BF16),
        Some("float16" | "fp16") => Some(DType::F16),
        Some(other) => {
            eprintln!("{PROGRAM}: --dtype {other} is none of float32, bfloat16 and float16");
            return Err(2);
        }
    };
    let vocab = args.int("vocab_size").map(|_| count(PROGRAM, args, "vocab_size")).transpose()?;
    let file_bytes = count(PROGRAM, args, "max_shard_mib")? << 20;
    let e = Export { dtype, vocab: vocab.map(|v| v as usize), file_bytes };
    let step = args.int("ckpt_step").and_then(|n| u64::try_from(n).ok());
    let from = Path::new(from);
    let exported = if Megatron::is_one(from, step) {
        megatron(from, step).and_then(|(checkpoint, resolved)| published(&checkpoint, &resolved, to, e))
    } else {
        let checkpoint = Checkpoint::open(from, step).map_err(Error::from);
        checkpoint.and_then(|c| published(&c, &arguments_of(&c)?, to, e))
    };
    match exported {
        Ok(line) => {
            println!("{line}");
            Ok(0)
        }
        Err(e) => Err(crate::fail(PROGRAM, e)),
    }
}

fn published(checkpoint: &impl Parameters, resolved: &Resolved, to: &str, e: Export) -> Result<String, Error> {
    // Its rows are the vocabulary, padding too.
    let [embedding, _] = VOCABULARY;
    let none = || Error::Setting(format!("{} has no {embedding}", checkpoint.folder().display()));
    let (shape, _) = checkpoint.parameter(embedding).ok_or_else(none)?;
    let rows = *shape.first().ok_or_else(none)?;
    let model = bridge::model_config(&resolved.config, rows)?;
    let (family, files) = write(checkpoint, &model, Path::new(to), e)?;
    Ok(format!("{to}: a {} of {rows} rows of vocabulary in {}", family.name(), files.join(", ")))
}
