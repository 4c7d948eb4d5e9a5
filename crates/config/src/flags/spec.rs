//! What a flag is: the row type of every flag table, and how far this program honours a flag.

use crate::value::Value;

/// How the text after a flag becomes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Python `int()`: decimal, underscores between digits, no exponent.
    Int,
    /// Python `float()`.
    Float,
    /// An integer where it parses as one, else a float: flags that one upstream parser reads as int and another as float.
    Number,
    /// Text, unchanged.
    Str,
    /// No value; sets `true`.
    StoreTrue,
    /// No value; sets `false`.
    StoreFalse,
    /// No value; `--x` sets `true`, `--no-x` sets `false`.
    BooleanOptional,
    /// Python `bool()` of a string: every non-empty text is true.
    Truthy,
    /// The words `true`, `false` or `none`, in any case.
    BoolWord,
    /// Integers separated by commas.
    CommaInts,
    /// An integer, or a list expression of integers such as `([0]*1+[1]*27)`.
    IntOrList,
}

impl Kind {
    /// True for the kinds that take no value.
    pub const fn is_switch(self) -> bool {
        matches!(self, Kind::StoreTrue | Kind::StoreFalse | Kind::BooleanOptional)
    }

    /// The word that help and errors use for a value of this kind.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Int => "int",
            Kind::Float => "float",
            Kind::Number => "int or float",
            Kind::Str => "text",
            Kind::StoreTrue | Kind::StoreFalse | Kind::BooleanOptional => "no value",
            Kind::Truthy => "bool",
            Kind::BoolWord => "true or false",
            Kind::CommaInts => "int,int,...",
            Kind::IntOrList => "int or list expression",
        }
    }
}

/// How many values follow a flag (argparse's `nargs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nargs {
    /// Exactly one, stored bare (`nargs=None`); switches use it too and take none.
    One,
    /// Any number, stored as a list (`*`).
    Any,
    /// One or more, stored as a list (`+`).
    Some,
    /// One or more; a single one is stored bare. For flags that take one value in one parser and a list in another.
    OneUp,
    /// Exactly this many, stored as a list.
    Exactly(usize),
}

/// The default of a flag, as upstream's parser states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fallback {
    /// Python `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// Text.
    Str(&'static str),
    /// A list.
    List(&'static [Fallback]),
}

impl Fallback {
    /// The same as an owned value.
    pub fn value(self) -> Value {
        match self {
            Fallback::None => Value::None,
            Fallback::Bool(b) => Value::Bool(b),
            Fallback::Int(i) => Value::Int(i),
            Fallback::Float(f) => Value::Float(f),
            Fallback::Str(s) => Value::Str(s.to_string()),
            Fallback::List(items) => Value::List(items.iter().map(|i| i.value()).collect()),
        }
    }
}

/// One row of a flag table.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Spelling with dashes, for example `--lr`.
    pub name: &'static str,
    /// Other spellings of the same flag.
    pub aliases: &'static [&'static str],
    /// The name under which the value is stored (`args.lr` upstream).
    pub dest: &'static str,
    /// Value type.
    pub kind: Kind,
    /// Value count.
    pub nargs: Nargs,
    /// Legal values; empty means any.
    pub choices: &'static [&'static str],
    /// Value when the flag is absent.
    pub default: Fallback,
    /// One line of help.
    pub help: &'static str,
}

impl Flag {
    /// A flag with argparse's usual defaults: one value, no choices; `None`, or for switches the opposite of what they set.
    pub const fn new(name: &'static str, dest: &'static str, kind: Kind, help: &'static str) -> Flag {
        let default = match kind {
            Kind::StoreTrue | Kind::BooleanOptional => Fallback::Bool(false),
            Kind::StoreFalse => Fallback::Bool(true),
            _ => Fallback::None,
        };
        Flag { name, aliases: &[], dest, kind, nargs: Nargs::One, choices: &[], default, help }
    }

    /// The same flag with another default.
    pub const fn or(self, default: Fallback) -> Flag {
        Flag { default, ..self }
    }

    /// The same flag with a list of legal values.
    pub const fn of(self, choices: &'static [&'static str]) -> Flag {
        Flag { choices, ..self }
    }

    /// The same flag with another value count.
    pub const fn takes(self, nargs: Nargs) -> Flag {
        Flag { nargs, ..self }
    }

    /// The same flag with further spellings.
    pub const fn alias(self, aliases: &'static [&'static str]) -> Flag {
        Flag { aliases, ..self }
    }

    /// All spellings, the main one first.
    pub fn spellings(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

/// Which upstream parser defines a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Megatron-LM main.
    Megatron,
    /// Megatron-DeepSpeed and its BigScience fork.
    MegatronDeepSpeed,
    /// MindSpeed, MindSpeed-LLM, ModelLink.
    MindSpeed,
    /// Older Megatron-LM releases, gone from main.
    Legacy,
    /// This program.
    Ferrotron,
}

/// Flags that belong together in `--help`.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Heading.
    pub name: &'static str,
    /// Parser that defines these flags.
    pub source: Source,
    /// The flags, in upstream's order.
    pub flags: &'static [Flag],
}

/// How far this program honours a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Does what upstream does.
    Acts,
    /// Accepted; changes nothing here, for the stated reason. Listed once at start.
    NoEffect(&'static str),
    /// Parsed; training refuses a non-default value with the stated reason.
    Planned(&'static str),
    /// Removed upstream; any use is an error that names the successor.
    Removed(&'static str),
}
