//! Flag tables, the argparse-exact parser, validation: from argv to one immutable [`Config`].

pub mod flags;
pub mod parser;
mod raw;
pub mod value;
mod violation;

pub use flags::Table;
pub use parser::{Parsed, ReadFile, parse};
pub use raw::{Entry, Origin, RawArgs};
pub use value::Value;
pub use violation::{Severity, Violation, exit_code, report};
