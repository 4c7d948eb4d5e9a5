//! argparse (Python 3.11, `allow_abbrev=False`) over a flag table, with one difference: it reports every mistake
//! instead of the first.
//!
//! Rules kept: `--flag value` and `--flag=value`; the last one wins; a token that starts with `-` is a value only if it
//! is a negative number without exponent (`-.5` yes, `-1e-5` no: write `--lr=-1e-5`) or contains a blank; `--` ends flags;
//! no abbreviations; no underscore spellings. Added: `@file` inserts the words of an argument file.

mod argfile;
mod convert;
mod launcher;
pub mod number;
mod suggest;
mod yaml;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

pub use argfile::ReadFile;
pub use launcher::{LauncherWords, split_launcher};
pub(crate) use suggest::edits;
pub use suggest::suggest;

use crate::flags::{Kind, Nargs, Row, Status, Table};
use crate::raw::{Origin, RawArgs};
use crate::value::Value;
use crate::violation::{Severity, Violation};

/// Argument files may name further ones this deep.
const MAX_FILE_DEPTH: usize = 8;
/// Upper bound on words, so that files naming files cannot exhaust memory.
const MAX_TOKENS: usize = 1 << 18;

/// The outcome of parsing: values, every mistake, and whether help was asked for.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Values of all dests, defaults included.
    pub args: RawArgs,
    /// Every mistake, in order of appearance.
    pub violations: Vec<Violation>,
    /// `--help WORDS`: the words to search for, empty for the whole help.
    pub help: Option<String>,
}

#[derive(Clone, Debug)]
struct Token {
    text: String,
    origin: Origin,
}

enum Class<'t> {
    /// A value, or a stray word.
    Word,
    /// A flag of the table, with the text after `=` if there is one.
    Known { row: &'t Row, spelling: &'static str, explicit: Option<String> },
    /// Looks like a flag, but the table has none such.
    Unknown,
    /// `-h` or `--help`.
    Help,
}

/// Parses `argv` (without the program's name) over `table`. `read` opens argument files; see [`crate::read_file`].
pub fn parse(table: &Table, argv: &[String], read: &ReadFile) -> Parsed {
    let mut parsed = Parsed { args: RawArgs::defaults(table), ..Parsed::default() };
    let tokens = expand(table, argv, read, &mut parsed.violations);
    let classes = classify(table, &tokens);
    let words_from = |at: usize| classes[at..].iter().take_while(|c| matches!(c, Class::Word)).count();
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        // `--` is no word: it ends the values of a flag, and argparse then calls it unrecognised.
        let available = if at + 1 < tokens.len() { words_from(at + 1) } else { 0 };
        let dashes = tokens[at + 1..at + 1 + available].iter().position(|t| t.text == "--");
        let available = dashes.unwrap_or(available);
        let values = &tokens[at + 1..at + 1 + available];
        match &classes[at] {
            Class::Word => {
                let run = 1 + words_from(at + 1);
                let words: Vec<&str> = tokens[at..at + run].iter().map(|t| t.text.as_str()).collect();
                let why = match words.iter().find_map(|w| shell_variable(w)) {
                    Some(name) => format!("{name} is a shell variable that was not expanded"),
                    None if at > 0 && tokens[at - 1].text == "--deepspeed" => {
                        "--deepspeed takes no value; its file is named by --deepspeed_config".to_string()
                    }
                    None => "these words follow no flag that takes them".to_string(),
                };
                parsed.violations.push(
                    Violation::new(Severity::Syntax, &[], format!("unrecognised: {}", words.join(" ")))
                        .why(place(&why, &token.origin)),
                );
                at += run;
            }
            Class::Help => {
                parsed.help = Some(values.iter().map(|t| t.text.as_str()).collect::<Vec<_>>().join(" "));
                at += 1 + available;
            }
            Class::Unknown => {
                let (violation, near) = unknown(table, token);
                // Whatever was meant is not missing: it is misspelt.
                for (row, _) in near.iter().filter_map(|name| table.find(name)) {
                    parsed.args.mark_broken(row.flag.dest);
                }
                parsed.violations.push(violation);
                at += 1 + available;
            }
            Class::Known { row, spelling, explicit } => {
                at += 1 + take(
                    &mut parsed,
                    row,
                    spelling,
                    explicit.as_deref(),
                    values,
                    tokens.get(at + 1),
                    &token.origin,
                );
            }
        }
    }
    yaml::apply(table, &mut parsed, read);
    crate::deepspeed::read(&mut parsed, read);
    parsed
}

