//! Chat templates in Jinja, with the functions that Hugging Face's transformers gives them.
//!
//! Source: `chat_template_utils.py` of transformers: trimmed blocks, `raise_exception`, `strftime_now`, a `tojson` that
//! is Python's `json.dumps`, loop controls, and `{% generation %}` around what the assistant says.

use crate::{Conversation, Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind, State};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Steps that a template may take: a conversation of a thousand turns needs far less, an endless loop ends.
const FUEL: u64 = 10_000_000;
const NAME: &str = "chat";

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    place: String,
    special: Map<String, Value>,
    marks_generation: bool,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Bytes of it that the template marks as generated, in order; empty when the template has no such marks.
    pub generated: Vec<Range<usize>>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate {{ place: {}, marks_generation: {} }}", self.place, self.marks_generation)
    }
}

fn invalid(message: impl Into<String>) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, message.into())
}

impl ChatTemplate {
    /// Compiles a template. `special` are texts it may use: `bos_token`, `eos_token` …; `place` names it in errors.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn new(source: &str, special: Map<String, Value>, place: &str) -> Result<ChatTemplate> {
        let (source, marks_generation) = generation_as_call(source);
        let template = |problem: minijinja::Error| Error::Template { place: place.into(), problem: told(&problem) };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(template)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> std::result::Result<Jinja, _> {
            Err(invalid(message))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format, SystemTime::now()));
        environment.add_function("__generation", generation);
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, source).map_err(template)?;
        Ok(ChatTemplate { environment, place: place.into(), special, marks_generation })
    }

    /// The template of a tokenizer's folder: `chat_template.jinja`, or `chat_template` of `tokenizer_config.json` (of
    /// several the one called `default`), with the special tokens of that file.
    ///
    /// # Errors
    /// When there is none, or it is not valid.
    pub fn from_folder(folder: &Path) -> Result<ChatTemplate> {
        let read = |name: &str| -> Result<Option<String>> {
            let path = folder.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(Error::Io { path, source }),
            }
        };
        let config: Map<String, Value> = match read("tokenizer_config.json")? {
            Some(text) => serde_json::from_str(&text).map_err(|e| Error::Template {
                place: folder.join("tokenizer_config.json").display().to_string(),
                problem: format!("not a JSON object: {e}"),
            })?,
            None => Map::new(),
        };
        let (file, named) = ("chat_template.jinja", config.get("chat_template"));
        let (source, place) = match (read(file)?, named) {
            (Some(source), _) => (source, file),
            (None, Some(Value::String(source))) => (source.clone(), "tokenizer_config.json"),
            (None, Some(Value::Array(several))) => {
                let default = several.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str());
                (default.unwrap_or_default().into(), "tokenizer_config.json")
            }
            _ => (String::new(), file),
        };
        let place = folder.join(place).display().to_string();
        if source.is_empty() {
            let problem =
                "there is none; chat models have chat_template.jinja, or chat_template in tokenizer_config.json";
            return Err(Error::Template { place, problem: problem.into() });
        }
        let tokens = config.iter().filter(|(name, _)| name.ends_with("_token"));
        let text = |v: &Value| v.as_str().or_else(|| v.get("content").and_then(Value::as_str)).map(Value::from);
        let special = tokens.filter_map(|(name, v)| Some((name.clone(), text(v)?))).collect();
        ChatTemplate::new(&source, special, &place)
    }

    /// Whether the template says with `{% generation %}` what the assistant generates.
    pub fn marks_generation(&self) -> bool {
        self.marks_generation
    }

    /// A special token's text, such as that of `eos_token`.
    pub fn special(&self, name: &str) -> Option<&str> {
        self.special.get(name).and_then(Value::as_str)
    }

    /// The text of a conversation, or of its first messages. `variables` are more names for the template, such as
    /// `enable_thinking`.
    ///
    /// # Errors
    /// What the template refuses (`raise_exception`), or an error in it.
    pub fn render(
        &self,
        conversation: &Conversation,
        messages: Range<usize>,
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<Rendered> {
        let messages = conversation.messages.get(messages).unwrap_or_default();
        let mut context = self.special.clone();
        context.extend(conversation.extra.clone());
        context.extend(variables.clone());
        context.insert("messages".into(), messages.into());
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        // Marks that no text of the conversation contains.
        let all = Value::Object(context.clone()).to_string();
        let mark =
            (0u32..).map(|n| format!("\u{f8ff}{n}\u{f8ff}")).find(|m| !all.contains(m.as_str())).unwrap_or_default();
        context.insert("__mark".into(), mark.clone().into());
        let template = |e: minijinja::Error| Error::Template { place: self.place.clone(), problem: told(&e) };
        let rendered = self.environment.get_template(NAME).and_then(|t| t.render(Jinja::from(Serde(&context))));
        let (mut text, mut generated) = (String::new(), Vec::new());
        for (i, part) in rendered.map_err(template)?.split(mark.as_str()).enumerate() {
            let from = text.len();
            text.push_str(part);
            if i % 2 == 1 && !part.is_empty() {
                generated.push(from..text.len());
            }
        }
        Ok(Rendered { text, generated })
    }
}

/// The error and its causes in one line.
fn told(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}

