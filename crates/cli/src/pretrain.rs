//! `pretrain_gpt`: Megatron's command line, trained.

use std::path::{Path, PathBuf};

use ferrotron_backends::DeviceOptions;
use ferrotron_checkpoint::Checkpoint;
use ferrotron_comm::env::{Launcher, RankEnv};
use ferrotron_config::env::suspicious;
use ferrotron_config::settings::DeviceKind;
use ferrotron_config::show::{arguments_dump, help, notices_text, print_json, print_text, startup_lines};
use ferrotron_config::{
    Environment, LauncherWords, NoticeKind, Resolved, Table, exit_code, merge_checkpoint_args, parse, read_file,
    report, split_launcher, validate,
};
use ferrotron_telemetry::Timestamp;
use ferrotron_telemetry::lines::{self, Event};
use ferrotron_train::{dry, lr_table};

/// Program name in messages.
const PROGRAM: &str = "pretrain_gpt";

/// Parses, validates and trains; gives the exit code. Words of a launcher before the flags are passed over, so that a line
/// may be pasted whole.
pub fn run(argv: &[String], variable: impl Fn(&str) -> Option<String>) -> u8 {
    let table = Table::pretrain();
    let (launcher, argv) = split_launcher(argv);
    let mut parsed = parse(&table, argv, &read_file);
    if let Some(words) = parsed.help {
        print!("{}", help(PROGRAM, &table, &words));
        return 0;
    }
    let (mut env, env_faults) = Environment::from_vars(&variable);
    parsed.violations.extend(env_faults);
    // Nobody else is there to have a rank: a dry run speaks for all ranks of a world.
    let dry_run = parsed.args.flag("dry_run");
    let told = dry_run && variable("WORLD_SIZE").is_some() && variable("RANK").is_none_or(|v| v.is_empty());
    let told = told.then_some(env.world_size);
    let variable = |name: &str| if told.is_some() && name == "WORLD_SIZE" { None } else { variable(name) };
    let place = match RankEnv::read(&variable) {
        Ok(place) => place,
        Err(e) => return crate::fail(PROGRAM, e),
    };
    (env.world_size, env.rank, env.local_rank) = (place.world, place.rank, place.local_rank);
    env.world_size = told.unwrap_or(env.world_size);
    let threads = parsed.args.int("thread_ranks").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    if place.launcher == Launcher::None && threads > 0 {
        env.world_size = threads;
    }
    if parsed.args.flag("use_checkpoint_args")
        && let Err(e) = take_checkpoint_args(&mut parsed.args)
    {
        return crate::fail(PROGRAM, e);
    }
    let print_config = parsed.args.text("print_config").map(str::to_string);
    if place.launcher == Launcher::None
        && threads == 0
        && let Some(n) = launcher.world_size().filter(|n| *n > 1)
    {
        if !dry_run && print_config.is_none() {
            return crate::fail(PROGRAM, nobody_launched(n, &launcher));
        }
        env.world_size = n;
    }
    // One rank speaks for all about what all of them see.
    let speaks = env.rank == 0;

    match validate(&table, parsed.args, &env, parsed.violations) {
        Err(refused) => {
            if speaks && print_config.as_deref() == Some("json") {
                print!("{}", print_json(&refused.args, &refused.notices, None));
            }
            if speaks {
                eprint!("{}", report(PROGRAM, &refused.violations));
            }
            exit_code(&refused.violations) as u8
        }
        Ok(resolved) => match print_config.as_deref() {
            Some(_) if !speaks => 0,
            Some("json") => {
                print!("{}", print_json(&resolved.args, &resolved.notices, Some(&resolved.config)));
                0
            }
            Some(_) => {
                print!("{}", print_text(&resolved.args));
                0
            }
            None if dry_run => {
                if speaks {
                    return forecast(&resolved);
                }
                0
            }
            None => {
                if speaks {
                    announce(&table, &resolved, &env);
                }
                crate::ranks::run(PROGRAM, &resolved, &env, &place)
            }
        },
    }
}