/// Stores one occurrence of a flag; returns how many of `values` it used.
fn take(
    parsed: &mut Parsed,
    row: &Row,
    spelling: &'static str,
    explicit: Option<&str>,
    values: &[Token],
    next: Option<&Token>,
    origin: &Origin,
) -> usize {
    let flag = row.flag;
    let fault = |parsed: &mut Parsed, what: String, legal: Option<String>| {
        parsed.args.mark_broken(flag.dest);
        let mut violation = Violation::new(Severity::Syntax, &[spelling], format!("{spelling}: {what}"));
        violation.legal = legal;
        if let Some(name) = explicit.or(values.first().map(|t| t.text.as_str())).and_then(shell_variable) {
            violation.why = Some(place(&format!("{name} is a shell variable that was not expanded"), origin));
        } else if let Origin::File { .. } = origin {
            violation.why = Some(place("written", origin));
        }
        parsed.violations.push(violation);
    };
    if let Status::Removed(instead) = row.status {
        parsed.args.mark_broken(flag.dest);
        let violation = Violation::new(Severity::Invalid, &[spelling], format!("{spelling} was removed from Megatron"));
        parsed.violations.push(violation.legal(instead));
        return if flag.kind.is_switch() || explicit.is_some() { 0 } else { values.len().min(1) };
    }
    if flag.kind.is_switch() {
        if let Some(text) = explicit {
            fault(parsed, format!("takes no value, got '{text}'"), Some(format!("{spelling} alone")));
            return 0;
        }
        let on = match flag.kind {
            Kind::StoreFalse => false,
            Kind::BooleanOptional => !spelling.starts_with("--no-"),
            _ => true,
        };
        parsed.args.set(flag.dest, Value::Bool(on), origin.clone(), spelling);
        return 0;
    }
    let (least, most) = match flag.nargs {
        Nargs::One => (1, 1),
        Nargs::Any => (0, usize::MAX),
        Nargs::Some | Nargs::OneUp => (1, usize::MAX),
        Nargs::Exactly(n) => (n, n),
    };
    let texts: Vec<&str> = match explicit {
        Some(text) => vec![text],
        None => values.iter().take(most).map(|t| t.text.as_str()).collect(),
    };
    let used = if explicit.is_some() { 0 } else { texts.len() };
    if texts.len() < least {
        let expected = match flag.nargs {
            Nargs::Some | Nargs::OneUp => "at least one value".to_string(),
            _ if least == 1 => "one value".to_string(),
            _ => format!("{least} values"),
        };
        // `--lr -1e-5`: the number reads as a flag. One message says so, and the number is not reported again.
        let lost = next.filter(|t| explicit.is_none() && texts.is_empty() && number::py_float(&t.text).is_some());
        let legal = match lost {
            Some(t) => format!("{spelling}={} (after a blank, {0} reads as a flag by argparse's rule)", t.text),
            None => format!("{spelling} {}", placeholder(row)),
        };
        fault(parsed, format!("expected {expected}, got {}", texts.len()), Some(legal));
        return used + usize::from(lost.is_some());
    }
    let mut converted = Vec::with_capacity(texts.len());
    for text in texts {
        match convert::convert(flag, text) {
            Ok(value) => converted.push(value),
            Err((what, legal)) => {
                fault(parsed, what, legal);
                return used;
            }
        }
    }
    let value = match flag.nargs {
        Nargs::One => converted.pop().unwrap_or(Value::None),
        Nargs::OneUp if converted.len() == 1 => converted.pop().unwrap_or(Value::None),
        _ => Value::List(converted),
    };
    parsed.args.set(flag.dest, value, origin.clone(), spelling);
    used
}

fn placeholder(row: &Row) -> String {
    let one = if row.flag.choices.is_empty() {
        format!("<{}>", row.flag.kind.word())
    } else {
        format!("{{{}}}", row.flag.choices.join(","))
    };
    match row.flag.nargs {
        Nargs::Exactly(n) => vec![one; n].join(" "),
        Nargs::Any | Nargs::Some | Nargs::OneUp => format!("{one} ..."),
        Nargs::One => one,
    }
}

