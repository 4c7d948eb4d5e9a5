//! One line of JSON to the texts of its keys, borrowed where the text has no escapes.

use crate::Problem;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// The value of a key: one text, or a list of them (sentences of one document).
#[derive(Debug, PartialEq)]
pub(super) enum Text<'a> {
    One(Cow<'a, str>),
    Many(Vec<Cow<'a, str>>),
    /// Not text; what it is instead.
    Other(&'static str),
}

/// Parses one line. `texts` has one place for each of `keys`; as in Python the last of equal keys counts.
///
/// # Errors
/// The byte column, from 1, and the problem there.
pub(super) fn parse<'a>(
    line: &'a [u8],
    keys: &[String],
    texts: &mut Vec<Option<Text<'a>>>,
) -> Result<(), (usize, Problem)> {
    if line.starts_with(b"\xef\xbb\xbf") {
        return Err((1, Problem::ByteOrderMark));
    }
    let text = std::str::from_utf8(line).map_err(|e| {
        let at = e.valid_up_to();
        (at + 1, Problem::Utf8 { byte: line.get(at).copied().unwrap_or_default() })
    })?;
    texts.clear();
    texts.resize_with(keys.len(), || None);
    let mut json = serde_json::Deserializer::from_str(text);
    Record { keys, texts }.deserialize(&mut json).and_then(|()| json.end()).map_err(|e| malformed(&e, text))?;
    for (key, value) in keys.iter().zip(texts.iter()) {
        match value {
            Some(Text::Other(found)) => {
                return Err((column_of(text, key), Problem::WrongType { key: key.clone(), found }));
            }
            None => return Err((1, Problem::MissingKey { key: key.clone(), present: present_keys(text) })),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Column, from 1, at which `key` stands in the record (for messages: the first text that looks like it).
pub(super) fn column_of(line: &str, key: &str) -> usize {
    line.find(&format!("\"{key}\"")).map_or(1, |at| at + 1)
}

fn malformed(e: &serde_json::Error, line: &str) -> (usize, Problem) {
    let column = e.column().max(1);
    let message = e.to_string();
    let message = message.strip_suffix(&format!(" at line {} column {}", e.line(), e.column())).unwrap_or(&message);
    (column, Problem::Json { message: message.into(), excerpt: excerpt(line, column) })
}

/// About forty bytes around a column, quoted, with control characters escaped.
fn excerpt(line: &str, column: usize) -> String {
    let boundary = |mut at: usize| {
        while !line.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let (from, to) = (boundary(column.saturating_sub(21).min(line.len())), boundary((column + 20).min(line.len())));
    let dots = |cut: bool| if cut { "…" } else { "" };
    format!("{}{:?}{}", dots(from > 0), &line[from..to], dots(to < line.len()))
}

/// Names of a valid record's keys, the first few.
fn present_keys(line: &str) -> String {
    const SHOWN: usize = 8;
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap_or_default();
    let mut names: Vec<&str> = object.keys().map(String::as_str).take(SHOWN).collect();
    if object.len() > SHOWN {
        names.push("…");
    }
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Deserializes an object, keeping only the wanted keys.
struct Record<'k, 't, 'a> {
    keys: &'k [String],
    texts: &'t mut Vec<Option<Text<'a>>>,
}

impl<'de> DeserializeSeed<'de> for Record<'_, '_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Record<'_, '_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.keys.first().map_or("text", String::as_str);
        write!(f, "an object such as {{{key:?}: \"…\"}}")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(found) = map.next_key_seed(Key(self.keys))? {
            match found {
                Some(i) => self.texts[i] = Some(map.next_value_seed(AnyText)?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// A key's place among the wanted ones.
struct Key<'k>(&'k [String]);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Option<usize>, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> Result<Option<usize>, E> {
        Ok(self.0.iter().position(|k| k == key))
    }
}

/// Any JSON value; text is kept, the rest only named.
struct AnyText;

impl<'de> DeserializeSeed<'de> for AnyText {
    type Value = Text<'de>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Text<'de>, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyText {
    type Value = Text<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text::One(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text::One(Cow::Owned(text.into())))
    }
    fn visit_bool<E>(self, _: bool) -> Result<Text<'de>, E> {
        Ok(Text::Other("true or false"))
    }
    fn visit_i64<E>(self, _: i64) -> Result<Text<'de>, E> {
        Ok(Text::Other("a number"))
    }
    fn visit_u64<E>(self, _: u64) -> Result<Text<'de>, E> {
        Ok(Text::Other("a number"))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Text<'de>, E> {
        Ok(Text::Other("a number"))
    }
    fn visit_unit<E>(self) -> Result<Text<'de>, E> {
        Ok(Text::Other("null"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text<'de>, A::Error> {
        let mut texts = Vec::new();
        let mut all_text = true;
        while let Some(item) = seq.next_element_seed(AnyText)? {
            match item {
                Text::One(text) => texts.push(text),
                Text::Many(_) | Text::Other(_) => all_text = false,
            }
        }
        Ok(if all_text { Text::Many(texts) } else { Text::Other("a list with elements that are not strings") })
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text::Other("an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(names: &[&str]) -> Vec<String> {
        names.iter().map(|&n| n.into()).collect()
    }

    fn check(line: &[u8], column: usize, wanted: &[&str]) {
        let (got, problem) = parse(line, &keys(&["text"]), &mut Vec::new()).unwrap_err();
        let message = problem.to_string();
        assert_eq!(got, column, "{message}");
        for w in wanted {
            assert!(message.contains(w), "{message}");
        }
    }

    #[test]
    fn texts_are_borrowed_unless_escaped() {
        let mut texts = Vec::new();
        let line = r#"{"n": [{"text": 1}], "title": ["a", "b"], "text": "plain 你", "x": null}"#;
        parse(line.as_bytes(), &keys(&["text", "title"]), &mut texts).unwrap();
        assert!(matches!(&texts[0], Some(Text::One(Cow::Borrowed("plain 你")))));
        assert_eq!(texts[1], Some(Text::Many(vec!["a".into(), "b".into()])));
        parse(br#"{"te\u0078t": "a\n\ud83d\ude00", "text": "last\/"}"#, &keys(&["text"]), &mut texts).unwrap();
        assert_eq!(texts[0], Some(Text::One("last/".into())));
    }

    #[test]
    fn each_problem_has_its_column() {
        check(br#"{"text":"2"}{"text":"3"}"#, 13, &["trailing characters", r#""{\"text\":\"2\"}{"#]);
        check(br#"{"text": "a"#, 11, &["EOF"]);
        check(br#"{"text": tru}"#, 13, &["expected ident"]);
        check(b"{\"text\": \"a\tb\"}", 12, &["control character", r"a\tb"]);
        check(br#"{"text": "\q"}"#, 12, &["invalid escape"]);
        check(br#"{"text": "\ud800"}"#, 17, &["hex escape"]);
        check(b"[1]", 1, &["invalid type: sequence", r#"an object such as {"text": "#]);
        check(b"\"x\"", 3, &["invalid type: string"]);
        check(b"{\"text\": \"a\xffb\"}", 12, &["not UTF-8: byte 0xff"]);
        check(b"\xef\xbb\xbf{\"text\": \"a\"}", 1, &["byte order mark"]);
        check(br#"{"content": "3"}"#, 1, &[r#"no key "text" (keys: content)"#, "--json-keys"]);
        check(b"{}", 1, &["keys: none"]);
        for (value, found) in [
            ("5", "a number"),
            ("-5", "a number"),
            ("1e3", "a number"),
            ("true", "true or false"),
            ("null", "null"),
            ("{\"a\": {}}", "an object"),
            ("[\"a\", 1]", "elements that are not strings"),
            ("[[\"a\"]]", "elements that are not strings"),
        ] {
            check(format!("{{\"a\": 1, \"text\": {value}}}").as_bytes(), 10, &["key \"text\" is", found]);
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = format!("{{\"text\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let (_, problem) = parse(deep.as_bytes(), &keys(&["text"]), &mut Vec::new()).unwrap_err();
        assert!(problem.to_string().contains("recursion limit"), "{problem}");
        let deep = format!("{{\"x\": {}1{}, \"text\": \"\"}}", "[".repeat(100_000), "]".repeat(100_000));
        parse(deep.as_bytes(), &keys(&["text"]), &mut Vec::new()).unwrap();
    }

    proptest! {
        /// Any bytes, and any damaged record: an answer or an error with a column inside the line, never a panic.
        #[test]
        fn any_line_is_answered(
            noise in proptest::collection::vec(any::<u8>(), 0..60),
            text in "\\PC{0,20}",
            at in 0usize..60,
            byte in any::<u8>(),
        ) {
            let mut record = serde_json::json!({"id": 1.5, "text": text, "m": [null, {}]}).to_string().into_bytes();
            let whole = record.clone();
            let at = at % record.len();
            record[at] = byte;
            for line in [&noise[..], &record[..], &whole[..at]] {
                if let Err((column, _)) = parse(line, &keys(&["text"]), &mut Vec::new()) {
                    prop_assert!(column >= 1 && column <= line.len().max(1), "{} in {:?}", column, line);
                }
            }
            let mut texts = Vec::new();
            prop_assert!(parse(&whole, &keys(&["text"]), &mut texts).is_ok());
            prop_assert_eq!(texts.pop().flatten(), Some(Text::One(text.into())));
        }
    }
}
