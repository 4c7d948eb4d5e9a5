//! The stack machine.

use std::collections::HashMap;
use std::sync::Arc;

use super::globals::{Made, call, is_hostile, storage};
use super::value::{Node, Pickle, Value};

/// Most values that a pickle makes. Metadata of a large `torch_dist` checkpoint makes millions.
pub const MAX_ITEMS: usize = 1 << 26;
/// Bytes of a class's or module's name: names are put together, and must not multiply what the input has.
const NAME: usize = 256;
/// What a tensor counts: its sizes are values too.
const TENSOR: usize = 8;

/// What went wrong, without the position.
type Step<T> = Result<T, String>;

/// Reads a pickle.
///
/// # Errors
/// What is wrong and at which byte: truncated, an opcode that is not used by `torch.save`, a call that does harm, too many items.
pub fn load(bytes: &[u8]) -> Result<Pickle, String> {
    let mut m = Machine { bytes, at: 0, stack: vec![], marks: vec![], memo: HashMap::new(), nodes: vec![], made: 0 };
    loop {
        let at = m.at;
        match m.step() {
            Ok(None) => {}
            Ok(Some(root)) => return Ok(Pickle { nodes: m.nodes, root }),
            Err(what) => return Err(format!("its pickle is not read: byte {at}: {what}")),
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    nodes: Vec<Node>,
    /// Values so far.
    made: usize,
}

impl<'a> Machine<'a> {
    fn take(&mut self, n: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("it ends early: {n} bytes wanted, {} left", self.bytes.len() - self.at))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A little-endian number of at most 8 bytes.
    fn number(&mut self, bytes: usize) -> Step<u64> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    /// As many bytes as a number says that comes before them.
    fn counted(&mut self, width: usize) -> Step<&'a [u8]> {
        let n = usize::try_from(self.number(width)?).map_err(|_| "a length of more than 64 bits".to_string())?;
        self.take(n)
    }

    /// Text up to the end of a line.
    fn line(&mut self) -> Step<&'a str> {
        let rest = &self.bytes[self.at..];
        let n = rest.iter().position(|&b| b == b'\n').ok_or("a name without an end")?;
        let line = std::str::from_utf8(self.take(n)?).map_err(|_| "a name that is not UTF-8")?;
        self.at += 1;
        Ok(line)
    }

    fn count(&mut self, n: usize) -> Step<()> {
        self.made += n;
        if self.made > MAX_ITEMS {
            return Err(format!("it has more than {MAX_ITEMS} items"));
        }
        Ok(())
    }

    fn push(&mut self, v: Value) -> Step<()> {
        self.count(1)?;
        self.stack.push(v);
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err("it takes a value where none is".into());
        }
        self.stack.pop().ok_or_else(|| "it takes a value where none is".into())
    }

    /// Values above the last mark.
    fn above_mark(&mut self) -> Step<Vec<Value>> {
        let at = self.marks.pop().ok_or("it goes back to a mark where none is")?;
        Ok(self.stack.split_off(at.min(self.stack.len())))
    }

    fn node(&mut self, node: Node) -> Step<()> {
        let id = self.nodes.len();
        self.push(Value::Node(id))?;
        self.nodes.push(node);
        Ok(())
    }

    fn tuple(&mut self, n: usize) -> Step<()> {
        let mut items = vec![Value::None; n];
        for v in items.iter_mut().rev() {
            *v = self.pop()?;
        }
        self.node(Node::Tuple(items))
    }

    /// The node on top of the stack.
    fn top(&mut self) -> Step<&mut Node> {
        match self.stack.last() {
            Some(Value::Node(i)) => self.nodes.get_mut(*i).ok_or_else(|| "it names a node that is not there".into()),
            _ => Err("it adds to something that is no container".into()),
        }
    }

    fn append(&mut self, items: Vec<Value>) -> Step<()> {
        match self.top()? {
            Node::List(list) => list.extend(items),
            Node::Object { .. } => {} // of a class of its own: kept by name only
            _ => return Err("it appends to something that is no list".into()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Value>) -> Step<()> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("a key without a value".into());
        }
        match self.top()? {
            Node::Dict(dict) => dict.extend(pairs.iter().map(|[k, v]| (k.clone(), v.clone()))),
            Node::Object { .. } => {}
            _ => return Err("it sets items of something that is no dict".into()),
        }
        Ok(())
    }

    fn put(&mut self, at: u64) -> Step<()> {
        let v = self.stack.last().cloned().ok_or("it notes a value where none is")?;
        let at = u32::try_from(at).map_err(|_| "more notes than 32 bits count")?;
        self.count(1)?;
        self.memo.insert(at, v);
        Ok(())
    }

    fn get(&mut self, at: u64) -> Step<()> {
        let found = u32::try_from(at).ok().and_then(|at| self.memo.get(&at).cloned());
        self.push(found.ok_or_else(|| format!("it asks for note {at}, which was never made"))?)
    }

    fn call(&mut self, f: &Value, args: Value) -> Step<()> {
        let Value::Global(name) = f else {
            // What a call gave is called: a thing without a name of its own.
            return self.node(Node::Object { class: "an object".into(), args, state: Value::None });
        };
        if is_hostile(name) {
            return Err(format!(
                "it calls {name}, which no checkpoint does: this file is made to run code in programs that execute pickles. \
                 Nothing was executed here; do not open it with torch.load"
            ));
        }
        match call(&self.nodes, name, &args)? {
            Made::Node(node) => {
                self.count(if matches!(node, Node::Tensor(_)) { TENSOR } else { 0 })?;
                self.node(node)
            }
            Made::Value(v) => self.push(v),
        }
    }

    fn build(&mut self) -> Step<()> {
        let state = self.pop()?;
        match self.stack.last() {
            Some(Value::Node(_)) => {
                if let Node::Object { state: s, .. } = self.top()? {
                    *s = state;
                }
                Ok(()) // attributes of a dict or tensor: not needed
            }
            _ => Err("it gives a state to something that is no object".into()),
        }
    }

    fn text(&mut self, width: usize) -> Step<()> {
        let bytes = self.counted(width)?;
        // Python lets lone surrogates through; no name in a checkpoint has one.
        let text = std::str::from_utf8(bytes).map_err(|_| "text that is not UTF-8")?;
        self.push(Value::Str(text.into()))
    }

    fn bytes(&mut self, width: usize) -> Step<()> {
        let bytes = self.counted(width)?;
        self.push(Value::Bytes(bytes.into()))
    }

    fn long(&mut self, width: usize) -> Step<()> {
        let bytes = self.counted(width)?;
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let v = if bytes.len() > 8 {
            Value::BigInt
        } else {
            let mut all = [if negative { 0xff } else { 0 }; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(all))
        };
        self.push(v)
    }

    fn global(&mut self, module: &str, name: &str) -> Step<()> {
        if module.len() + name.len() > NAME {
            return Err(format!("the name of a class has more than {NAME} bytes"));
        }
        self.push(Value::Global(format!("{module}.{name}").into()))
    }

    /// One opcode. `Some`: the end, with the value.
    fn step(&mut self) -> Step<Option<Value>> {
        let op = self.number(1)? as u8;
        match op {
            0x80 => match self.number(1)? {
                2..=4 => {}
                n => return Err(format!("protocol {n}; 2 to 4 are read")),
            },
            0x95 => drop(self.number(8)?), // a frame: only a hint for reading
            b'.' => return self.pop().map(Some),
            b'(' => {
                self.count(1)?;
                self.marks.push(self.stack.len());
            }
            b'0' => drop(self.pop()?),
            b'1' => drop(self.above_mark()?),
            b'2' => {
                let v = self.stack.last().cloned().ok_or("it doubles a value where none is")?;
                self.push(v)?;
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let n = self.number(4)? as u32 as i32;
                self.push(Value::Int(n.into()))?;
            }
            b'K' | b'M' => {
                let n = self.number(if op == b'K' { 1 } else { 2 })?;
                self.push(Value::Int(n as i64))?;
            }
            0x8a => self.long(1)?,
            0x8b => self.long(4)?,
            b'G' => {
                let n = self.number(8)?.swap_bytes(); // the one number with its high byte first
                self.push(Value::Float(f64::from_bits(n)))?;
            }
            b'X' | b'T' => self.text(4)?,
            0x8c | b'U' => self.text(1)?,
            0x8d => self.text(8)?,
            b'B' => self.bytes(4)?,
            b'C' => self.bytes(1)?,
            0x8e => self.bytes(8)?,
            b']' | 0x8f => self.node(Node::List(vec![]))?,
            b'}' => self.node(Node::Dict(vec![]))?,
            b')' => self.node(Node::Tuple(vec![]))?,
            0x85..=0x87 => self.tuple(usize::from(op - 0x84))?,
            b't' => {
                let items = self.above_mark()?;
                self.node(Node::Tuple(items))?;
            }
            0x91 => {
                let items = self.above_mark()?;
                self.node(Node::List(items))?;
            }
            b'a' => {
                let v = self.pop()?;
                self.append(vec![v])?;
            }
            b'e' | 0x90 => {
                let items = self.above_mark()?;
                self.append(items)?;
            }
            b's' => {
                let (v, k) = (self.pop()?, self.pop()?);
                self.set_items(vec![k, v])?;
            }
            b'u' => {
                let items = self.above_mark()?;
                self.set_items(items)?;
            }
            b'q' => {
                let at = self.number(1)?;
                self.put(at)?;
            }
            b'r' => {
                let at = self.number(4)?;
                self.put(at)?;
            }
            0x94 => self.put(self.memo.len() as u64)?,
            b'h' => {
                let at = self.number(1)?;
                self.get(at)?;
            }
            b'j' => {
                let at = self.number(4)?;
                self.get(at)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (module, name) {
                    (Value::Str(module), Value::Str(name)) => self.global(&module, &name)?,
                    _ => return Err("it names a class by something that is no text".into()),
                }
            }
            b'R' | 0x81 => {
                let (args, f) = (self.pop()?, self.pop()?);
                self.call(&f, args)?;
            }
            0x92 => {
                let (_, args, f) = (self.pop()?, self.pop()?, self.pop()?);
                self.call(&f, args)?;
            }
            b'b' => self.build()?,
            b'Q' => {
                let id = self.pop()?;
                let node = match storage(&self.nodes, &id) {
                    Some(s) => Node::Storage(s),
                    None => Node::Object { class: Arc::from("a persistent id"), args: id, state: Value::None },
                };
                self.node(node)?;
            }
            other => return Err(format!("opcode {other:#04x}, which torch.save does not write")),
        }
        Ok(None)
    }
}
