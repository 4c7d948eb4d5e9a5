//! The JSON header: strict parsing, and writing.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use ferrotron_base::DType;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Most dims that a tensor in a file may have.
const MAX_DIMS: usize = 32;

/// Element types of the format with their size in bytes. Those that [`DType`] lacks can be listed but not read.
const DTYPES: [(&str, u64); 16] = [
    ("F32", 4),
    ("BF16", 2),
    ("F16", 2),
    ("F64", 8),
    ("I64", 8),
    ("I32", 4),
    ("U8", 1),
    ("BOOL", 1),
    ("I8", 1),
    ("I16", 2),
    ("U16", 2),
    ("U32", 4),
    ("U64", 8),
    ("C64", 8),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
];

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type as the file spells it.
    pub dtype_name: &'static str,
    /// Element type; `None` for one that exists in files only (BOOL, fp8 ...).
    pub dtype: Option<DType>,
    /// Shape, outermost dim first.
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the file's data section.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product() // checked when the header was parsed
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header as a list, so that a name given twice is seen.
struct Header {
    tensors: Vec<(String, Raw)>,
    metadata: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Header, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut h = Header { tensors: vec![], metadata: None };
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{name:?} is there twice")));
                    }
                    if name == "__metadata__" {
                        h.metadata = Some(map.next_value()?);
                    } else {
                        h.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(h)
            }
        }
        d.deserialize_map(V)
    }
}

/// Tensors in the order of their data, and the `__metadata__` strings.
pub(super) type Parsed = (Vec<TensorInfo>, BTreeMap<String, String>);

/// Parses a header for a data section of `data_len` bytes. Every byte of it must belong to exactly one tensor.
pub(super) fn parse(json: &[u8], data_len: u64) -> Result<Parsed, String> {
    let header: Header = serde_json::from_slice(json).map_err(|e| format!("header is no valid JSON header: {e}"))?;
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for (name, raw) in header.tensors {
        tensors.push(check(name, raw, data_len)?);
    }
    tensors.sort_by_key(|t| (t.offset, t.bytes));
    let mut at = 0;
    for t in &tensors {
        if t.offset != at {
            return Err(format!("data of {:?} starts at {} but the tensor before it ends at {at}", t.name, t.offset));
        }
        at += t.bytes;
    }
    if at != data_len {
        return Err(format!("tensors take {at} bytes but the file has {data_len} bytes of data"));
    }
    Ok((tensors, header.metadata.unwrap_or_default()))
}

fn check(name: String, raw: Raw, data_len: u64) -> Result<TensorInfo, String> {
    let &(dtype_name, size) = DTYPES
        .iter()
        .find(|(n, _)| *n == raw.dtype)
        .ok_or_else(|| format!("{name:?} has the unknown element type {:?}", raw.dtype))?;
    if raw.shape.len() > MAX_DIMS {
        return Err(format!("{name:?} has {} dims, at most {MAX_DIMS} are read", raw.shape.len()));
    }
    let (begin, end) = raw.data_offsets;
    if begin > end || end > data_len {
        return Err(format!("{name:?} has data offsets {begin}..{end} in {data_len} bytes of data"));
    }
    // A zero dim must not hide the overflow of the others: indices are computed from all of them.
    let nonzero = raw.shape.iter().filter(|&&d| d > 0).try_fold(size, |n, &d| n.checked_mul(d));
    let Some(nonzero) = nonzero.filter(|&n| isize::try_from(n).is_ok()) else {
        return Err(format!("{name:?} has shape {:?}, more than a machine can address", raw.shape));
    };
    let bytes = if raw.shape.contains(&0) { 0 } else { nonzero };
    if bytes != end - begin {
        return Err(format!(
            "{name:?} is {dtype_name} {:?} = {bytes} bytes but has data offsets {begin}..{end}",
            raw.shape
        ));
    }
    let shape = raw.shape.iter().map(|&d| d as usize).collect();
    Ok(TensorInfo { name, dtype_name, dtype: DType::parse(dtype_name), shape, offset: begin, bytes })
}

/// Renders the header of tensors that lie one after another, padded with spaces so that the data starts at a multiple
/// of 64 bytes of the file. Returns the length prefix and the JSON.
pub(super) fn render<'a>(
    metadata: &[(&str, &str)],
    tensors: impl Iterator<Item = (&'a str, DType, &'a [usize])>,
) -> Vec<u8> {
    let mut json = String::from("{");
    if !metadata.is_empty() {
        json.push_str("\"__metadata__\":{");
        for (i, (k, v)) in metadata.iter().enumerate() {
            json.push_str(&format!("{}{}:{}", if i > 0 { "," } else { "" }, quoted(k), quoted(v)));
        }
        json.push('}');
    }
    let mut at = 0;
    for (name, dtype, shape) in tensors {
        let end = at + shape.iter().product::<usize>() * dtype.size();
        let comma = if json.len() > 1 { "," } else { "" };
        let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
        json.push_str(&format!(
            "{comma}{}:{{\"dtype\":\"{dtype}\",\"shape\":[{}],\"data_offsets\":[{at},{end}]}}",
            quoted(name),
            dims.join(",")
        ));
        at = end;
    }
    json.push('}');
    while !(8 + json.len()).is_multiple_of(64) {
        json.push(' ');
    }
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json.into_bytes());
    out
}

fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}
