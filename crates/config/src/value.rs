//! Values of flags, printed as Python prints them (the arguments dump is compared with upstream's by eye and by diff).

use std::fmt;

/// A parsed value. Integers are 64-bit: upstream's are unbounded, and a larger one is an error here.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Python `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// Text.
    Str(String),
    /// A list (`nargs` `*`, `+` or a count, comma lists, list expressions).
    List(Vec<Value>),
}

impl Value {
    /// True for `None`.
    pub fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }

    /// As JSON. Non-finite floats, which JSON lacks, become text.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as J;
        match self {
            Value::None => J::Null,
            Value::Bool(b) => J::Bool(*b),
            Value::Int(i) => J::from(*i),
            Value::Float(f) => serde_json::Number::from_f64(*f).map_or_else(|| J::String(py_float(*f)), J::Number),
            Value::Str(s) => J::String(s.clone()),
            Value::List(items) => J::Array(items.iter().map(Value::to_json).collect()),
        }
    }

    /// From JSON; `None` for objects and for numbers beyond 64-bit integers and floats.
    pub fn from_json(json: &serde_json::Value) -> Option<Value> {
        use serde_json::Value as J;
        Some(match json {
            J::Null => Value::None,
            J::Bool(b) => Value::Bool(*b),
            J::Number(n) => match n.as_i64() {
                Some(i) => Value::Int(i),
                None => Value::Float(n.as_f64()?),
            },
            J::String(s) => Value::Str(s.clone()),
            J::Array(items) => Value::List(items.iter().map(Value::from_json).collect::<Option<Vec<_>>>()?),
            J::Object(_) => return None,
        })
    }
}

impl fmt::Display for Value {
    /// As Python's `str()`: text bare at the top level, quoted inside lists.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("None"),
            Value::Bool(b) => f.write_str(if *b { "True" } else { "False" }),
            Value::Int(i) => write!(f, "{i}"),
            Value::Float(x) => f.write_str(&py_float(*x)),
            Value::Str(s) => f.write_str(s),
            Value::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    match item {
                        Value::Str(s) => f.write_str(&py_quote(s))?,
                        other => write!(f, "{other}")?,
                    }
                }
                f.write_str("]")
            }
        }
    }
}

/// Python's `repr(float)`: shortest digits that round-trip, exponent form below 1e-4 and from 1e16.
pub fn py_float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_string();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let magnitude = x.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{x:?}");
    }
    // Rust writes 1e-5 and 1.5e16; Python pads the exponent to two digits and signs it.
    let text = format!("{x:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(e) => format!("{digits}e-{e:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

/// Python's `repr(str)` for ordinary text: single quotes, double when the text holds a single one.
pub fn py_quote(s: &str) -> String {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(s.len() + 2);
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_prints_them() {
        // Right column: `repr` of CPython 3.11.
        for (x, text) in [
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e-4, "0.00015"),
            (3e-4, "0.0003"),
            (1.0, "1.0"),
            (0.0, "0.0"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (4294967296.0, "4294967296.0"),
            (1.25e-8, "1.25e-08"),
            (-2e100, "-2e+100"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(py_float(x), text);
        }
    }

    #[test]
    fn lists_print_as_python_prints_them() {
        let v = Value::List(vec![Value::Str("a".into()), Value::Int(1), Value::Float(0.5), Value::None]);
        assert_eq!(v.to_string(), "['a', 1, 0.5, None]");
        assert_eq!(py_quote("it's"), "\"it's\"");
    }

    #[test]
    fn json_round_trips() {
        let v = Value::List(vec![
            Value::Bool(true),
            Value::Int(-3),
            Value::Float(0.1),
            Value::Str("x".into()),
            Value::None,
        ]);
        assert_eq!(Value::from_json(&v.to_json()), Some(v));
        assert_eq!(Value::from_json(&serde_json::json!({"a": 1})), None);
    }
}
