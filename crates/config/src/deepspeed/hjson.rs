//! A reader of Hjson, in which DeepSpeed reads its files: JSON with comments (`#`, `//`, `/* */`), trailing and missing
//! commas, names and texts without quotes, single quotes, texts of several lines, and an outermost object without braces.
//!
//! A text without quotes runs to the end of its line, commas and braces included (hjson.github.io/syntax.html); a number,
//! `true`, `false` or `null` ends before a comma, a bracket or a comment. A name that stands twice in an object is a mistake, as
//! DeepSpeed has it.

use std::collections::HashSet;

use super::node::{Data, Node};

/// Largest file; real ones have a few thousand bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Objects and lists may nest this deep.
const MAX_DEPTH: usize = 32;
/// Most values of a file.
const MAX_NODES: usize = 100_000;
/// Longest number.
const MAX_NUMBER: usize = 64;

/// Why a text is no Hjson, where, and what would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub line: usize,
    pub column: usize,
    pub what: String,
    pub legal: &'static str,
}

/// The outermost object of a text.
pub(super) fn read(text: &str) -> Result<Node, Fault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut r = Reader { text, bytes: text.as_bytes(), at: 0, line: 1, line_start: 0, nodes: 0 };
    if text.len() > MAX_BYTES {
        return Err(r.fault("more than 1 MiB of text", "a DeepSpeed configuration"));
    }
    r.blank()?;
    let (line, column) = r.place();
    let node = match r.peek() {
        None => return Err(r.fault("nothing is written here", "an object: { \"train_batch_size\": 8 }")),
        Some(b'[') => return Err(r.fault("a list, where DeepSpeed wants an object", "{ ... } around names and values")),
        Some(b'{') => r.value(0)?,
        Some(_) => Node { data: Data::Object(r.members(None, 0)?), line, column },
    };
    r.blank()?;
    if r.peek().is_some() {
        return Err(r.fault("text after the end of the object", "one object, with its closing } at the end"));
    }
    Ok(node)
}

