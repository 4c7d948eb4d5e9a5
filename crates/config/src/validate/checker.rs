//! The state that all rules share: values, the environment, and what was found so far.

use crate::env::Environment;
use crate::flags::{Source, Table};
use crate::raw::RawArgs;
use crate::value::Value;
use crate::violation::{Severity, Violation};

use super::{Notice, NoticeKind};

/// Largest size: positions, token counts and dimensions are 32-bit in kernels and files.
const MAX_SIZE: i64 = i32::MAX as i64;

pub(crate) struct Checker<'e> {
    pub args: RawArgs,
    pub env: &'e Environment,
    pub violations: Vec<Violation>,
    pub notices: Vec<Notice>,
    /// Parsers beside Megatron main's whose flags were written: their scripts follow their rules.
    pub dialects: Vec<Source>,
    missing: Vec<(String, String)>,
}

impl<'e> Checker<'e> {
    pub fn new(table: &Table, args: RawArgs, env: &'e Environment, violations: Vec<Violation>) -> Checker<'e> {
        let mut dialects = Vec::new();
        for (_, entry) in args.iter().filter(|(dest, _)| args.given(dest)) {
            let source = table.find(&entry.spelling).map(|(row, _)| row.source);
            dialects.extend(source.filter(|s| !dialects.contains(s)));
        }
        Checker { args, env, violations, notices: Vec::new(), dialects, missing: Vec::new() }
    }

    /// True if a flag was written that only this parser defines.
    pub fn speaks(&self, dialect: Source) -> bool {
        self.dialects.contains(&dialect)
    }

    /// Records a contradiction between `flags`.
    pub fn invalid(&mut self, flags: &[&str], what: impl Into<String>) -> &mut Violation {
        self.push(Violation::new(Severity::Invalid, flags, what))
    }

    /// Records something legal that cannot be trained yet.
    pub fn planned(&mut self, flags: &[&str], what: impl Into<String>) -> &mut Violation {
        self.push(Violation::new(Severity::Planned, flags, what))
    }

    fn push(&mut self, violation: Violation) -> &mut Violation {
        let at = self.violations.len();
        self.violations.push(violation);
        &mut self.violations[at]
    }

    pub fn notice(&mut self, kind: NoticeKind, text: impl Into<String>) {
        self.notices.push(Notice { kind, text: text.into() });
    }

    pub fn warn(&mut self, text: impl Into<String>) {
        self.notice(NoticeKind::Warning, text);
    }

    /// Completes a value, as upstream does, and says so in its origin.
    pub fn derive(&mut self, dest: &str, value: Value, rule: &str) {
        self.args.derive(dest, value, rule);
    }

    /// The same for a size.
    pub fn derive_size(&mut self, dest: &str, value: usize, rule: &str) {
        self.derive(dest, Value::Int(i64::try_from(value).unwrap_or(i64::MAX)), rule);
    }

    /// Something required is absent; all of these become one message. Silent if it was written but unreadable.
    pub fn missing(&mut self, dest: &str, flag: &str, meaning: &str) {
        if !self.args.is_broken(dest) {
            self.missing.push((flag.to_string(), meaning.to_string()));
        }
    }

    pub fn report_missing(&mut self) {
        if self.missing.is_empty() {
            return;
        }
        let missing = std::mem::take(&mut self.missing);
        let flags: Vec<&str> = missing.iter().map(|(flag, _)| flag.as_str()).collect();
        let lines: Vec<String> =
            missing.iter().map(|(flag, meaning)| format!("\n       {flag:<28} {meaning}")).collect();
        let what = format!("required, but not given:{}", lines.concat());
        self.violations.push(Violation::new(Severity::Missing, &flags, what));
    }

    /// A size: at least 1 and 32-bit. `None` if unset or wrong.
    pub fn size(&mut self, dest: &str) -> Option<usize> {
        self.count_from(dest, 1).and_then(|n| usize::try_from(n).ok())
    }

    /// A size that must be there.
    pub fn required_size(&mut self, dest: &str, meaning: &str) -> usize {
        if self.args.value(dest).is_none() {
            let flag = self.args.spelling(dest);
            self.missing(dest, &flag, meaning);
        }
        self.size(dest).unwrap_or(0)
    }

    /// An integer of at least `least` and at most 32 bits. `None` if unset or wrong.
    pub fn count_from(&mut self, dest: &str, least: i64) -> Option<u64> {
        self.ranged(dest, least, MAX_SIZE)
    }

    /// A 64-bit count (samples, iterations) of at least `least`.
    pub fn long_from(&mut self, dest: &str, least: i64) -> Option<u64> {
        self.ranged(dest, least, i64::MAX / 4096)
    }

    /// A 64-bit count of tokens, of which samples are made, of at least `least`: scripts write a number that is never reached.
    pub fn tokens_from(&mut self, dest: &str, least: i64) -> Option<u64> {
        self.ranged(dest, least, i64::MAX)
    }

    fn ranged(&mut self, dest: &str, least: i64, most: i64) -> Option<u64> {
        let value = self.args.int(dest)?;
        if (least..=most).contains(&value) {
            return u64::try_from(value).ok();
        }
        let flag = self.args.spelling(dest);
        self.invalid(&[&flag], format!("{flag} {value} is out of range")).legal = Some(format!("{least} to {most}"));
        self.args.mark_broken(dest);
        None
    }

    /// A finite float of at least `least`. `None` if unset or wrong.
    pub fn real_from(&mut self, dest: &str, least: f64) -> Option<f64> {
        self.real(dest, &format!("a finite number of at least {least}"), |x| x >= least)
    }

    /// A finite float that `legal` accepts. `None` if unset or wrong.
    pub fn real(&mut self, dest: &str, words: &str, legal: impl Fn(f64) -> bool) -> Option<f64> {
        let value = self.args.float(dest)?;
        if value.is_finite() && legal(value) {
            return Some(value);
        }
        let flag = self.args.spelling(dest);
        let shown = self.args.value(dest).to_string();
        self.invalid(&[&flag], format!("{flag} {shown} is out of range")).legal = Some(words.to_string());
        self.args.mark_broken(dest);
        None
    }

    /// A path, if set and not empty.
    pub fn path(&self, dest: &str) -> Option<std::path::PathBuf> {
        self.args.text(dest).filter(|s| !s.is_empty()).map(Into::into)
    }

    /// True if any of the dests was given, on the command line or in a file.
    pub fn given_any(&self, dests: &[&str]) -> bool {
        dests.iter().any(|d| self.args.given(d))
    }
}

/// Divisors of `n` in increasing order, for messages.
pub(super) fn divisors(n: usize) -> Vec<usize> {
    let mut small = Vec::new();
    let mut large = Vec::new();
    let mut d = 1;
    while d <= n / d && d < 1 << 16 {
        if n.is_multiple_of(d) {
            small.push(d);
            if d != n / d {
                large.push(n / d);
            }
        }
        d += 1;
    }
    small.extend(large.into_iter().rev());
    small
}

/// `1, 2, 3, 6`, cut after twelve.
pub(super) fn list(numbers: &[usize]) -> String {
    let shown: Vec<String> = numbers.iter().take(12).map(usize::to_string).collect();
    let dots = if numbers.len() > 12 { ", ..." } else { "" };
    format!("{}{dots}", shown.join(", "))
}

/// `1 rank`, `4 ranks`.
pub(crate) fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
