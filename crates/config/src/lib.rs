//! Flag tables, the argparse-exact parser, validation: from argv to one immutable [`Config`].
//!
//! ```
//! use ferrotron_config::{Environment, Table, parse, read_file, validate};
//!
//! let argv = ["--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32",
//!     "--micro-batch-size", "1", "--train-iters", "5", "--lr", "1e-3", "--mock-data", "--vocab-size", "100"];
//! let argv: Vec<String> = argv.map(String::from).to_vec();
//! let table = Table::pretrain();
//! let parsed = parse(&table, &argv, &read_file);
//! let resolved = validate(&table, parsed.args, &Environment::default(), parsed.violations).expect("a valid command line");
//! assert_eq!(resolved.config.model.ffn_hidden_size, 256);
//! ```

mod checkpoint_args;
pub mod deepspeed;
pub mod env;
pub mod flags;
pub mod parser;
mod raw;
pub mod settings;
pub mod show;
mod validate;
pub mod value;
mod violation;

use std::path::Path;

pub use checkpoint_args::merge_checkpoint_args;
pub use env::Environment;
pub use flags::Table;
pub use parser::{LauncherWords, Parsed, ReadFile, parse, split_launcher};
pub use raw::{Entry, Origin, RawArgs};
pub use settings::Config;
pub use validate::upstream as rules;
pub use validate::{Notice, NoticeKind, Refused, Resolved, validate};
pub use value::Value;
pub use violation::{Severity, Violation, exit_code, report};

/// Reads an argument file from disk: what [`parse`] takes outside of tests. Stops at 1 MiB, so that a mistyped path to
/// a data file or a pipe is an error and not a flood.
///
/// # Errors
/// The file cannot be read, is no UTF-8, or is too large.
pub fn read_file(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    const LIMIT: u64 = (1 << 20) + 1;
    let mut text = String::new();
    std::fs::File::open(path)?.take(LIMIT).read_to_string(&mut text)?;
    Ok(text)
}
