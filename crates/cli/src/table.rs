//! Parsing with the small flag tables of the tools.

use ferrotron_config::flags::{Group, Status};
use ferrotron_config::show::help;
use ferrotron_config::{RawArgs, Table, exit_code, parse, read_file, report};

/// Parses a tool's arguments. `Err` holds the exit code when help was asked for or something is wrong, already printed.
pub fn parse_or_exit(program: &str, group: &Group, argv: &[String]) -> Result<RawArgs, u8> {
    let table = Table::new([group], |_, _| Status::Acts);
    let parsed = parse(&table, argv, &read_file);
    if let Some(words) = parsed.help {
        print!("{}", help(program, &table, &words));
        return Err(0);
    }
    if !parsed.violations.is_empty() {
        eprint!("{}", report(program, &parsed.violations));
        return Err(exit_code(&parsed.violations) as u8);
    }
    Ok(parsed.args)
}

/// The text of a flag that must be given.
pub fn required<'a>(program: &str, args: &'a RawArgs, dest: &str) -> Result<&'a str, u8> {
    args.text(dest).ok_or_else(|| {
        eprintln!("{program}: {} is required; see {program} --help", args.spelling(dest));
        2
    })
}

/// A whole number that is not negative, as the table's default or typed.
pub fn count(program: &str, args: &RawArgs, dest: &str) -> Result<u64, u8> {
    let n = args.int(dest).unwrap_or(0);
    u64::try_from(n).map_err(|_| {
        eprintln!("{program}: {} must not be negative, and is {n}", args.spelling(dest));
        2
    })
}
