//! `ferrotron curve`: draws the loss curve of a log, ours or Megatron's, in the terminal.

use std::collections::BTreeMap;

use ferrotron_config::flags::{Fallback, Flag, Group, Kind, Nargs, Source};
use ferrotron_telemetry::{Curve, Glyphs};

use crate::table::{count, parse_or_exit};

const PROGRAM: &str = "ferrotron curve";

#[rustfmt::skip]
static FLAGS: Group = Group { name: "curve", source: Source::Ferrotron, flags: &[
    Flag::new("--log", "log", Kind::Str, "Logs with Megatron's training lines, in order").takes(Nargs::Some),
    Flag::new("--name", "name", Kind::Str, "The value to draw, as the line names it").or(Fallback::Str("lm loss")),
    Flag::new("--width", "width", Kind::Int, "Columns").or(Fallback::Int(72)),
    Flag::new("--height", "height", Kind::Int, "Rows").or(Fallback::Int(16)),
    Flag::new("--ascii", "ascii", Kind::StoreTrue, "Draw with ASCII characters"),
] };

/// Parses and runs; gives the exit code.
pub fn run(argv: &[String]) -> u8 {
    let args = match parse_or_exit(PROGRAM, &FLAGS, argv) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let name = args.text("name").unwrap_or("lm loss").to_string();
    let (width, height) = match (count(PROGRAM, &args, "width"), count(PROGRAM, &args, "height")) {
        (Ok(w), Ok(h)) => (w.clamp(20, 500) as usize, h.clamp(4, 100) as usize),
        (Err(code), _) | (_, Err(code)) => return code,
    };
    let mut points = BTreeMap::new();
    for path in args.texts("log") {
        match std::fs::read(&path) {
            // A later line of the same iteration wins: a resumed run repeats none, a restarted one replaces.
            Ok(bytes) => points.extend(String::from_utf8_lossy(&bytes).lines().filter_map(|l| point(l, &name))),
            Err(e) => return crate::fail(PROGRAM, format!("cannot read {path}: {e}")),
        }
    }
    let points: Vec<(u64, f64)> = points.into_iter().collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return crate::fail(PROGRAM, format!("no training line with {name:?} in the logs; give them with --log"));
    };
    let title = format!("{name}: {:.4} at iteration {}, {:.4} at iteration {}", first.1, first.0, last.1, last.0);
    let glyphs = if args.flag("ascii") { Glyphs::Ascii } else { Glyphs::Braille };
    println!("{}", Curve { title, width, height, glyphs }.draw(&points).trim_end());
    0
}

/// Iteration and value of a training line.
fn point(line: &str, name: &str) -> Option<(u64, f64)> {
    let mut fields = line.split('|').map(str::trim);
    let head = fields.next()?;
    let done = head.rsplit_once("iteration")?.1.split_once('/')?.0.trim().parse().ok()?;
    let value = fields.find_map(|f| f.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()?;
    Some((done, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_new_and_old_lines() {
        let new = " [2026-01-01 00:00:00.000000] iteration       10/     100 | consumed samples:          160 | \
                   elapsed time per iteration (ms): 123.4 | lm loss: 1.080000E+01 | loss scale: 1.0 |";
        assert_eq!(point(new, "lm loss"), Some((10, 10.8)));
        assert_eq!(point(" iteration        5/      10 | lm loss: 2.5E+00 |", "lm loss"), Some((5, 2.5)));
        assert_eq!(point(" validation loss at iteration 10 | lm loss value: 2.0E+00 |", "lm loss"), None);
        assert_eq!(point("", "lm loss"), None);
    }
}