struct Reader<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    line: usize,
    line_start: usize,
    nodes: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn starts(&self, word: &str) -> bool {
        self.bytes[self.at..].starts_with(word.as_bytes())
    }

    /// One byte on; a line break counts.
    fn bump(&mut self) {
        if self.peek() == Some(b'\n') {
            self.line += 1;
            self.line_start = self.at + 1;
        }
        self.at += 1;
    }

    fn place(&self) -> (usize, usize) {
        (self.line, self.at - self.line_start + 1)
    }

    fn fault(&self, what: impl Into<String>, legal: &'static str) -> Fault {
        let (line, column) = self.place();
        Fault { line, column, what: what.into(), legal }
    }

    /// Passes over blanks and comments.
    fn blank(&mut self) -> Result<(), Fault> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.bump(),
                Some(b'#') => self.rest_of_line(),
                Some(b'/') if self.starts("//") => self.rest_of_line(),
                Some(b'/') if self.starts("/*") => {
                    let opened = self.fault("a comment /* is not closed", "*/ at its end");
                    while !self.starts("*/") {
                        if self.peek().is_none() {
                            return Err(opened);
                        }
                        self.bump();
                    }
                    self.at += 2;
                }
                _ => return Ok(()),
            }
        }
    }

    fn rest_of_line(&mut self) {
        while self.peek().is_some_and(|b| b != b'\n') {
            self.at += 1;
        }
    }

    /// Members up to the closing brace, which is passed over; to the end of the text without one.
    fn members(&mut self, close: Option<u8>, depth: usize) -> Result<Vec<(String, Node)>, Fault> {
        let mut opened = self.fault(
            "an object { is not closed",
            "} at its end, on a line of its own if a text without quotes stands before it",
        );
        opened.column -= usize::from(close.is_some()); // the brace was passed over
        let mut out: Vec<(String, Node)> = Vec::new();
        let mut names = HashSet::new();
        loop {
            self.blank()?;
            match self.peek() {
                None if close.is_none() => return Ok(out),
                None => return Err(opened),
                byte if byte == close => {
                    self.at += 1;
                    return Ok(out);
                }
                _ => {}
            }
            let named = self.fault("", "each name once: DeepSpeed refuses a file with a name twice");
            let name = self.name()?;
            if !names.insert(name.clone()) {
                let first = out.iter().find(|(n, _)| *n == name).map_or(0, |(_, node)| node.line);
                return Err(Fault { what: format!("\"{name}\" is stated twice, first in line {first}"), ..named });
            }
            self.blank()?;
            if self.peek() != Some(b':') {
                return Err(self.fault(format!("no ':' after the name \"{}\"", clipped(&name)), "name: value"));
            }
            self.at += 1;
            self.blank()?;
            let node = self.value(depth)?;
            out.push((name, node));
            self.comma()?;
        }
    }

    fn comma(&mut self) -> Result<(), Fault> {
        self.blank()?;
        if self.peek() == Some(b',') {
            self.at += 1;
        }
        Ok(())
    }

    fn name(&mut self) -> Result<String, Fault> {
        if let Some(quote @ (b'"' | b'\'')) = self.peek() {
            return self.quoted(quote);
        }
        let start = self.at;
        while self
            .peek()
            .is_some_and(|b| !matches!(b, b'{' | b'}' | b'[' | b']' | b',' | b':') && !b.is_ascii_whitespace())
        {
            self.at += 1;
        }
        if self.at == start {
            let found = char::from(self.peek().unwrap_or(b' '));
            return Err(self.fault(format!("'{found}' where a name should stand"), "name: value, or a closing brace"));
        }
        Ok(self.text[start..self.at].to_string())
    }

    fn value(&mut self, depth: usize) -> Result<Node, Fault> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.fault(format!("more than {MAX_NODES} values"), "a DeepSpeed configuration"));
        }
        let (line, column) = self.place();
        let data = match self.peek() {
            Some(b'{' | b'[') if depth >= MAX_DEPTH => {
                return Err(
                    self.fault(format!("nested more than {MAX_DEPTH} deep"), "DeepSpeed's own sections nest five deep")
                );
            }
            Some(b'{') => {
                self.at += 1;
                Data::Object(self.members(Some(b'}'), depth + 1)?)
            }
            Some(b'[') => self.list(depth)?,
            Some(b'\'') if self.starts("'''") => Data::Text(self.lines()?),
            Some(quote @ (b'"' | b'\'')) => Data::Text(self.quoted(quote)?),
            _ => self.bare()?,
        };
        Ok(Node { data, line, column })
    }

    fn list(&mut self, depth: usize) -> Result<Data, Fault> {
        let opened = self.fault("a list [ is not closed", "] at its end");
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.blank()?;
            match self.peek() {
                None => return Err(opened),
                Some(b']') => {
                    self.at += 1;
                    return Ok(Data::List(items));
                }
                _ => items.push(self.value(depth + 1)?),
            }
            self.comma()?;
        }
    }

    /// A number, `true`, `false`, `null`, or a text that runs to the end of the line.
    fn bare(&mut self) -> Result<Data, Fault> {
        if let None | Some(b'}' | b']' | b',' | b':') = self.peek() {
            return Err(self.fault("a value is missing", "name: value"));
        }
        let start = self.at;
        loop {
            let byte = self.peek();
            let ends_line = matches!(byte, None | Some(b'\n' | b'\r'));
            let comment = matches!(byte, Some(b'#')) || self.starts("//") || self.starts("/*");
            if ends_line || comment || matches!(byte, Some(b',' | b'}' | b']')) {
                let word = self.text[start..self.at].trim();
                if let Some(data) = literal(word) {
                    return Ok(data);
                }
                if ends_line {
                    return Ok(Data::Text(word.to_string()));
                }
            }
            self.at += 1;
        }
    }

    /// A text in quotes, whose opening one is next, with JSON's escapes.
    fn quoted(&mut self, quote: u8) -> Result<String, Fault> {
        let opened = self.fault("a text is not closed on its line", "a quote at its end");
        self.at += 1;
        let mut out = String::new();
        let mut from = self.at;
        loop {
            match self.peek() {
                None | Some(b'\n' | b'\r') => return Err(opened),
                Some(byte) if byte == quote => {
                    out.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    out.push(self.escaped()?);
                    from = self.at;
                }
                Some(_) => self.at += 1,
            }
        }
    }

    /// What follows a backslash.
    fn escaped(&mut self) -> Result<char, Fault> {
        const LEGAL: &str = "\\\" \\' \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX";
        let at = self.fault("this is no escape after \\", LEGAL);
        let byte = self.peek();
        self.at += 1;
        Ok(match byte {
            Some(b @ (b'"' | b'\'' | b'\\' | b'/')) => char::from(b),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let high = self.unit().ok_or_else(|| at.clone())?;
                // Two units make a character beyond the first plane.
                let units = if (0xd800..0xdc00).contains(&high) && self.starts("\\u") {
                    self.at += 2;
                    vec![high, self.unit().ok_or_else(|| at.clone())?]
                } else {
                    vec![high]
                };
                char::decode_utf16(units).next().and_then(Result::ok).ok_or(at)?
            }
            _ => return Err(at),
        })
    }

    fn unit(&mut self) -> Option<u16> {
        let digits = self.bytes.get(self.at..self.at + 4).filter(|d| d.iter().all(u8::is_ascii_hexdigit))?;
        self.at += 4;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    /// `'''` to `'''`, without the first and the last line break and without the indentation of the opening quotes.
    fn lines(&mut self) -> Result<String, Fault> {
        let opened = self.fault("a text ''' is not closed", "''' at its end");
        let indent = self.at - self.line_start;
        self.at += 3;
        let start = self.at;
        while !self.starts("'''") {
            if self.peek().is_none() {
                return Err(opened);
            }
            self.bump();
        }
        let body = &self.text[start..self.at];
        self.at += 3;
        let body = match body.split_once('\n') {
            Some((first, rest)) if first.trim().is_empty() => rest,
            _ => body,
        };
        let unindented = |line: &str| -> String {
            let blanks = line.bytes().take_while(|b| matches!(b, b' ' | b'\t')).count();
            line[blanks.min(indent)..].trim_end_matches('\r').to_string()
        };
        let lines: Vec<String> = body.split('\n').map(unindented).collect();
        let text = lines.join("\n");
        Ok(text.strip_suffix('\n').map_or(text.clone(), str::to_string))
    }
}

fn clipped(name: &str) -> String {
    name.chars().take(40).collect()
}

/// A number of JSON, `true`, `false` or `null`.
fn literal(word: &str) -> Option<Data> {
    match word {
        "true" => return Some(Data::Bool(true)),
        "false" => return Some(Data::Bool(false)),
        "null" => return Some(Data::Null),
        _ if word.len() > MAX_NUMBER || !word.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => return None,
        _ => {}
    }
    // JSON's own reader knows JSON's numbers.
    let number: serde_json::Number = serde_json::from_str(word).ok()?;
    number.as_i64().map(Data::Int).or_else(|| number.as_f64().map(Data::Float))
}

#[cfg(test)]
#[path = "hjson_tests.rs"]
mod tests;