/// `{% generation %} … {% endgeneration %}` is a statement that transformers adds to Jinja, a call block like this.
fn generation_as_call(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|e| at + e) else { break };
        let inside = &rest[at + 2..end];
        let word = inside.trim_matches(['-', '+']).trim();
        let replaced = match word {
            "generation" => inside.replacen("generation", "call __generation(__mark)", 1),
            "endgeneration" => inside.replacen("endgeneration", "endcall", 1),
            _ => inside.into(),
        };
        found |= word == "generation";
        out.push_str(&rest[..at + 2]);
        out.push_str(&replaced);
        out.push_str("%}");
        rest = &rest[end + 2..];
    }
    (out + rest, found)
}

/// The body of a call block between two marks.
fn generation(
    state: &mut State<'_, '_>,
    mark: String,
    kwargs: Kwargs,
) -> std::result::Result<String, minijinja::Error> {
    let caller: Jinja = kwargs.get("caller")?;
    let body = caller.call(state, &[])?;
    Ok(format!("{mark}{body}{mark}"))
}

/// Python's `json.dumps(value, ensure_ascii=False)`, with `indent` and `sort_keys`.
fn tojson(value: Jinja, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.get::<Option<Jinja>>("separators")?;
    kwargs.assert_all_used()?;
    let value = serde_json::to_value(&value).map_err(|e| invalid(format!("tojson: {e}")))?;
    let mut out = String::new();
    dump(&value, indent, sort.unwrap_or(false), 0, &mut out);
    if ascii.unwrap_or(false) {
        out = out.chars().map(|c| if c.is_ascii() { c.to_string() } else { escaped(c) }).collect();
    }
    Ok(out)
}

/// `\uXXXX`, in UTF-16.
fn escaped(c: char) -> String {
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn dump(value: &Value, indent: Option<usize>, sort: bool, depth: usize, out: &mut String) {
    let line = |depth: usize, out: &mut String| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                line(depth + 1, out);
                dump(item, indent, sort, depth + 1, out);
            }
            line(depth, out);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('{');
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            if sort {
                entries.sort_by_key(|&(key, _)| key);
            }
            for (i, (key, item)) in entries.into_iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                line(depth + 1, out);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                dump(item, indent, sort, depth + 1, out);
            }
            line(depth, out);
            out.push('}');
        }
        leaf => out.push_str(&leaf.to_string()),
    }
}

/// The directives of `strftime` that chat templates use, in UTC.
fn strftime(format: &str, now: SystemTime) -> std::result::Result<String, minijinja::Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days: years begin in March, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{:02}", second / 3600)),
            Some('M') => out.push_str(&format!("{:02}", second / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", second % 60)),
            Some('%') => out.push('%'),
            other => {
                return Err(invalid(format!(
                    "strftime_now: %{} is not known",
                    other.map_or(String::new(), String::from)
                )));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| {
            strftime("%A %d %B %Y, %H:%M:%S %a %b %y %m %%", UNIX_EPOCH + Duration::from_secs(seconds)).unwrap()
        };
        assert_eq!(at(0), "Thursday 01 January 1970, 00:00:00 Thu Jan 70 01 %");
        // 2024-02-29 12:34:56 UTC
        assert_eq!(at(1_709_210_096), "Thursday 29 February 2024, 12:34:56 Thu Feb 24 02 %");
        assert_eq!(at(4_102_444_799), "Thursday 31 December 2099, 23:59:59 Thu Dec 99 12 %");
        assert!(strftime("%Q", UNIX_EPOCH).is_err());
    }

    fn render(source: &str, record: Value) -> Result<Rendered> {
        let conversation = Conversation::from_record(record, crate::Turns::Strict).unwrap();
        let n = conversation.messages.len();
        ChatTemplate::new(source, Map::new(), "test").and_then(|t| t.render(&conversation, 0..n, false, &Map::new()))
    }

    fn hi() -> Value {
        json!({"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "f", "x": [1, 2.5, null], "ü": {}}]})
    }

    #[test]
    fn json_is_pythons() {
        let text = |source: &str| render(source, hi()).unwrap().text;
        assert_eq!(text("{{ tools | tojson }}"), r#"[{"name": "f", "x": [1, 2.5, null], "ü": {}}]"#);
        assert_eq!(text("{{ tools[0].x | tojson(indent=2) }}"), "[\n  1,\n  2.5,\n  null\n]");
        assert_eq!(
            text("{{ {'b': '<ü>', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}"),
            r#"{"a": 1, "b": "<\u00fc>"}"#
        );
    }

    #[test]
    fn templates_can_refuse_loop_and_break() {
        let e = render("{{ raise_exception('no ' ~ messages[0].content) }}", hi()).unwrap_err().to_string();
        assert!(e.contains("chat template of test") && e.contains("no hi"), "{e}");
        let e = render("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", hi());
        assert!(e.unwrap_err().to_string().contains("fuel"));
        assert!(render("{% if %}", hi()).unwrap_err().to_string().contains("chat template of test"));
        let text = render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", hi());
        assert_eq!(text.unwrap().text, "012");
        assert_eq!(render("{{ messages[0].content.upper().split('I')[0] }}", hi()).unwrap().text, "H");
    }

    #[test]
    fn marks_never_meet_the_text() {
        let record = json!({"messages": [{"role": "user", "content": "\u{f8ff}0\u{f8ff}"}]});
        let source = "a{%- generation -%} {{ messages[0].content }} {%- endgeneration %}b";
        let got = render(source, record).unwrap();
        assert_eq!(got.text, "a\u{f8ff}0\u{f8ff}b");
        assert_eq!(got.generated.first(), Some(&(1..8)));
    }
}
