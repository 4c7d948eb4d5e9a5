//! `--deepspeed_config`: a path, or the JSON itself in URL-safe base64 (deepspeed/runtime/config.py).

use std::path::Path;

use super::hjson::{self, MAX_BYTES};
use super::node::Node;
use crate::parser::ReadFile;
use crate::violation::{Severity, Violation};

/// What messages call a configuration that is no file.
const INLINE: &str = "the base64 text of --deepspeed_config";

/// A configuration that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct File {
    /// Path as written.
    pub name: String,
    /// The outermost object.
    pub root: Node,
}

/// Reads what `flag` names.
pub(super) fn load(flag: &str, word: &str, read: &ReadFile) -> Result<File, Box<Violation>> {
    let (name, text) = match read(Path::new(word)) {
        Ok(text) => (word.to_string(), text),
        Err(e) => match inline(word) {
            Some(text) => (INLINE.to_string(), text),
            None => {
                let v = Violation::new(Severity::Invalid, &[flag], format!("{flag} {word}: {e}"));
                return Err(Box::new(v.legal("a DeepSpeed JSON file, or its text in URL-safe base64")));
            }
        },
    };
    match hjson::read(&text) {
        Ok(root) => Ok(File { name, root }),
        Err(fault) => {
            let what = format!("{name}, line {}, column {}: {}", fault.line, fault.column, fault.what);
            Err(Box::new(Violation::new(Severity::Syntax, &[flag], what).legal(fault.legal)))
        }
    }
}

/// The text of an object in base64, URL-safe or not, with padding or without.
fn inline(word: &str) -> Option<String> {
    let digits = word.trim_end_matches('=').as_bytes();
    if digits.is_empty() || digits.len() % 4 == 1 || digits.len() / 4 > MAX_BYTES / 3 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 3);
    for four in digits.chunks(4) {
        let mut bits = 0u32;
        for digit in four {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'-' | b'+' => 62,
                b'_' | b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let missing = 4 - four.len();
        bits <<= 6 * missing;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - missing]);
    }
    String::from_utf8(bytes).ok().filter(|text| text.trim_start().starts_with('{'))
}
