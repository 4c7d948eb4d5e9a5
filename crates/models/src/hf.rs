//! How tensors of a published model map to ours.
//!
//! Hugging Face keeps q, k, v and gate, up apart; we (as Megatron) fuse them: qkv rows in KV-group order, gate then
//! up. A mapping is linear, so it serves weights and gradients alike.

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
}
