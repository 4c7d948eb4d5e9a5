//! A mistake in the command line: what is wrong, the arithmetic, what would be legal, and why.

use std::fmt;

use serde::Serialize;

/// How a violation stops a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Not a command line at all: unknown flag, missing value, wrong type, illegal choice (argparse's exit code 2).
    Syntax,
    /// Required settings that are absent.
    Missing,
    /// Values that contradict each other or a rule of training.
    Invalid,
    /// Legal, but this version cannot train it yet.
    Planned,
}

/// One mistake. All of them are collected before anything starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// How it stops a run.
    pub severity: Severity,
    /// The flags concerned, as the user would write them.
    pub flags: Vec<String>,
    /// What is wrong, in one sentence.
    pub what: String,
    /// The numbers that disagree, worked out.
    pub arithmetic: Option<String>,
    /// What would be accepted.
    pub legal: Option<String>,
    /// The reason for the rule.
    pub why: Option<String>,
}

impl Violation {
    /// A violation with only its sentence.
    pub fn new(severity: Severity, flags: &[&str], what: impl Into<String>) -> Violation {
        let flags = flags.iter().map(|f| f.to_string()).collect();
        Violation { severity, flags, what: what.into(), arithmetic: None, legal: None, why: None }
    }

    /// Adds the worked-out numbers.
    pub fn arithmetic(mut self, text: impl Into<String>) -> Violation {
        self.arithmetic = Some(text.into());
        self
    }

    /// Adds what would be accepted.
    pub fn legal(mut self, text: impl Into<String>) -> Violation {
        self.legal = Some(text.into());
        self
    }

    /// Adds the reason.
    pub fn why(mut self, text: impl Into<String>) -> Violation {
        self.why = Some(text.into());
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.flags.iter().any(|flag| !self.what.contains(flag.as_str())) {
            write!(f, "\n     flags: {}", self.flags.join(" "))?;
        }
        for (label, text) in [("numbers", &self.arithmetic), ("legal", &self.legal), ("why", &self.why)] {
            if let Some(text) = text {
                write!(f, "\n     {label}: {text}")?;
            }
        }
        Ok(())
    }
}

/// All violations as one message, numbered, ready for standard error. `program` opens the first line.
pub fn report(program: &str, violations: &[Violation]) -> String {
    let count = violations.len();
    let refused = violations.iter().any(|v| v.severity != Severity::Planned);
    let head = match (refused, count) {
        (true, 1) => "the command line has 1 mistake".to_string(),
        (true, n) => format!("the command line has {n} mistakes"),
        (false, 1) => "valid, but 1 feature is not there yet".to_string(),
        (false, n) => format!("valid, but {n} features are not there yet"),
    };
    let mut out = format!("{program}: {head}\n");
    for (i, v) in violations.iter().enumerate() {
        out.push_str(&format!("{:>3}. {v}\n", i + 1));
    }
    out
}

/// Exit code of a command line with these violations: 0 trainable, 3 valid but needs a planned feature, 2 refused.
pub fn exit_code(violations: &[Violation]) -> i32 {
    match violations.iter().map(|v| v.severity).find(|s| *s != Severity::Planned) {
        Some(_) => 2,
        None if violations.is_empty() => 0,
        None => 3,
    }
}
