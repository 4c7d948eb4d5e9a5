//! What the tests share: files as `torch.save` writes them, made here by other code than reads them.
#![allow(dead_code)] // each test file uses its part

use std::path::{Path, PathBuf};

/// A folder that goes away with the test.
pub struct Temp(pub PathBuf);

impl Temp {
    pub fn new(name: &str) -> Temp {
        let dir = std::env::temp_dir().join(format!("ferrotron-foreign-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Temp(dir)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A golden file or folder.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A copy of a golden checkpoint.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for e in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(e.file_name());
        match e.path().is_dir() {
            true => copy(&e.path(), &to),
            false => assert!(std::fs::copy(e.path(), to).is_ok()),
        }
    }
}

/// A Python value.
#[derive(Clone)]
pub enum Py {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Tuple(Vec<Py>),
    Dict(Vec<(String, Py)>),
    /// argparse.Namespace
    Namespace(Vec<(String, Py)>),
    /// A dict with keys of any kind.
    Map(Vec<(Py, Py)>),
    List(Vec<Py>),
    /// An object of a class: module, name, attributes.
    Object(&'static str, &'static str, Vec<(String, Py)>),
    /// A float tensor of storage 0: first element, shape.
    Tensor(usize, Vec<usize>),
    /// Opcodes.
    Raw(Vec<u8>),
}

pub fn s(text: &str) -> Py {
    Py::Str(text.into())
}

pub fn dict(items: &[(&str, Py)]) -> Py {
    Py::Dict(items.iter().map(|(k, v)| (k.to_string(), v.clone())).collect())
}

fn put(v: &Py, out: &mut Vec<u8>) {
    let text = |t: &str, out: &mut Vec<u8>| {
        out.push(b'X');
        out.extend((t.len() as u32).to_le_bytes());
        out.extend(t.as_bytes());
    };
    let items = |items: &[(String, Py)], out: &mut Vec<u8>| {
        out.extend(b"}(");
        for (k, v) in items {
            text(k, out);
            put(v, out);
        }
        out.push(b'u');
    };
    match v {
        Py::None => out.push(b'N'),
        Py::Bool(b) => out.push(if *b { 0x88 } else { 0x89 }),
        Py::Int(n) => {
            out.extend([0x8a, 8]);
            out.extend(n.to_le_bytes());
        }
        Py::Float(f) => {
            out.push(b'G');
            out.extend(f.to_be_bytes());
        }
        Py::Str(t) => text(t, out),
        Py::Tuple(all) => {
            out.push(b'(');
            all.iter().for_each(|v| put(v, out));
            out.push(b't');
        }
        Py::Dict(all) => items(all, out),
        Py::Map(all) => {
            out.extend(b"}(");
            all.iter().for_each(|(k, v)| [k, v].iter().for_each(|v| put(v, out)));
            out.push(b'u');
        }
        Py::List(all) => {
            out.extend(b"](");
            all.iter().for_each(|v| put(v, out));
            out.push(b'e');
        }
        Py::Object(module, name, all) => {
            out.extend(format!("c{module}\n{name}\n)\u{1}").as_bytes());
            if let Some(last) = out.last_mut() {
                *last = 0x81;
            }
            items(all, out);
            out.push(b'b');
        }
        Py::Namespace(all) => {
            out.extend(b"cargparse\nNamespace\n)\x81");
            items(all, out);
            out.push(b'b');
        }
        Py::Tensor(first, shape) => {
            let mut stride = vec![1; shape.len()];
            for d in (1..shape.len()).rev() {
                stride[d - 1] = stride[d] * shape[d];
            }
            let sizes = |all: &[usize]| Py::Tuple(all.iter().map(|n| Py::Int(*n as i64)).collect());
            out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            text("storage", out);
            out.extend(b"ctorch\nFloatStorage\n");
            [s("0"), s("cpu"), Py::Int(0)].iter().for_each(|v| put(v, out));
            out.extend(b"tQ");
            [Py::Int(*first as i64), sizes(shape), sizes(&stride), Py::Bool(false)].iter().for_each(|v| put(v, out));
            out.extend(b"ccollections\nOrderedDict\n)RtR");
        }
        Py::Raw(bytes) => out.extend(bytes),
    }
}

/// The pickle of a value, protocol 2.
pub fn pickle(v: &Py) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(v, &mut out);
    out.push(b'.');
    out
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut c = !0u32;
    for b in bytes {
        c ^= u32::from(*b);
        for _ in 0..8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
        }
    }
    !c
}

/// A zip archive of stored entries; `wide`: with zip64 records, as beyond 4 GiB.
pub fn zip(entries: &[(&str, &[u8])], wide: bool) -> Vec<u8> {
    let (mut out, mut directory) = (vec![], vec![]);
    let none = [0u8; 8];
    for (name, data) in entries {
        let at = out.len() as u64;
        let (len, crc, n) = (data.len() as u32, crc32(data).to_le_bytes(), (name.len() as u16).to_le_bytes());
        let short = if wide { u32::MAX } else { len }.to_le_bytes();
        let extra: Vec<u8> = match wide {
            true => {
                [&[1u8, 0, 24, 0][..], &u64::from(len).to_le_bytes(), &u64::from(len).to_le_bytes(), &at.to_le_bytes()]
                    .concat()
            }
            false => vec![],
        };
        let m = (extra.len() as u16).to_le_bytes();
        // torch pads the local header so that data begins at a multiple of 64
        let pad = [&b"FB"[..], &[5, 0], b"ZZZZZ"].concat();
        let p = (pad.len() as u16).to_le_bytes();
        let local = len.to_le_bytes();
        out.extend(
            [b"PK\x03\x04", &none[..6], &none[..4], &crc, &local, &local, &n, &p, name.as_bytes(), &pad].concat(),
        );
        out.extend(*data);
        let first = if wide { u32::MAX } else { at as u32 }.to_le_bytes();
        directory.extend(b"PK\x01\x02");
        directory.extend([&none[..6], &none[..6], &crc, &short, &short, &n, &m, &none[..8], &none[..2]].concat());
        directory.extend([&first[..], name.as_bytes(), &extra].concat());
    }
    let (start, len, count) = (out.len() as u64, directory.len() as u64, entries.len() as u64);
    out.extend(directory);
    if wide {
        let at = out.len() as u64;
        out.extend(b"PK\x06\x06");
        out.extend(44u64.to_le_bytes());
        out.extend([0; 12]);
        [count, count, len, start].iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(b"PK\x06\x07\0\0\0\0");
        out.extend(at.to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    let narrow = |n: u64| if wide { u32::MAX } else { n as u32 };
    let count = if wide { u16::MAX } else { count as u16 }.to_le_bytes();
    out.extend([b"PK\x05\x06", &none[..4], &count, &count].concat());
    [narrow(len), narrow(start)].iter().for_each(|n| out.extend(n.to_le_bytes()));
    out.extend([0, 0]);
    out
}

/// A file of `torch.save`: a value, and the floats of storage 0.
pub fn torch_file(v: &Py, floats: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
    let pickle = pickle(v);
    let entries: [(&str, &[u8]); 4] =
        [("a/data.pkl", &pickle), ("a/byteorder", b"little"), ("a/data/0", &data), ("a/version", b"3\n")];
    zip(&entries, false)
}

/// Writes a file below `dir`, and its folders.
pub fn write(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}
