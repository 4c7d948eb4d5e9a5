//! How tensors of a published model map to ours.
//!
//! Hugging Face keeps q, k, v and gate, up apart; we (as Megatron) fuse them: qkv rows in KV-group order, gate then
//! up. A mapping is linear, so it serves weights and gradients alike.

use std::ops::Range;

use ferrotron_nn::RopeScaling;

use crate::ModelConfig;

/// A tensor of a published model: shape and values.
#[derive(Clone, Debug, PartialEq)]
pub struct HfTensor {
    /// Dims.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
}

/// What is wrong with a published model.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// A tensor that the configuration implies is not in the files.
    #[error("tensor {0} is not in the model's files, though its config.json implies it")]
    Missing(String),
    /// A tensor has other dims than the configuration implies.
    #[error("tensor {key} should have {expected} elements by config.json, not {got}")]
    Size {
        /// The tensor's key.
        key: String,
        /// Elements that the configuration implies.
        expected: usize,
        /// Elements there are.
        got: usize,
    },
    /// `config.json` lacks a field or has one of the wrong type.
    #[error("config.json: {field} should be {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is expected.
        expected: &'static str,
    },
    /// A feature that this family's code here does not have.
    #[error("config.json: {field} = {value} is not supported: {supported}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What works.
        supported: &'static str,
    },
}

/// How one of our parameters comes from published tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The same tensor.
    Same(String),
    /// Its transpose (GPT-2 stores `[in,out]`).
    Transposed(String),
    /// Tensors stacked along dim 0.
    Stacked(Vec<String>),
    /// q, k, v (weights or biases) into group order.
    Qkv([String; 3]),
    /// GPT-2's `[in, 3H]` (or `[3H]`): q, k, v side by side, into group order.
    FusedQkv(String),
}

/// One parameter of ours: its name (Megatron's) and its source.
pub type Mapping = Vec<(String, Source)>;

/// Our tensor's values from the published ones.
pub fn assemble(c: &ModelConfig, source: &Source, get: &dyn Fn(&str) -> Option<HfTensor>) -> Result<Vec<f32>, HfError> {
    let fetch = |key: &str| get(key).ok_or_else(|| HfError::Missing(key.into()));
    match source {
        Source::Same(key) => Ok(fetch(key)?.values),
        Source::Transposed(key) => {
            let t = fetch(key)?;
            Ok(transpose(&t.values, t.shape.first().copied().unwrap_or(1)))
        }
        Source::Stacked(keys) => {
            let mut out = vec![];
            for key in keys {
                out.extend(fetch(key)?.values);
            }
            Ok(out)
        }
        Source::Qkv([q, k, v]) => {
            let width = |key: &str, heads: usize| -> Result<(Vec<f32>, usize), HfError> {
                let t = fetch(key)?;
                let rows = heads * c.head_dim;
                let cols = if t.shape.len() > 1 { c.hidden } else { 1 };
                if t.values.len() != rows * cols {
                    return Err(HfError::Size { key: key.into(), expected: rows * cols, got: t.values.len() });
                }
                Ok((t.values, cols))
            };
            let ((q, cols), (k, _), (v, _)) = (width(q, c.heads)?, width(k, c.groups)?, width(v, c.groups)?);
            Ok(interleave(c, &q, &k, &v, cols))
        }
        Source::FusedQkv(key) => {
            let t = fetch(key)?;
            let (cols, values) =
                if t.shape.len() > 1 { (c.hidden, transpose(&t.values, c.hidden)) } else { (1, t.values) };
            let part = c.heads * c.head_dim * cols;
            if values.len() != 3 * part {
                return Err(HfError::Size { key: key.clone(), expected: 3 * part, got: values.len() });
            }
            Ok(interleave(c, &values[..part], &values[part..2 * part], &values[2 * part..], cols))
        }
    }
}