/// The mistake, and the flags that may have been meant.
fn unknown(table: &Table, token: &Token) -> (Violation, Vec<&'static str>) {
    let written = token.text.split('=').next().unwrap_or_default();
    let mut violation = Violation::new(Severity::Syntax, &[written], format!("unknown flag {written}"));
    if number::py_float(&token.text).is_some() {
        let why = "a negative number with an exponent reads as a flag, by argparse's rule; join it to its flag with =";
        return (violation.why(why), Vec::new());
    }
    let near = suggest(table, written);
    if !near.is_empty() {
        violation.what.push_str(&format!("; did you mean {}?", near.join(" or ")));
        if written.contains('_') && near.len() == 1 {
            violation.why = Some("flags are spelt with dashes".to_string());
        } else if near.iter().any(|n| n.starts_with(written)) {
            violation.why = Some("abbreviations are not accepted, as in Megatron".to_string());
        }
    }
    if let Origin::File { .. } = token.origin {
        violation.arithmetic = Some(place("written", &token.origin));
    }
    (violation, near)
}

/// `$NAME` or `${NAME...}` in a word: what a shell, an argument file's author or a template engine left there.
pub(crate) fn shell_variable(word: &str) -> Option<&str> {
    let start = word.find('$')?;
    let rest = word[start + 1..].strip_prefix('{').unwrap_or(&word[start + 1..]);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return None;
    }
    let braced = word[start + 1..].starts_with('{');
    let end = word.len() - rest.len() + rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    let end = if braced { word[end..].find('}').map_or(end, |i| end + i + 1) } else { end };
    Some(&word[start..end])
}

fn place(prefix: &str, origin: &Origin) -> String {
    match origin {
        Origin::File { path, line } => format!("{prefix} ({path}:{line})"),
        _ => prefix.to_string(),
    }
}

fn classify<'t>(table: &'t Table, tokens: &[Token]) -> Vec<Class<'t>> {
    let mut only_words = false;
    let class = |token: &Token| {
        let text = token.text.as_str();
        if only_words || text == "--" {
            only_words = true;
            return Class::Word;
        }
        if !text.starts_with('-') || text.len() == 1 {
            return Class::Word;
        }
        if text == "-h" || text == "--help" {
            return Class::Help;
        }
        if let Some((row, spelling)) = table.find(text) {
            return Class::Known { row, spelling, explicit: None };
        }
        if let Some((name, value)) = text.split_once('=')
            && let Some((row, spelling)) = table.find(name)
        {
            return Class::Known { row, spelling, explicit: Some(value.to_string()) };
        }
        if number::is_negative_number(text) || text.contains(' ') { Class::Word } else { Class::Unknown }
    };
    tokens.iter().map(class).collect()
}

/// Replaces `@file` words by the words of the file, except where the word before is a flag that takes one value.
fn expand(table: &Table, argv: &[String], read: &ReadFile, violations: &mut Vec<Violation>) -> Vec<Token> {
    let mut todo: VecDeque<(Token, usize, PathBuf)> =
        argv.iter().map(|a| (Token { text: a.clone(), origin: Origin::Flag }, 0, PathBuf::new())).collect();
    let mut out: Vec<Token> = Vec::with_capacity(todo.len());
    while let Some((token, depth, folder)) = todo.pop_front() {
        let is_value = out
            .last()
            .and_then(|t| table.find(&t.text))
            .is_some_and(|(row, _)| !row.flag.kind.is_switch() && row.flag.nargs == Nargs::One);
        let name = match token.text.strip_prefix('@') {
            Some(name) if !name.is_empty() && !is_value => name,
            _ => {
                out.push(token);
                continue;
            }
        };
        let path = folder.join(name);
        let words = if depth >= MAX_FILE_DEPTH {
            Err(format!("argument files are nested more than {MAX_FILE_DEPTH} deep"))
        } else {
            read(&path).map_err(|e| e.to_string()).and_then(|text| argfile::words(&text))
        };
        match words {
            Ok(words) if todo.len() + out.len() + words.len() <= MAX_TOKENS => {
                let inner = path.parent().map(Path::to_path_buf).unwrap_or_default();
                let display = path.display().to_string();
                for (text, line) in words.into_iter().rev() {
                    let origin = Origin::File { path: display.clone(), line };
                    todo.push_front((Token { text, origin }, depth + 1, inner.clone()));
                }
            }
            Ok(_) => violations.push(file_fault(&path, &format!("more than {MAX_TOKENS} words in all"))),
            Err(why) => violations.push(file_fault(&path, &why)),
        }
    }
    out
}

fn file_fault(path: &Path, why: &str) -> Violation {
    let what = format!("argument file {}: {why}", path.display());
    Violation::new(Severity::Syntax, &[], what)
}
