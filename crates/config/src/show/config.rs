//! `--print-config`: every effective value and where it comes from.

use serde_json::{Map, Value as Json, json};

use crate::raw::{Origin, RawArgs};
use crate::settings::Config;
use crate::validate::Notice;

/// JSON with `args` (dest to value, origin and flag; defaults included), `notices`, and `config` if the command line is
/// valid.
pub fn print_json(args: &RawArgs, notices: &[Notice], config: Option<&Config>) -> String {
    let rows: Map<String, Json> = args
        .iter()
        .map(|(dest, e)| {
            (dest.to_string(), json!({"value": e.value.to_json(), "origin": e.origin, "flag": e.spelling}))
        })
        .collect();
    let whole = json!({"args": rows, "notices": notices, "config": config});
    format!("{whole:#}\n")
}

/// The values that are not defaults, one a line, each with its origin.
pub fn print_text(args: &RawArgs) -> String {
    let mut out = String::new();
    for (dest, entry) in args.iter() {
        let origin = match &entry.origin {
            Origin::Default => continue,
            Origin::Flag => "command line".to_string(),
            Origin::File { path, line } => format!("{path}:{line}"),
            Origin::Yaml { path, line } => format!("{path}:{line}"),
            Origin::DeepSpeed { path, line, key } => format!("{path}:{line}, {key}"),
            Origin::Checkpoint => "checkpoint".to_string(),
            Origin::Derived(rule) => format!("derived: {rule}"),
        };
        out.push_str(&format!("{dest} = {}  ({origin})\n", entry.value));
    }
    out
}
