//! JSONL of conversations: OpenAI's `messages`, and ShareGPT's `conversations`.

use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longest line that is read: a conversation is held in memory several times over.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Messages in order, and whatever else a template may ask for (`tools`, `documents` …).
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Objects with at least `role` and `content`.
    pub messages: Vec<Value>,
    /// The other fields of the record.
    pub extra: Map<String, Value>,
}

/// What becomes of two messages of one role in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Turns {
    /// They are an error.
    #[default]
    Strict,
    /// Their texts are joined with an empty line between.
    Merge,
}

impl Conversation {
    /// From a record: `messages` of `{role, content}`, or `conversations` of `{from, value}`.
    ///
    /// # Errors
    /// What is wrong with the record, as a clause.
    pub fn from_record(record: Value, turns: Turns) -> std::result::Result<Conversation, String> {
        let Value::Object(mut extra) = record else { return Err("the line is not a JSON object".into()) };
        let messages = match (extra.remove("messages"), extra.remove("conversations")) {
            (Some(Value::Array(messages)), None) => messages,
            (None, Some(Value::Array(turns))) => {
                turns.into_iter().enumerate().map(share_gpt).collect::<std::result::Result<_, _>>()?
            }
            (Some(_), Some(_)) => return Err("it has both \"messages\" and \"conversations\"".into()),
            (Some(_), None) | (None, Some(_)) => return Err("its messages are not a list".into()),
            (None, None) => {
                let keys: Vec<&str> = extra.keys().map(String::as_str).collect();
                return Err(format!("it has neither \"messages\" nor \"conversations\" (keys: {})", keys.join(", ")));
            }
        };
        if messages.is_empty() {
            return Err("it has no messages".into());
        }
        let mut kept: Vec<Value> = Vec::with_capacity(messages.len());
        for (i, message) in messages.into_iter().enumerate() {
            let role = message.get("role").and_then(Value::as_str).filter(|r| !r.is_empty());
            let role = role.ok_or_else(|| format!("message {} has no role", i + 1))?;
            // A message that calls tools may have no content.
            let content = message.get("content");
            if !content.is_some_and(|c| c.is_string() || c.is_array()) && message.get("tool_calls").is_none() {
                return Err(format!("message {} ({role}) has no content", i + 1));
            }
            match kept.last_mut() {
                // Answers of several tools follow each other.
                Some(last) if last["role"] == role && role != "tool" => match turns {
                    Turns::Strict => return Err(format!("messages {i} and {} are both of the {role}", i + 1)),
                    Turns::Merge => {
                        merge(last, &message).ok_or_else(|| format!("message {} is not text to be joined", i + 1))?
                    }
                },
                _ => kept.push(message),
            }
        }
        Ok(Conversation { messages: kept, extra })
    }
}

fn merge(last: &mut Value, next: &Value) -> Option<()> {
    let joined = format!("{}\n\n{}", last["content"].as_str()?, next["content"].as_str()?);
    last["content"] = joined.into();
    Some(())
}

/// `{from: human, value}` to `{role: user, content}`.
fn share_gpt((i, turn): (usize, Value)) -> std::result::Result<Value, String> {
    let text = |key: &str| turn.get(key).and_then(Value::as_str);
    let (Some(from), Some(value)) = (text("from"), text("value")) else {
        return Err(format!("turn {} has no \"from\" and \"value\"", i + 1));
    };
    let role = match from {
        "human" | "user" => "user",
        "gpt" | "assistant" | "bot" | "chatgpt" => "assistant",
        "system" | "tool" => from,
        _ => return Err(format!("turn {} is from {from:?}, which is no role", i + 1)),
    };
    Ok(json!({ "role": role, "content": value }))
}

/// Reads a JSONL file line by line. Blank lines are passed over; every other line is a conversation or an error that
/// names it.
///
/// # Errors
/// When the file cannot be opened.
pub fn read_jsonl(path: &Path, turns: Turns) -> Result<impl Iterator<Item = Result<Conversation>> + use<>> {
    let path = path.to_owned();
    let io = |path: &Path, source| Error::Io { path: path.to_owned(), source };
    let mut reader = BufReader::with_capacity(1 << 20, File::open(&path).map_err(|e| io(&path, e))?);
    let (mut number, mut line, mut failed) = (0, Vec::new(), false);
    Ok(std::iter::from_fn(move || {
        loop {
            line.clear();
            number += 1;
            let read = match (&mut reader).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line) {
                Ok(0) => return None,
                _ if failed => return None,
                Ok(n) => n as u64,
                Err(e) => {
                    failed = true;
                    return Some(Err(io(&path, e)));
                }
            };
            let error = |problem: String| Error::Record { path: path.clone(), line: number, problem };
            if read > MAX_LINE_BYTES {
                failed = true;
                return Some(Err(error(format!("the line is longer than {MAX_LINE_BYTES} bytes"))));
            }
            let text = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(&line);
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let record = serde_json::from_slice(text).map_err(|e| error(format!("not JSON: {e}")));
            return Some(record.and_then(|r| Conversation::from_record(r, turns).map_err(error)));
        }
    }))
}
