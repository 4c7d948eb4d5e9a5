//! `pretrain_gpt`: Megatron's command line, trained.

use std::path::Path;

use ferrotron_checkpoint::Checkpoint;
use ferrotron_comm::env::{Launcher, RankEnv};
use ferrotron_config::show::{arguments_dump, help, notices_text, print_json, print_text, startup_lines};
use ferrotron_config::{
    Environment, NoticeKind, Resolved, Table, exit_code, merge_checkpoint_args, parse, read_file, report, validate,
};
use ferrotron_telemetry::Timestamp;
use ferrotron_telemetry::lines::{self, Event};

/// Program name in messages.
const PROGRAM: &str = "pretrain_gpt";

/// Parses, validates and trains; gives the exit code.
pub fn run(argv: &[String], variable: impl Fn(&str) -> Option<String>) -> u8 {
    let table = Table::pretrain();
    let mut parsed = parse(&table, argv, &read_file);
    if let Some(words) = parsed.help {
        print!("{}", help(PROGRAM, &table, &words));
        return 0;
    }
    let (mut env, env_faults) = Environment::from_vars(&variable);
    parsed.violations.extend(env_faults);
    let place = match RankEnv::read(&variable) {
        Ok(place) => place,
        Err(e) => return crate::fail(PROGRAM, e),
    };
    (env.world_size, env.rank, env.local_rank) = (place.world, place.rank, place.local_rank);
    let threads = parsed.args.int("thread_ranks").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    if place.launcher == Launcher::None && threads > 0 {
        env.world_size = threads;
    }
    if parsed.args.flag("use_checkpoint_args")
        && let Err(e) = take_checkpoint_args(&mut parsed.args)
    {
        return crate::fail(PROGRAM, e);
    }
    let dry_run = parsed.args.flag("dry_run");
    let print_config = parsed.args.text("print_config").map(str::to_string);
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
                    print!("{}", notices_text(&resolved.notices));
                    println!("{PROGRAM}: the command line is valid and can be trained");
                }
                0
            }
            None => {
                if speaks {
                    announce(&table, &resolved);
                }
                crate::ranks::run(PROGRAM, &resolved, &env, &place)
            }
        },
    }
}

/// Model shape and tokenizer of the checkpoint, where the command line is silent.
fn take_checkpoint_args(args: &mut ferrotron_config::RawArgs) -> Result<(), String> {
    let flag = if args.text("load").is_some() { "load" } else { "pretrained_checkpoint" };
    let Some(dir) = args.text(flag) else {
        return Err("--use-checkpoint-args needs --load or --pretrained-checkpoint: it names no checkpoint".into());
    };
    let step = args.int("ckpt_step").and_then(|n| u64::try_from(n).ok());
    let checkpoint = Checkpoint::open(Path::new(dir), step).map_err(|e| e.to_string())?;
    let taken = merge_checkpoint_args(args, &checkpoint.common().arguments);
    println!("took from checkpoint {}: {}", checkpoint.dir().display(), taken.join(" "));
    Ok(())
}

/// What rank 0 prints before anything starts.
fn announce(table: &Table, resolved: &Resolved) {
    for line in startup_lines(resolved) {
        println!("{line}");
    }
    print!("{}", arguments_dump(table, &resolved.args));
    print!("{}", notices_text(&resolved.notices));
    for warning in resolved.notices.iter().filter(|n| n.kind == NoticeKind::Warning) {
        eprintln!("{PROGRAM}: warning: {}", warning.text);
    }
    println!("{}", lines::event(Event::Initialized, Timestamp::now()));
}