/// Published tensors from our tensor's shape and values: what undoes [`assemble`]. Without values their shapes alone.
pub fn disassemble(c: &ModelConfig, source: &Source, shape: &[usize], values: &[f32]) -> Vec<(String, HfTensor)> {
    let tensor = |key: &str, shape: Vec<usize>, values: Vec<f32>| (key.to_string(), HfTensor { shape, values });
    let cols = if shape.len() > 1 { shape[1] } else { 1 };
    let with_rows = |rows: usize| if shape.len() > 1 { vec![rows, cols] } else { vec![rows] };
    match source {
        Source::Same(key) => vec![tensor(key, shape.to_vec(), values.to_vec())],
        Source::Transposed(key) => vec![tensor(key, vec![cols, shape[0]], transpose(values, shape[0]))],
        Source::Stacked(keys) => {
            let rows = shape[0] / keys.len().max(1);
            let part = |i: usize| values.get(i * rows * cols..(i + 1) * rows * cols).unwrap_or_default().to_vec();
            keys.iter().enumerate().map(|(i, key)| tensor(key, with_rows(rows), part(i))).collect()
        }
        Source::Qkv(keys) => {
            let parts = separate(c, values, cols);
            let rows = [c.heads, c.groups, c.groups].map(|n| n * c.head_dim);
            let each = keys.iter().zip(rows).zip(parts);
            each.map(|((key, rows), part)| tensor(key, with_rows(rows), part)).collect()
        }
        Source::FusedQkv(key) => {
            let rows = separate(c, values, cols).concat();
            let n = shape[0];
            match shape.len() {
                1 => vec![tensor(key, vec![n], rows)],
                _ => vec![tensor(key, vec![cols, n], transpose(&rows, n))],
            }
        }
    }
}

/// Where elements `range` of our tensor lie in published ones, in order: `f(key, first element, elements)`. `size` gives the
/// elements of a published tensor. `Ok(false)`: they do not lie in order, and the tensor must be assembled.
pub fn runs(
    c: &ModelConfig,
    source: &Source,
    range: Range<usize>,
    size: &dyn Fn(&str) -> Result<usize, HfError>,
    f: &mut dyn FnMut(&str, usize, usize),
) -> Result<bool, HfError> {
    let mut at = range.start;
    // up to `end`, which of our elements are those of `key` from `first` on, for those from `begin` on here
    let mut take = |key: &str, begin: usize, end: usize, first: usize| {
        let stop = end.min(range.end);
        if at >= begin && at < stop {
            f(key, first + (at - begin), stop - at);
            at = stop;
        }
    };
    match source {
        Source::Same(key) => take(key, 0, range.end, 0),
        Source::Stacked(keys) => {
            let mut begin = 0;
            for key in keys {
                let n = size(key)?;
                take(key, begin, begin + n, 0);
                begin += n;
            }
        }
        Source::Qkv(keys) => {
            let cols = size(&keys[1])? / (c.groups * c.head_dim).max(1);
            let head = c.head_dim * cols;
            let rows = [c.heads / c.groups.max(1) * head, head, head];
            let per_group: usize = rows.iter().sum();
            for group in range.start / per_group.max(1)..range.end.div_ceil(per_group.max(1)) {
                let mut begin = group * per_group;
                for (key, n) in keys.iter().zip(rows) {
                    take(key, begin, begin + n, group * n);
                    begin += n;
                }
            }
        }
        Source::Transposed(_) | Source::FusedQkv(_) => return Ok(false),
    }
    Ok(true)
}

/// Rows in KV-group order, each `cols` wide, apart: q, k, v.
fn separate(c: &ModelConfig, values: &[f32], cols: usize) -> [Vec<f32>; 3] {
    let head = c.head_dim * cols;
    let per_group = [c.heads / c.groups.max(1) * head, head, head];
    let mut parts = [vec![], vec![], vec![]];
    let mut rest = values;
    while !rest.is_empty() {
        for (part, n) in parts.iter_mut().zip(per_group) {
            let (rows, after) = rest.split_at(n.min(rest.len()));
            part.extend_from_slice(rows);
            rest = after;
        }
    }
    parts
}

/// `[rows, n]` to `[n, rows]`.
fn transpose(values: &[f32], rows: usize) -> Vec<f32> {
    let n = values.len() / rows.max(1);
    (0..values.len()).map(|i| values[i % rows * n + i / rows]).collect()
}

/// Rows of q, k, v (each row `cols` wide) in KV-group order.
fn interleave(c: &ModelConfig, q: &[f32], k: &[f32], v: &[f32], cols: usize) -> Vec<f32> {
    let head = c.head_dim * cols;
    let per_group = c.heads / c.groups * head;
    let mut out = Vec::with_capacity(q.len() + k.len() + v.len());
    for g in 0..c.groups {
        out.extend_from_slice(&q[g * per_group..][..per_group]);
        out.extend_from_slice(&k[g * head..][..head]);
        out.extend_from_slice(&v[g * head..][..head]);
    }
    out
}

/// Fields of a `config.json`.
pub(crate) struct Fields<'a>(pub &'a serde_json::Value);

