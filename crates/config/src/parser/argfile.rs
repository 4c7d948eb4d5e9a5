//! Argument files (`@file`): shell-like words, `#` comments, quotes, backslash continuation.

use std::path::Path;

/// Reads a text file by path; the parser does no IO of its own.
pub type ReadFile<'a> = dyn Fn(&Path) -> std::io::Result<String> + 'a;

/// Largest argument file, in bytes.
const MAX_FILE: usize = 1 << 20;

/// A word and the line it starts on, from 1.
pub type Word = (String, usize);

/// Splits the text of an argument file into words.
///
/// # Errors
/// An unclosed quote or a file above 1 MiB, with the line.
pub fn words(text: &str) -> Result<Vec<Word>, String> {
    if text.len() > MAX_FILE {
        return Err(format!("the file has {} bytes; an argument file may have {MAX_FILE}", text.len()));
    }
    let mut out = Vec::new();
    let mut word: Option<Word> = None;
    let mut line = 1;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            '\\' => match chars.next() {
                Some('\n') => line += 1,
                Some('\r') => {}
                Some(escaped) => word.get_or_insert_with(|| (String::new(), line)).0.push(escaped),
                None => {}
            },
            '\'' | '"' => {
                let start = line;
                let text = &mut word.get_or_insert_with(|| (String::new(), line)).0;
                loop {
                    match chars.next() {
                        Some(q) if q == c => break,
                        Some('\\') if c == '"' => text.extend(chars.next()),
                        Some(inner) => {
                            line += usize::from(inner == '\n');
                            text.push(inner);
                        }
                        None => return Err(format!("line {start}: a quote ({c}) is not closed")),
                    }
                }
            }
            c if c.is_whitespace() => {
                out.extend(word.take());
                line += usize::from(c == '\n');
            }
            c => word.get_or_insert_with(|| (String::new(), line)).0.push(c),
        }
    }
    out.extend(word);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_comments_quotes_and_continuations() {
        let text = "# preset\n--lr 3e-4  # peak\n--split '98, 2,0' \\\n  --x \"a \\\" b\"\n--y=z#1 ''\n";
        let got: Vec<(String, usize)> = words(text).unwrap();
        let want = [
            ("--lr", 2),
            ("3e-4", 2),
            ("--split", 3),
            ("98, 2,0", 3),
            ("--x", 4),
            ("a \" b", 4),
            ("--y=z#1", 5),
            ("", 5),
        ];
        assert_eq!(got, want.map(|(w, l)| (w.to_string(), l)));
        assert!(words("--a 'open").unwrap_err().contains("line 1"));
        assert!(words(&" ".repeat(MAX_FILE + 1)).is_err());
    }
}
