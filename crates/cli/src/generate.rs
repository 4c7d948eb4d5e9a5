//! `ferrotron generate`: a few lines from a checkpoint (ours or Megatron-LM's) or a published model, to look at what it learned.

use std::io::Write;
use std::path::Path;

use ferrotron_checkpoint::Checkpoint;
use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Source};
use ferrotron_config::{
    Environment, RawArgs, Resolved, Table, merge_checkpoint_args, parse, read_file, report, validate,
};
use ferrotron_foreign::Megatron;
use ferrotron_published::Folder;
use ferrotron_train::save_load::{Weights, load_params};
use ferrotron_train::setup::{Built, build_model, open_device, tokenizer};
use ferrotron_train::{Error, Sampling, World, generate};

use crate::table::{count, parse_or_exit, required};

const PROGRAM: &str = "ferrotron generate";

#[rustfmt::skip]
static FLAGS: Group = Group { name: "generate", source: Source::Ferrotron, flags: &[
    Flag::new("--load", "load", Kind::Str, "Folder that a run, or Megatron-LM, saved into, or a Hugging Face folder with a tokenizer.json"),
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
    let how = Sampling {
        temperature: args.float("temperature").unwrap_or(0.0) as f32,
        top_k: count(PROGRAM, args, "top_k")?.max(1) as usize,
        seed: count(PROGRAM, args, "seed")?,
    };
    let tokens = count(PROGRAM, args, "tokens")? as usize;
    let prompt = args.text("prompt").unwrap_or_default();
    let dir = Path::new(dir);
    let written = if Folder::is_one(dir) {
        published(dir).and_then(|(folder, resolved)| text(&folder, &resolved, prompt, tokens, how))
    } else if Megatron::is_one(dir, step) {
        megatron(dir, step).and_then(|(checkpoint, resolved)| text(&checkpoint, &resolved, prompt, tokens, how))
    } else {
        let checkpoint = Checkpoint::open(dir, step).map_err(Error::from);
        checkpoint.and_then(|c| text(&c, &arguments_of(&c)?, prompt, tokens, how))
    };
    written.map_err(|e| crate::fail(PROGRAM, e))
}

/// A published model, and the arguments that describe it.
fn published(dir: &Path) -> Result<(Folder, Resolved), Error> {
    let folder = Folder::open(dir)?;
    let saved = ferrotron_published::arguments(dir)?;
    if !saved.contains_key("tokenizer_type") {
        return Err(Error::Setting(format!("{} has no tokenizer.json", dir.display())));
    }
    Ok((folder, described(&dir.display().to_string(), &saved)?))
}

/// A checkpoint that Megatron-LM saved, and its run's arguments.
pub(crate) fn megatron(dir: &Path, step: Option<u64>) -> Result<(Megatron, Resolved), Error> {
    let checkpoint = Megatron::open(dir, step)?;
    let resolved = described(&checkpoint.dir().display().to_string(), &checkpoint.arguments()?)?;
    Ok((checkpoint, resolved))
}

/// The run's own arguments describe the model.
pub(crate) fn arguments_of(checkpoint: &Checkpoint) -> Result<Resolved, Error> {
    described("arguments of the checkpoint", &checkpoint.common().arguments)
}

/// What arguments of a model lack of training is filled in with placeholders.
fn described(whose: &str, saved: &serde_json::Map<String, serde_json::Value>) -> Result<Resolved, Error> {
    let table = Table::pretrain();
    let filler = ["--mock-data", "--micro-batch-size", "1", "--train-iters", "1", "--lr", "0", "--seq-length", "1"];
    let filler: Vec<String> = filler.iter().map(|s| s.to_string()).collect();
    let mut parsed = parse(&table, &filler, &read_file);
    merge_checkpoint_args(&mut parsed.args, saved);
    validate(&table, parsed.args, &Environment::default(), parsed.violations)
        .map_err(|refused| Error::Setting(report(whose, &refused.violations)))
}

fn text(
    weights: &impl Weights,
    resolved: &Resolved,
    prompt: &str,
    tokens: usize,
    how: Sampling,
) -> Result<String, Error> {
    let config = &resolved.config;
    let (tokenizer, vocab) = tokenizer(config)?;
    let device = open_device(config, &Environment::default(), 0, 1)?;
    let Built { mut cx, stage, head, model } = build_model(config, vocab, device, &World::alone(&config.parallel)?)?;
    let head = head.ok_or_else(|| Error::Setting("the model has no head".into()))?;
    load_params(&cx, weights)?;

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