impl Fields<'_> {
    pub(crate) fn size(&self, field: &'static str) -> Result<usize, HfError> {
        let v = self.0.get(field).and_then(serde_json::Value::as_u64);
        v.map(|v| v as usize).ok_or(HfError::Field { field, expected: "a whole number" })
    }

    pub(crate) fn size_or(&self, field: &'static str, default: usize) -> Result<usize, HfError> {
        if self.absent(field) { Ok(default) } else { self.size(field) }
    }

    pub(crate) fn number(&self, field: &'static str) -> Result<f64, HfError> {
        let v = self.0.get(field).and_then(serde_json::Value::as_f64);
        v.ok_or(HfError::Field { field, expected: "a number" })
    }

    pub(crate) fn flag_or(&self, field: &'static str, default: bool) -> Result<bool, HfError> {
        if self.absent(field) {
            return Ok(default);
        }
        self.0
            .get(field)
            .and_then(serde_json::Value::as_bool)
            .ok_or(HfError::Field { field, expected: "true or false" })
    }

    fn absent(&self, field: &str) -> bool {
        self.0.get(field).is_none_or(serde_json::Value::is_null)
    }

    /// Base and scaling of rotations, from `rope_parameters` or the older `rope_theta` and `rope_scaling`.
    pub(crate) fn rope(&self) -> Result<(f64, RopeScaling), HfError> {
        let nested =
            ["rope_parameters", "rope_scaling"].into_iter().filter_map(|f| self.0.get(f)).find(|v| v.is_object());
        let base = match (nested.and_then(|n| n.get("rope_theta")), self.0.get("rope_theta")) {
            (Some(b), _) | (None, Some(b)) => {
                b.as_f64().ok_or(HfError::Field { field: "rope_theta", expected: "a number" })?
            }
            (None, None) => 10_000.0,
        };
        let Some(nested) = nested else { return Ok((base, RopeScaling::None)) };
        let of = Fields(nested);
        let kind = nested.get("rope_type").or_else(|| nested.get("type")).and_then(serde_json::Value::as_str);
        let scaling = match kind.unwrap_or("default") {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: of.number("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: of.number("factor")?,
                low: of.number("low_freq_factor")?,
                high: of.number("high_freq_factor")?,
                original: of.number("original_max_position_embeddings")?,
            },
            other => {
                return Err(HfError::Unsupported {
                    field: "rope_type",
                    value: other.into(),
                    supported: "default, linear and llama3 are",
                });
            }
        };
        Ok((base, scaling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_order() {
        let c = ModelConfig { head_dim: 1, ..ModelConfig::llama(1, 4, 4, 2, 8) };
        let out = interleave(&c, &[0., 1., 2., 3.], &[10., 11.], &[20., 21.], 1);
        assert_eq!(out, [0., 1., 10., 20., 2., 3., 11., 21.]);
        assert_eq!(transpose(&[1., 2., 3., 4., 5., 6.], 2), [1., 4., 2., 5., 3., 6.]);
    }

    #[test]
    fn what_is_taken_apart_is_put_together_again_and_found_where_it_lies() {
        let c = ModelConfig { head_dim: 2, hidden: 3, ..ModelConfig::llama(1, 3, 4, 2, 8) };
        let key = |x: &str| x.to_string();
        let sources = [
            (Source::Same(key("a")), vec![5, 3]),
            (Source::Transposed(key("a")), vec![5, 3]),
            (Source::Stacked(vec![key("gate"), key("up")]), vec![6, 3]),
            (Source::Qkv([key("q"), key("k"), key("v")]), vec![16, 3]),
            (Source::Qkv([key("q"), key("k"), key("v")]), vec![16]),
        ];
        let gpt = ModelConfig { groups: 4, ..c.clone() };
        let fused = [(Source::FusedQkv(key("qkv")), vec![24, 3]), (Source::FusedQkv(key("qkv")), vec![24])];
        let all = sources.iter().map(|s| (&c, s)).chain(fused.iter().map(|s| (&gpt, s)));
        for (c, (source, shape)) in all {
            let n: usize = shape.iter().product();
            let ours: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let theirs = disassemble(c, source, shape, &ours);
            let get = |key: &str| theirs.iter().find(|(k, _)| k == key).map(|(_, t)| t.clone());
            assert_eq!(assemble(c, source, &get).unwrap(), ours, "{source:?}");
            let size = |key: &str| get(key).map(|t| t.values.len()).ok_or(HfError::Missing(key.into()));
            for range in [0..n, 1..n - 1, n / 3..n / 2, n - 1..n] {
                let mut found = vec![];
                let mut f = |key: &str, first: usize, n: usize| {
                    found.extend_from_slice(&get(key).unwrap().values[first..first + n])
                };
                if runs(c, source, range.clone(), &size, &mut f).unwrap() {
                    assert_eq!(found, ours[range], "{source:?}");
                }
            }
        }
    }
}
