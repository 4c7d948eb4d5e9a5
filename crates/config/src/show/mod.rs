//! What the user sees of a command line: the arguments dump, the effective configuration, help, notices.

mod config;
mod dump;
mod help;
mod startup;

pub use config::{print_json, print_text};
pub use dump::arguments_dump;
pub use help::help;
pub use startup::startup_lines;

use crate::validate::{Notice, NoticeKind};

/// All notices as text, one a line: adjustments, then flags without effect, then warnings.
pub fn notices_text(notices: &[Notice]) -> String {
    let mut out = String::new();
    for (kind, label) in
        [(NoticeKind::Adjusted, "note"), (NoticeKind::NoEffect, "note"), (NoticeKind::Warning, "WARNING")]
    {
        for notice in notices.iter().filter(|n| n.kind == kind) {
            out.push_str(&format!("{label}: {}\n", notice.text));
        }
    }
    out
}
