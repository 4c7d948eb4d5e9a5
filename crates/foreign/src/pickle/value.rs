//! What a pickle is made of, as plain values.

use std::sync::Arc;

use serde_json::{Map, Number};

/// A value. Containers and objects are nodes of a [`Pickle`], so that they may be shared, and even hold themselves.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// None
    None,
    /// True, False
    Bool(bool),
    /// An int of 64 bits.
    Int(i64),
    /// An int that has more.
    BigInt,
    /// A float.
    Float(f64),
    /// A str.
    Str(Arc<str>),
    /// bytes
    Bytes(Arc<[u8]>),
    /// A class or function, `module.name`; never called.
    Global(Arc<str>),
    /// A node's number.
    Node(usize),
}

/// A container or object.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// tuple
    Tuple(Vec<Value>),
    /// list, set
    List(Vec<Value>),
    /// dict, OrderedDict
    Dict(Vec<(Value, Value)>),
    /// A storage of torch.
    Storage(Storage),
    /// A tensor of torch.
    Tensor(Tensor),
    /// Anything else: what would have been called or made, with what, and the state it would have been given.
    Object {
        /// `module.name`
        class: Arc<str>,
        /// Arguments.
        args: Value,
        /// State.
        state: Value,
    },
}

/// A storage: numbers of one type in one entry of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its class (`torch.BFloat16Storage`), or its numbers' type (`torch.bfloat16`).
    pub kind: Arc<str>,
    /// The entry `data/KEY`.
    pub key: Arc<str>,
}

/// A tensor: a view of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The storage.
    pub storage: Storage,
    /// First element.
    pub offset: usize,
    /// Extent in each dim.
    pub shape: Vec<usize>,
    /// Elements from one index to the next in each dim.
    pub stride: Vec<usize>,
}

impl Tensor {
    /// True if its elements lie one after another, in row order.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1usize;
        for (&n, &stride) in self.shape.iter().zip(&self.stride).rev() {
            if n > 1 && stride != step {
                return false;
            }
            step = step.saturating_mul(n);
        }
        true
    }
}

/// A pickle that has been read.
#[derive(Debug)]
pub struct Pickle {
    pub(super) nodes: Vec<Node>,
    pub(super) root: Value,
}

impl Pickle {
    /// The value that the pickle is of.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// A node.
    pub fn node(&self, v: &Value) -> Option<&Node> {
        match v {
            Value::Node(i) => self.nodes.get(*i),
            _ => None,
        }
    }

    /// Items of a tuple or list.
    pub fn items(&self, v: &Value) -> Option<&[Value]> {
        match self.node(v)? {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// Pairs of a dict.
    pub fn pairs(&self, v: &Value) -> Option<&[(Value, Value)]> {
        match self.node(v)? {
            Node::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// An item of a dict, or an attribute of an object.
    pub fn get(&self, v: &Value, key: &str) -> Option<&Value> {
        let pairs = match self.node(v)? {
            Node::Dict(pairs) => pairs,
            Node::Object { state, .. } => match self.items(state) {
                // classes with slots: (dict or None, slots)
                Some([a, b]) => self.pairs(b).or_else(|| self.pairs(a))?,
                _ => self.pairs(state)?,
            },
            _ => return None,
        };
        pairs.iter().rev().find(|(k, _)| self.text(k) == Some(key)).map(|(_, v)| v)
    }

    /// A str.
    pub fn text<'a>(&self, v: &'a Value) -> Option<&'a str> {
        match v {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// An int.
    pub fn int(&self, v: &Value) -> Option<i64> {
        match v {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// A tuple or list of sizes.
    pub fn sizes(&self, v: &Value) -> Option<Vec<usize>> {
        self.items(v)?.iter().map(|v| usize::try_from(self.int(v)?).ok()).collect()
    }

    /// A tensor.
    pub fn tensor(&self, v: &Value) -> Option<&Tensor> {
        match self.node(v)? {
            Node::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// What a value is, in a word or two, for an error.
    pub fn kind(&self, v: &Value) -> String {
        match v {
            Value::None => "None".into(),
            Value::Bool(_) => "a bool".into(),
            Value::Int(_) | Value::BigInt => "an int".into(),
            Value::Float(_) => "a float".into(),
            Value::Str(_) => "a str".into(),
            Value::Bytes(_) => "bytes".into(),
            Value::Global(name) => format!("the class or function {name}"),
            Value::Node(_) => match self.node(v) {
                Some(Node::Tuple(_)) => "a tuple".into(),
                Some(Node::List(_)) => "a list".into(),
                Some(Node::Dict(_)) => "a dict".into(),
                Some(Node::Storage(_)) => "a storage".into(),
                Some(Node::Tensor(_)) => "a tensor".into(),
                Some(Node::Object { class, .. }) => format!("an object of {class}"),
                None => "nothing".into(),
            },
        }
    }

    /// The plain attributes of an `argparse.Namespace` (or items of a dict): null, bool, numbers, text, and lists of them.
    /// Others are left out, and so is what comes after very many.
    pub fn plain(&self, v: &Value) -> Map<String, serde_json::Value> {
        /// Values in all: lists that are shared or hold each other would have no end.
        const MOST: usize = 1 << 16;
        let pairs = match self.node(v) {
            Some(Node::Dict(pairs)) => pairs.as_slice(),
            Some(Node::Object { state, .. }) => self.pairs(state).unwrap_or_default(),
            _ => &[],
        };
        let (mut all, mut left) = (Map::new(), MOST);
        for (k, v) in pairs {
            if let (Some(k), Some(v)) = (self.text(k), self.json(v, 0, &mut left)) {
                all.insert(k.into(), v);
            }
        }
        all
    }

    fn json(&self, v: &Value, depth: usize, left: &mut usize) -> Option<serde_json::Value> {
        /// Lists within lists.
        const DEEP: usize = 3;
        *left = left.checked_sub(1)?;
        Some(match v {
            Value::None => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Int(n) => (*n).into(),
            Value::Float(f) => serde_json::Value::Number(Number::from_f64(*f)?),
            Value::Str(s) => s.as_ref().into(),
            Value::Node(_) if depth < DEEP => {
                let items = self.items(v)?.iter().map(|v| self.json(v, depth + 1, left));
                serde_json::Value::Array(items.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}
