//! Numbers as Python reads them: `int()`, `float()`, and the list expressions of `--moe-layer-freq`.

use crate::value::Value;

/// Longest list that an expression may make; far above any layer count, far below memory trouble.
const MAX_LIST: usize = 1 << 16;

/// Python's `int(text)`: blanks around, one sign, decimal digits, single underscores between digits.
pub fn py_int(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = strip_underscores(digits)?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // The sign goes through parse so that i64::MIN is in range.
    let sign = if text.starts_with('-') { "-" } else { "" };
    format!("{sign}{digits}").parse().ok()
}

/// Python's `float(text)`: underscores between digits, `inf` and `nan`, no hexadecimal.
pub fn py_float(text: &str) -> Option<f64> {
    let text = strip_underscores(text.trim())?;
    let allowed = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    let word = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    if !allowed && !matches!(word.as_str(), "inf" | "infinity" | "nan") {
        return None;
    }
    text.parse().ok()
}

/// Removes underscores, each of which must stand between two digits.
fn strip_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    for (i, c) in text.char_indices() {
        if c != '_' {
            out.push(c);
            continue;
        }
        let digit = |j: Option<usize>| j.and_then(|j| bytes.get(j)).is_some_and(u8::is_ascii_digit);
        if !digit(i.checked_sub(1)) || !digit(Some(i + 1)) {
            return None;
        }
    }
    Some(out)
}

/// True where argparse (3.11) takes a token that starts with `-` for a value: `-\d+` or `-\d*\.\d+`.
pub fn is_negative_number(token: &str) -> bool {
    let Some(rest) = token.strip_prefix('-') else { return false };
    let (whole, fraction) = match rest.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (rest, None),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match fraction {
        Some(fraction) => digits(whole) && digits(fraction) && !fraction.is_empty(),
        None => digits(whole) && !whole.is_empty(),
    }
}

/// An integer, or a Python list expression over digits, `,`, `[`, `]`, `(`, `)`, `+`, `*` and blanks.
///
/// Grammar: sum = product (`+` product)*; product = atom (`*` atom)*; atom = int | `[` sum,* `]` | `(` sum `)`.
pub fn int_or_list(text: &str) -> Result<Value, String> {
    if let Some(i) = py_int(text) {
        return Ok(Value::Int(i));
    }
    let mut p = Expression { bytes: text.as_bytes(), at: 0, depth: 0 };
    let value = p.sum()?;
    p.blank();
    if p.at != p.bytes.len() {
        return Err(format!("unexpected {:?} in a list expression", char::from(p.bytes[p.at])));
    }
    Ok(value)
}

struct Expression<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl Expression<'_> {
    fn blank(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn eat(&mut self, wanted: u8) -> bool {
        self.blank();
        let hit = self.bytes.get(self.at) == Some(&wanted);
        self.at += usize::from(hit);
        hit
    }

    fn sum(&mut self) -> Result<Value, String> {
        let mut left = self.product()?;
        while self.eat(b'+') {
            let right = self.product()?;
            left = match (left, right) {
                (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_add(b).ok_or("number too large")?),
                (Value::List(mut a), Value::List(b)) if a.len() + b.len() <= MAX_LIST => {
                    a.extend(b);
                    Value::List(a)
                }
                (Value::List(_), Value::List(_)) => return Err(format!("the list has more than {MAX_LIST} items")),
                _ => return Err("+ joins two numbers or two lists".to_string()),
            };
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Value, String> {
        let mut left = self.atom()?;
        while self.eat(b'*') {
            let right = self.atom()?;
            left = match (left, right) {
                (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_mul(b).ok_or("number too large")?),
                (Value::List(items), Value::Int(n)) | (Value::Int(n), Value::List(items)) => {
                    let times = usize::try_from(n).unwrap_or(0);
                    match items.len().checked_mul(times) {
                        Some(total) if total <= MAX_LIST => {
                            Value::List(std::iter::repeat_n(items, times).flatten().collect())
                        }
                        _ => return Err(format!("the list has more than {MAX_LIST} items")),
                    }
                }
                _ => return Err("* repeats a list a number of times".to_string()),
            };
        }
        Ok(left)
    }

    fn atom(&mut self) -> Result<Value, String> {
        if self.depth == 32 {
            return Err("brackets are nested too deeply".to_string());
        }
        self.depth += 1;
        let value = if self.eat(b'(') {
            let inner = self.sum()?;
            if !self.eat(b')') {
                return Err("a ( is not closed".to_string());
            }
            inner
        } else if self.eat(b'[') {
            let mut items = Vec::new();
            while !self.eat(b']') {
                match self.sum()? {
                    Value::Int(i) => items.push(Value::Int(i)),
                    _ => return Err("a list may hold numbers only".to_string()),
                }
                if !self.eat(b',') {
                    if !self.eat(b']') {
                        return Err("a [ is not closed".to_string());
                    }
                    break;
                }
            }
            Value::List(items)
        } else {
            self.blank();
            let start = self.at;
            while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
                self.at += 1;
            }
            let digits = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
            Value::Int(py_int(digits).ok_or("expected a number, [ or (")?)
        };
        self.depth -= 1;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ints_are_pythons() {
        for (text, want) in [
            ("1", Some(1)),
            ("+7", Some(7)),
            ("-3", Some(-3)),
            ("007", Some(7)),
            (" 5 ", Some(5)),
            ("220_000_000", Some(220_000_000)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("1e6", None),
            ("1.0", None),
            ("", None),
            ("_1", None),
            ("1_", None),
            ("1__0", None),
            ("+-1", None),
            ("0x10", None),
        ] {
            assert_eq!(py_int(text), want, "{text:?}");
        }
    }

    #[test]
    fn floats_are_pythons() {
        for (text, want) in [
            ("1_000", Some(1000.0)),
            (".01", Some(0.01)),
            ("1.", Some(1.0)),
            ("3.0e-4", Some(3.0e-4)),
            ("1_0.5_0e1_0", Some(10.5e10)),
            ("Infinity", Some(f64::INFINITY)),
            ("-inf", Some(f64::NEG_INFINITY)),
            ("e5", None),
            (".", None),
            ("1._5", None),
            ("0x1p3", None),
            ("1f", None),
        ] {
            assert_eq!(py_float(text), want, "{text:?}");
        }
        assert!(py_float("NaN").is_some_and(f64::is_nan));
    }

    #[test]
    fn negative_numbers_follow_the_regular_expression_of_argparse() {
        for (token, want) in [
            ("-1", true),
            ("-.5", true),
            ("-1.5", true),
            ("-1.", false),
            ("-1e-5", false),
            ("-", false),
            ("--1", false),
            ("-1_0", false),
        ] {
            assert_eq!(is_negative_number(token), want, "{token}");
        }
    }

    #[test]
    fn list_expressions() {
        let ints = |v: &[i64]| Value::List(v.iter().map(|i| Value::Int(*i)).collect());
        assert_eq!(int_or_list("3"), Ok(Value::Int(3)));
        assert_eq!(int_or_list("([0]*1+[1]*3)"), Ok(ints(&[0, 1, 1, 1])));
        assert_eq!(int_or_list("[0, 1,]*2"), Ok(ints(&[0, 1, 0, 1])));
        for bad in
            ["", "[1", "(1", "1+[2]", "[1]*[2]", "__import__", "[1]*99999999", "9".repeat(40).as_str(), &"(".repeat(99)]
        {
            assert!(int_or_list(bad).is_err(), "{bad}");
        }
    }
}
