//! JSON exactly as Python's `json.dumps(obj, indent=4)` writes it: its MD5 names the cache files, so every byte counts.

use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

use crate::splits::{SplitName, Splits};

/// MD5 of `text` in lower-case hex.
pub(crate) fn md5_hex(text: &str) -> String {
    Md5::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

/// `json.dumps(value, indent=4)`: ASCII only, Python's spelling of floats.
pub(crate) fn python_json(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, 0, &mut out);
    out
}

/// The description of a GPT dataset; `splits` is `None` when every split has its own files.
pub(crate) fn gpt_description(
    prefix: Option<&str>,
    requested: Option<u64>,
    split: SplitName,
    seed: u32,
    sequence_length: usize,
    splits: Option<&Splits>,
    tokenizer: &Value,
) -> Value {
    let matrix = splits.map(|s| {
        // Megatron's first bookend is the integer 0, all others are floats.
        let row = |(i, range): (usize, &Option<crate::splits::SplitRange>)| match range {
            None => Value::Null,
            Some(r) if i == 0 => json!([0, r.end]),
            Some(r) => json!([r.begin, r.end]),
        };
        Value::Array(s.ranges.iter().enumerate().map(row).collect())
    });
    object([
        ("class", json!("GPTDataset")),
        ("dataset_path", json!(prefix)),
        ("num_samples", json!(requested)),
        ("index_split", json!(split.as_str())),
        ("random_seed", json!(seed)),
        ("sequence_length", json!(sequence_length)),
        ("split", json!(splits.map(|s| &s.text))),
        ("split_matrix", matrix.unwrap_or(Value::Null)),
        ("tokenizer", tokenizer.clone()),
    ])
}

/// The description of a blend of `members`.
pub(crate) fn blend_description(members: Vec<Value>, split: SplitName, weights: Value, size: Option<u64>) -> Value {
    object([
        ("class", json!("BlendedDataset")),
        ("datasets", Value::Array(members)),
        ("split", json!(split.as_str())),
        ("weights", weights),
        ("size", json!(size)),
    ])
}

/// An object whose keys keep their order.
fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Object(Map::from_iter(entries.map(|(k, v)| (k.to_owned(), v))))
}

fn write_value(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() => out.push_str(&python_float(x)),
            _ => out.push_str(&n.to_string()),
        },
        Value::String(s) => write_string(s, out),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                new_line(i > 0, depth + 1, out);
                write_value(item, depth + 1, out);
            }
            new_line(false, depth, out);
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                new_line(i > 0, depth + 1, out);
                write_string(key, out);
                out.push_str(": ");
                write_value(item, depth + 1, out);
            }
            new_line(false, depth, out);
            out.push('}');
        }
    }
}

fn new_line(comma: bool, depth: usize, out: &mut String) {
    out.push_str(if comma { ",\n" } else { "\n" });
    out.extend(std::iter::repeat_n(' ', 4 * depth));
}

fn write_string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

/// Python's `repr` of a finite float: shortest digits; scientific when the exponent is below -4 or above 15.
fn python_float(x: f64) -> String {
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(e) if !(-4..16).contains(&e) => {
            let sign = if e < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", e.abs())
        }
        _ if x.fract() == 0.0 => format!("{x}.0"),
        _ => format!("{x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected strings: what CPython 3 prints.
    #[test]
    fn floats_as_python_prints_them() {
        for (x, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (-2.5, "-2.5"),
        ] {
            assert_eq!(python_float(x), text);
        }
    }

    #[test]
    fn strings_are_ascii() {
        let mut out = String::new();
        write_string("a\"\\\n\u{7f}\u{e9}\u{1f600}", &mut out);
        assert_eq!(out, r#""a\"\\\n\u007f\u00e9\ud83d\ude00""#);
        assert_eq!(
            python_json(&json!({"a": [], "b": {}, "c": [1]})).replace([' ', '\n'], ""),
            r#"{"a":[],"b":{},"c":[1]}"#
        );
    }

    #[test]
    fn md5_of_a_known_text() {
        assert_eq!(md5_hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
    }
}
