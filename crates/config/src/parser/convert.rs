//! One text to one typed value, with the choices of the flag.

use super::number::{int_or_list, py_float, py_int};
use crate::flags::{Flag, Kind};
use crate::value::Value;

/// Converts `text` for `flag`.
///
/// # Errors
/// What is wrong, and what would be legal.
pub fn convert(flag: &Flag, text: &str) -> Result<Value, (String, Option<String>)> {
    let wrong = |legal: Option<String>| (format!("'{text}' is not {}", article(flag.kind)), legal);
    let value = match flag.kind {
        Kind::Int => Value::Int(py_int(text).ok_or_else(|| wrong(as_integer(text)))?),
        Kind::Float => Value::Float(py_float(text).ok_or_else(|| wrong(None))?),
        Kind::Number => match py_int(text) {
            Some(i) => Value::Int(i),
            None => Value::Float(py_float(text).ok_or_else(|| wrong(None))?),
        },
        Kind::Str | Kind::StoreTrue | Kind::StoreFalse | Kind::BooleanOptional => Value::Str(text.to_string()),
        Kind::Truthy => Value::Bool(!text.is_empty()),
        Kind::BoolWord => match text.to_ascii_lowercase().as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "none" => Value::None,
            _ => return Err(wrong(None)),
        },
        Kind::CommaInts => {
            let items: Option<Vec<Value>> = text.split(',').map(|part| py_int(part).map(Value::Int)).collect();
            Value::List(items.ok_or_else(|| wrong(None))?)
        }
        Kind::IntOrList => int_or_list(text).map_err(|why| (format!("'{text}': {why}"), None))?,
    };
    if !flag.choices.is_empty() && !flag.choices.contains(&value.to_string().as_str()) {
        let what = format!("'{text}' is no choice of it");
        return Err((what, Some(flag.choices.join(", "))));
    }
    Ok(value)
}

fn article(kind: Kind) -> String {
    let word = kind.word();
    let an = if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{an} {word}")
}

/// `1e6` for an int flag: the digits to write instead.
fn as_integer(text: &str) -> Option<String> {
    let value = py_float(text)?;
    if value.fract() == 0.0 && value.abs() < 1e15 { Some(format!("{value:.0}")) } else { None }
}
