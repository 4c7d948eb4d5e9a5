//! What stands for the classes and functions that a pickle names. Nothing is ever called.

use std::sync::Arc;

use super::value::{Node, Storage, Tensor, Value};

/// Modules whose functions no checkpoint needs, and that pickles made to do harm call.
const REFUSED: [&str; 21] = [
    "os",
    "posix",
    "nt",
    "posixpath",
    "subprocess",
    "sys",
    "socket",
    "shutil",
    "pty",
    "runpy",
    "importlib",
    "code",
    "commands",
    "webbrowser",
    "ctypes",
    "multiprocessing",
    "pickle",
    "requests",
    "urllib",
    "asyncio",
    "tempfile",
];
/// Built-in functions that make code of text, or open files.
const REFUSED_BUILTINS: [&str; 8] =
    ["eval", "exec", "compile", "execfile", "__import__", "open", "breakpoint", "input"];
/// Bytes of the name of a storage's entry.
const KEY: usize = 64;
/// Dims of a tensor.
const DIMS: usize = 16;

/// Whether a call of `module.name` is a sign of a file that is made to do harm.
pub fn is_hostile(global: &str) -> bool {
    let (module, name) = global.rsplit_once('.').unwrap_or(("", global));
    let top = module.split('.').next().unwrap_or_default();
    REFUSED.contains(&top) || (matches!(top, "builtins" | "__builtin__") && REFUSED_BUILTINS.contains(&name))
}

/// What a call of `global` with `args` stands for.
pub enum Made {
    /// A node.
    Node(Node),
    /// A value that is there.
    Value(Value),
}

/// Sizes of a tuple.
fn sizes(nodes: &[Node], v: &Value) -> Option<Vec<usize>> {
    let Value::Node(i) = v else { return None };
    let (Node::Tuple(items) | Node::List(items)) = nodes.get(*i)? else { return None };
    let size = |v: &Value| match v {
        Value::Int(n) => usize::try_from(*n).ok(),
        _ => None,
    };
    if items.len() > DIMS { None } else { items.iter().map(size).collect() }
}

/// `(storage, offset, size, stride, ...)` of `torch._utils._rebuild_tensor_v2`, and `_v3`, which states its type seventh.
fn tensor(nodes: &[Node], args: &[Value], typed: bool) -> Option<Tensor> {
    let (Some(Value::Node(s)), Some(Value::Int(offset))) = (args.first(), args.get(1)) else { return None };
    let Node::Storage(storage) = nodes.get(*s)? else { return None };
    let mut storage = storage.clone();
    if typed {
        let Some(Value::Global(dtype)) = args.get(6) else { return None };
        storage.kind = dtype.clone();
    }
    let (shape, stride) = (sizes(nodes, args.get(2)?)?, sizes(nodes, args.get(3)?)?);
    // The last element's position must be a number.
    let last = shape.iter().zip(&stride).try_fold(usize::try_from(*offset).ok()?, |at, (n, stride)| {
        n.saturating_sub(1).checked_mul(*stride).and_then(|d| at.checked_add(d))
    });
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let fits = last.is_some() && count.is_some() && shape.len() == stride.len();
    fits.then_some(Tensor { storage, offset: usize::try_from(*offset).ok()?, shape, stride })
}

/// What `global(*args)` stands for. `Err`: the arguments are not what that function takes.
pub fn call(nodes: &[Node], global: &Arc<str>, args: &Value) -> Result<Made, String> {
    let list: &[Value] = match args {
        Value::Node(i) => match nodes.get(*i) {
            Some(Node::Tuple(items)) => items,
            _ => &[],
        },
        _ => &[],
    };
    let wrong = || format!("calls {global} with other arguments than it takes");
    Ok(match global.as_ref() {
        "collections.OrderedDict" if list.is_empty() => Made::Node(Node::Dict(vec![])),
        "collections.defaultdict" => Made::Node(Node::Dict(vec![])),
        "torch.Size" => match list {
            [v @ Value::Node(_)] => Made::Value(v.clone()),
            _ => return Err(wrong()),
        },
        "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor" => {
            Made::Node(Node::Tensor(tensor(nodes, list, false).ok_or_else(wrong)?))
        }
        "torch._utils._rebuild_tensor_v3" => Made::Node(Node::Tensor(tensor(nodes, list, true).ok_or_else(wrong)?)),
        "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
            Made::Value(list.first().cloned().ok_or_else(wrong)?)
        }
        _ => Made::Node(Node::Object { class: global.clone(), args: args.clone(), state: Value::None }),
    })
}

/// `('storage', class, key, location, elements)`, the only persistent id of torch.
pub fn storage(nodes: &[Node], id: &Value) -> Option<Storage> {
    let Value::Node(i) = id else { return None };
    let Some(Node::Tuple(items)) = nodes.get(*i) else { return None };
    match items.as_slice() {
        [Value::Str(what), Value::Global(class), Value::Str(key), ..] if what.as_ref() == "storage" => {
            (key.len() <= KEY).then(|| Storage { kind: class.clone(), key: key.clone() })
        }
        _ => None,
    }
}