/// Model shape and tokenizer of the checkpoint, where the command line is silent: of `--load`, or while that holds nothing of
/// `--pretrained-checkpoint`.
fn take_checkpoint_args(args: &mut ferrotron_config::RawArgs) -> Result<(), String> {
    let step = args.int("ckpt_step").and_then(|n| u64::try_from(n).ok());
    let dirs: Vec<PathBuf> =
        ["load", "pretrained_checkpoint"].iter().filter_map(|flag| args.text(flag).map(PathBuf::from)).collect();
    let mut found = Err("--use-checkpoint-args needs --load or --pretrained-checkpoint: it names no checkpoint".into());
    for dir in &dirs {
        let saved = saved_args(dir, step);
        let empty = match &saved {
            Err(ferrotron_train::Error::Checkpoint(e)) => {
                matches!(**e, ferrotron_checkpoint::Error::NothingToLoad { .. })
            }
            _ => false,
        };
        found = saved.map_err(|e| e.to_string());
        if !empty {
            break;
        }
    }
    let (place, saved) = found?;
    let taken = merge_checkpoint_args(args, &saved);
    println!("took from checkpoint {}: {}", place.display(), taken.join(" "));
    Ok(())
}

/// The arguments that a checkpoint or a published model states, and where.
fn saved_args(dir: &Path, step: Option<u64>) -> Result<(PathBuf, Arguments), ferrotron_train::Error> {
    if ferrotron_published::Folder::is_one(dir) {
        return Ok((dir.join("config.json"), ferrotron_published::arguments(dir)?));
    }
    if ferrotron_foreign::Megatron::is_one(dir, step) {
        let checkpoint = ferrotron_foreign::Megatron::open(dir, step)?;
        return Ok((checkpoint.dir().to_path_buf(), checkpoint.arguments()?));
    }
    let checkpoint = Checkpoint::open(dir, step)?;
    Ok((checkpoint.dir().to_path_buf(), checkpoint.common().arguments.clone()))
}

/// Arguments by destination.
type Arguments = serde_json::Map<String, serde_json::Value>;

/// The words of a launcher asked for `n` ranks, but no launcher started this process.
fn nobody_launched(n: usize, launcher: &LauncherWords) -> String {
    let words = launcher.words.join(" ");
    format!(
        "the words of a launcher ({words}) ask for {n} ranks, but no launcher started this program; put `ferrotron launch` in \
         their place, or drop them and add --thread-ranks {n}"
    )
}

/// `--dry-run`: what would be trained, with which values, from where; and one step of all ranks on the dry device.
fn forecast(resolved: &Resolved) -> u8 {
    print!("{}", notices_text(&resolved.notices));
    print!("{}", print_text(&resolved.args));
    match lr_table(&resolved.config) {
        Ok(table) => print!("{table}"),
        Err(e) => return crate::fail(PROGRAM, e),
    }
    match dry::one_step(resolved) {
        Ok(report) => println!("\n{report}"),
        // A tokenizer that is not on this machine makes no command line wrong.
        Err(e @ ferrotron_train::Error::Tokenizer(_)) => {
            println!("\nno step on the dry device without a tokenizer, or --vocab-size: {e}");
            match dry::bubble(&resolved.config) {
                Ok(bubble) => bubble.iter().for_each(|b| println!("{b}")),
                Err(e) => return crate::fail(PROGRAM, e),
            }
        }
        Err(e) => return crate::fail(PROGRAM, e),
    }
    println!("{PROGRAM}: the command line is valid and can be trained");
    0
}

/// The kind that `auto` stands for on this machine, and why. Without any device it stays as it is, and opening one says
/// why.
fn device_kind(asked: DeviceKind) -> (DeviceKind, Vec<String>) {
    if asked != DeviceKind::Auto {
        return (asked, vec![]);
    }
    let Ok(choice) = ferrotron_backends::select("auto", &DeviceOptions::default()) else { return (asked, vec![]) };
    let kind = match choice.name() {
        "npu" => DeviceKind::Npu,
        "cuda" => DeviceKind::Cuda,
        _ => DeviceKind::Cpu,
    };
    (kind, choice.why)
}

/// What rank 0 prints before anything starts.
fn announce(table: &Table, resolved: &Resolved, env: &Environment) {
    for line in startup_lines(resolved) {
        println!("{line}");
    }
    print!("{}", arguments_dump(table, &resolved.args));
    let (kind, why) = device_kind(resolved.config.device);
    for line in why.into_iter().chain(env.lines(kind)) {
        println!("{line}");
    }
    print!("{}", notices_text(&resolved.notices));
    for warning in resolved.notices.iter().filter(|n| n.kind == NoticeKind::Warning) {
        eprintln!("{PROGRAM}: warning: {}", warning.text);
    }
    let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    for (name, meant) in suspicious(names.iter().map(String::as_str)) {
        eprintln!("{PROGRAM}: warning: environment variable {name} is not known; did you mean {meant}?");
    }
    println!("{}", lines::event(Event::Initialized, Timestamp::now()));
}
