//! Flag tables, the argparse-exact parser, validation: from argv to one immutable [`Config`].

mod env;
pub mod flags;
pub mod parser;
mod raw;
pub mod settings;
mod validate;
pub mod value;
mod violation;

pub use env::Environment;
pub use flags::Table;
pub use parser::{Parsed, ReadFile, parse};
pub use raw::{Entry, Origin, RawArgs};
pub use settings::Config;
pub use validate::{Notice, NoticeKind, Refused, Resolved, validate};
pub use value::Value;
pub use violation::{Severity, Violation, exit_code, report};
