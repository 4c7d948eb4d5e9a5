//! `ferrotron generate`: a few lines from a checkpoint, to look at what it learned.

use std::io::Write;
use std::path::Path;

use ferrotron_checkpoint::Checkpoint;
use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Source};
use ferrotron_config::{Environment, RawArgs, Table, merge_checkpoint_args, parse, read_file, report, validate};
use ferrotron_train::setup::{Built, build_model, open_device, tokenizer};
use ferrotron_train::{Error, Sampling, World, generate, save_load};

use crate::table::{count, parse_or_exit, required};

const PROGRAM: &str = "ferrotron generate";

#[rustfmt::skip]
static FLAGS: Group = Group { name: "generate", source: Source::Ferrotron, flags: &[
    Flag::new("--load", "load", Kind::Str, "Folder that a run saved into"),
    Flag::new("--ckpt-step", "ckpt_step", Kind::Int, "Iteration to load instead of the newest"),
    Flag::new("--prompt", "prompt", Kind::Str, "Text to go on from").or(Fallback::Str("")),
    Flag::new("--tokens", "tokens", Kind::Int, "Tokens to add").or(Fallback::Int(100)),
    Flag::new("--temperature", "temperature", Kind::Float, "0 takes the likeliest token").or(Fallback::Float(0.8)),
    Flag::new("--top-k", "top_k", Kind::Int, "Draw among so many likeliest tokens").or(Fallback::Int(40)),
    Flag::new("--seed", "seed", Kind::Int, "Seed of the draws").or(Fallback::Int(1234)),
] };

/// Parses and runs; gives the exit code.
pub fn run(argv: &[String]) -> u8 {
    let args = match parse_or_exit(PROGRAM, &FLAGS, argv) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match write(&args) {
        Ok(text) => {
            println!("{text}");
            0
        }
        Err(code) => code,
    }
}

fn write(args: &RawArgs) -> Result<String, u8> {
    let dir = required(PROGRAM, args, "load")?;
    let step = args.int("ckpt_step").and_then(|n| u64::try_from(n).ok());
    let checkpoint = Checkpoint::open(Path::new(dir), step).map_err(|e| crate::fail(PROGRAM, e))?;
    let how = Sampling {
        temperature: args.float("temperature").unwrap_or(0.0) as f32,
        top_k: count(PROGRAM, args, "top_k")?.max(1) as usize,
        seed: count(PROGRAM, args, "seed")?,
    };
    let tokens = count(PROGRAM, args, "tokens")? as usize;
    let prompt = args.text("prompt").unwrap_or_default();
    text(&checkpoint, prompt, tokens, how).map_err(|e| crate::fail(PROGRAM, e))
}

/// The run's own arguments describe the model; what they lack of training is filled in with placeholders.
pub(crate) fn arguments_of(checkpoint: &Checkpoint) -> Result<ferrotron_config::Resolved, Error> {
    let table = Table::pretrain();
    let filler = ["--mock-data", "--micro-batch-size", "1", "--train-iters", "1", "--lr", "0", "--seq-length", "1"];
    let filler: Vec<String> = filler.iter().map(|s| s.to_string()).collect();
    let mut parsed = parse(&table, &filler, &read_file);
    merge_checkpoint_args(&mut parsed.args, &checkpoint.common().arguments);
    validate(&table, parsed.args, &Environment::default(), parsed.violations)
        .map_err(|refused| Error::Setting(report("arguments of the checkpoint", &refused.violations)))
}

fn text(checkpoint: &Checkpoint, prompt: &str, tokens: usize, how: Sampling) -> Result<String, Error> {
    let resolved = arguments_of(checkpoint)?;
    let config = &resolved.config;
    let (tokenizer, vocab) = tokenizer(config)?;
    let device = open_device(config, &Environment::default(), 0, 1)?;
    let Built { mut cx, stage, head, model } = build_model(config, vocab, device, &World::alone(&config.parallel)?)?;
    let head = head.ok_or_else(|| Error::Setting("the model has no head".into()))?;
    save_load::load_params(&cx, checkpoint)?;

    let mut ids = vec![];
    tokenizer.encode(prompt, &mut ids)?;
    let mut ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
    let stop = tokenizer.eod().map(|id| id as i32);
    if ids.is_empty() {
        // An end of document is what a document follows in training.
        ids.push(
            stop.ok_or_else(|| Error::Setting("--prompt is empty and the tokenizer has no end of document".into()))?,
        );
    }
    let begin = ids.len();
    generate(&mut cx, &stage, &head, &mut ids, tokens, tokenizer.vocab_size(), model.max_positions, stop, how)?;
    let new: Vec<u32> = ids[begin..].iter().filter(|id| Some(**id) != stop).map(|id| *id as u32).collect();
    let _ = std::io::stdout().flush();
    Ok(format!("{prompt}{}", tokenizer.decode(&new)?))
}
