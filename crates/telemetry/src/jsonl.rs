//! Metrics with full precision: one JSON object a line, one line an iteration.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::MetricsFileError;

/// One value of a metrics line.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// A count.
    Int(u64),
    /// A measurement, written with the fewest digits that read back to the same bits. JSON has no NaN and no infinity:
    /// they become the strings "NaN", "Infinity" and "-Infinity".
    Float(f64),
    /// A text.
    Text(String),
}

impl Metric {
    pub(crate) fn push_json(&self, out: &mut String) {
        match self {
            Metric::Int(value) => out.push_str(&value.to_string()),
            Metric::Float(value) if value.is_finite() => out.push_str(&format!("{value:?}")),
            Metric::Float(value) if value.is_nan() => out.push_str("\"NaN\""),
            Metric::Float(value) => out.push_str(if *value > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" }),
            Metric::Text(text) => push_json_string(text, out),
        }
    }
}

/// A JSON string with its quotes.
pub(crate) fn push_json_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Appends metrics lines to a file. Each line reaches the operating system at once, so a killed run loses none.
#[derive(Debug)]
pub struct JsonlWriter {
    file: File,
    path: PathBuf,
}

impl JsonlWriter {
    /// Opens `path` for appending and creates it when missing. A half line left by a crash is closed with a newline, so
    /// that it cannot swallow the next one.
    pub fn open(path: &Path) -> Result<JsonlWriter, MetricsFileError> {
        let fail = |source| MetricsFileError { action: "open", path: path.to_path_buf(), source };
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(fail)?;
        if file.seek(SeekFrom::End(0)).map_err(fail)? > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last)).map_err(fail)?;
            if last != *b"\n" {
                file.write_all(b"\n").map_err(fail)?;
            }
        }
        Ok(JsonlWriter { file, path: path.to_path_buf() })
    }

    /// Writes one line with the fields in the order given.
    pub fn write(&mut self, fields: &[(&str, Metric)]) -> Result<(), MetricsFileError> {
        let mut line = String::from("{");
        for (i, (name, value)) in fields.iter().enumerate() {
            if i > 0 {
                line.push_str(", ");
            }
            push_json_string(name, &mut line);
            line.push_str(": ");
            value.push_json(&mut line);
        }
        line.push_str("}\n");
        let fail = |source| MetricsFileError { action: "write", path: self.path.clone(), source };
        self.file.write_all(line.as_bytes()).map_err(fail)
    }
}
