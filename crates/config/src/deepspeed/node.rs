//! What a DeepSpeed file says, with the place of every value; and values as DeepSpeed's own models (pydantic) take them.

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// The value.
    pub data: Data,
    /// Line, from 1.
    pub line: usize,
    /// Byte of the line, from 1.
    pub column: usize,
}

/// A value of JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// The members of an object.
    pub fn members(&self) -> Option<&[(String, Node)]> {
        match &self.data {
            Data::Object(members) => Some(members),
            _ => None,
        }
    }

    /// True for the word that leaves a value to the program which calls DeepSpeed.
    pub fn is_auto(&self) -> bool {
        matches!(&self.data, Data::Text(t) if t == "auto")
    }

    /// A whole number: also one written as a float without a fraction (`5e8`) or as text (`"500"`).
    pub fn int(&self) -> Option<i64> {
        match &self.data {
            Data::Int(i) => Some(*i),
            // Beyond 2^53 a float names no single whole number.
            Data::Float(f) if f.fract() == 0.0 && f.abs() <= 9_007_199_254_740_992.0 => Some(*f as i64),
            Data::Text(t) => t.trim().parse().ok(),
            _ => None,
        }
    }

    /// A finite number, also one written as text.
    pub fn number(&self) -> Option<f64> {
        match &self.data {
            Data::Int(i) => Some(*i as f64),
            Data::Float(f) => Some(*f),
            Data::Text(t) => t.trim().parse().ok(),
            _ => None,
        }
        .filter(|x: &f64| x.is_finite())
    }

    /// True or false, also as 1 and 0 and in words.
    pub fn truth(&self) -> Option<bool> {
        match &self.data {
            Data::Bool(b) => Some(*b),
            Data::Int(1) => Some(true),
            Data::Int(0) => Some(false),
            Data::Text(t) => match t.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(true),
                "false" | "no" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(t) => Some(t),
            _ => None,
        }
    }

    /// The value in few words, for messages.
    pub fn shown(&self) -> String {
        match &self.data {
            Data::Null => "null".into(),
            Data::Bool(b) => b.to_string(),
            Data::Int(i) => i.to_string(),
            Data::Float(f) => crate::value::py_float(*f),
            Data::Text(t) if t.chars().count() > 40 => format!("\"{}...\"", t.chars().take(40).collect::<String>()),
            Data::Text(t) => format!("\"{t}\""),
            Data::List(items) if items.len() <= 4 => {
                format!("[{}]", items.iter().map(Node::shown).collect::<Vec<_>>().join(", "))
            }
            Data::List(items) => format!("a list of {}", items.len()),
            Data::Object(_) => "{...}".into(),
        }
    }

    /// True if this is the value that `json` writes: nothing was asked for.
    pub fn equals(&self, json: &str) -> bool {
        match json {
            "null" => self.data == Data::Null,
            "true" | "false" => self.truth() == Some(json == "true"),
            _ => match json.parse::<f64>() {
                Ok(number) => self.number() == Some(number),
                Err(_) => self.text() == Some(json),
            },
        }
    }

    /// Whether a section that changes training is on: `enabled` of it, else of any part of it; a section without that word
    /// anywhere is on when it says something.
    pub fn is_on(&self) -> bool {
        match &self.data {
            Data::Null | Data::Bool(false) => false,
            Data::Object(members) => self.enabled().unwrap_or(!members.is_empty()),
            _ => true,
        }
    }

    fn enabled(&self) -> Option<bool> {
        let members = self.members()?;
        if let Some((_, node)) = members.iter().find(|(name, _)| name == "enabled") {
            return Some(node.truth().unwrap_or(true));
        }
        members.iter().filter_map(|(_, node)| node.enabled()).reduce(|a, b| a || b)
    }
}
