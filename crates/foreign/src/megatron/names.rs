//! Names of Megatron's parameters, of whatever age, as ours: those of megatron-core's local layers.

/// What a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A parameter outside of the layers.
    Plain(String),
    /// A parameter of a layer. `None`: of all layers, stacked along a first dim (`torch_dist`).
    Layer(Option<usize>, Part),
    /// No parameter: state of the linear layers for FP8, tables that are computed.
    Ignored,
    /// None that is known.
    Unknown,
}

/// A parameter within its layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// `self_attention.linear_qkv.weight`
    Dense(String),
    /// `linear_fc1.weight` of an expert. `None`: of all experts, stacked.
    Expert(Option<usize>, String),
}

/// How ranks of a tensor-parallel group divide a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All have all.
    Whole,
    /// Rows.
    Rows,
    /// Rows of each half, where the MLP is gated: a rank has its part of the gate, then its part of the up-projection.
    Halves,
    /// Columns.
    Cols,
}

/// Begins of names outside of the layers that others use.
const PLAIN: [(&str, &str); 8] = [
    ("language_model.embedding.", "embedding."),
    ("language_model.encoder.final_layernorm.", "decoder.final_layernorm."),
    ("language_model.encoder.final_norm.", "decoder.final_layernorm."),
    ("language_model.transformer.final_layernorm.", "decoder.final_layernorm."),
    ("language_model.output_layer.", "output_layer."),
    ("word_embeddings_for_head.", "output_layer."),
    ("decoder.final_norm.", "decoder.final_layernorm."),
    ("embedding.word_embeddings.word_embeddings.", "embedding.word_embeddings."),
];
/// Begins of names of layers.
const LAYERS: [&str; 3] = ["decoder.layers.", "language_model.encoder.layers.", "language_model.transformer.layers."];
/// Begins of names within a layer that others use: fused layers of Transformer Engine, and the models before megatron-core.
const PARTS: [(&str, &str); 10] = [
    ("self_attention.linear_qkv.layer_norm_", "input_layernorm."),
    ("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."),
    ("input_norm.", "input_layernorm."),
    ("post_attention_layernorm.", "pre_mlp_layernorm."),
    ("post_attention_norm.", "pre_mlp_layernorm."),
    ("self_attention.query_key_value.", "self_attention.linear_qkv."),
    ("attention.query_key_value.", "self_attention.linear_qkv."),
    ("self_attention.dense.", "self_attention.linear_proj."),
    ("attention.dense.", "self_attention.linear_proj."),
    ("mlp.dense_h_to_4h.", "mlp.linear_fc1."),
];
/// What a layer has.
const KNOWN: [&str; 10] = [
    "input_layernorm",
    "pre_mlp_layernorm",
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "self_attention.q_layernorm",
    "self_attention.k_layernorm",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
    "mlp.shared_experts.linear_fc1",
    "mlp.shared_experts.linear_fc2",
];

fn is_weight(tail: &str) -> bool {
    matches!(tail, "weight" | "bias")
}

fn renamed(name: &str, table: &[(&str, &str)]) -> String {
    let found = table.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
    found.unwrap_or_else(|| name.into())
}

/// The parameter that a key of a checkpoint is.
pub fn parse(key: &str) -> Name {
    if key.contains("_extra_state") || key.contains("rotary_pos_emb") || key.ends_with("inv_freq") {
        return Name::Ignored;
    }
    if let Some(rest) = LAYERS.iter().find_map(|l| key.strip_prefix(l)) {
        let (index, rest) = match rest.split_once('.').map(|(n, rest)| (n.parse(), rest)) {
            Some((Ok(n), rest)) => (Some(n), rest),
            _ => (None, rest),
        };
        return part(rest).map_or(Name::Unknown, |p| Name::Layer(index, p));
    }
    let name = renamed(key, &PLAIN);
    let known = match name.rsplit_once('.') {
        Some(("embedding.word_embeddings" | "embedding.position_embeddings" | "output_layer", "weight")) => true,
        Some(("decoder.final_layernorm", tail)) => is_weight(tail),
        _ => false,
    };
    if known { Name::Plain(name) } else { Name::Unknown }
}

fn part(rest: &str) -> Option<Part> {
    if let Some(rest) = rest.strip_prefix("mlp.experts.") {
        return expert(rest);
    }
    if let Some(tail) = rest.strip_prefix("mlp.dense_4h_to_h.") {
        return is_weight(tail).then(|| Part::Dense(format!("mlp.linear_fc2.{tail}")));
    }
    let name = renamed(rest, &PARTS);
    let (module, tail) = name.rsplit_once('.')?;
    let known = (KNOWN.contains(&module) && is_weight(tail)) || name == "mlp.router.weight";
    known.then_some(Part::Dense(name))
}

/// `local_experts.E.linear_fc1.weight`, `linear_fc1.weightE` (Transformer Engine's grouped layers), `experts.linear_fc1.weight`
/// (stacked).
fn expert(rest: &str) -> Option<Part> {
    let of = |index: Option<usize>, tail: &str| {
        let (layer, what) = tail.split_once('.')?;
        let known = matches!(layer, "linear_fc1" | "linear_fc2") && is_weight(what);
        known.then(|| Part::Expert(index, tail.into()))
    };
    if let Some(rest) = rest.strip_prefix("local_experts.") {
        let (n, tail) = rest.split_once('.')?;
        return of(Some(n.parse().ok()?), tail);
    }
    if let Some(tail) = rest.strip_prefix("experts.") {
        return of(None, tail);
    }
    let digits = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    of(Some(rest[digits.len()..].parse().ok()?), digits)
}

/// How a parameter is divided, by our name for it.
pub fn split(name: &str) -> Split {
    let ends = |tails: &[&str]| tails.iter().any(|t| name.ends_with(t));
    if ends(&["word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias"]) {
        Split::Rows
    } else if ends(&["linear_fc1.weight", "linear_fc1.bias"]) {
        Split::Halves
    } else if ends(&["linear_proj.weight", "linear_fc2.weight"]) {
        Split::Cols
    } else {
        Split::Whole
    }
}

/// Our name of a parameter of a layer.
pub fn in_layer(layer: usize, part: &Part, expert: usize) -> String {
    match part {
        Part::Dense(name) => format!("decoder.layers.{layer}.{name}"),
        Part::Expert(_, tail) => format!("decoder.layers.{layer}.mlp.experts.local_experts.{expert}.{tail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_age_of_names() {
        let dense = |layer, name: &str| Name::Layer(layer, Part::Dense(name.into()));
        let expert = |layer, e, name: &str| Name::Layer(layer, Part::Expert(e, name.into()));
        for (key, want) in [
            ("embedding.word_embeddings.weight", Name::Plain("embedding.word_embeddings.weight".into())),
            ("language_model.embedding.word_embeddings.weight", Name::Plain("embedding.word_embeddings.weight".into())),
            ("language_model.encoder.final_norm.weight", Name::Plain("decoder.final_layernorm.weight".into())),
            ("word_embeddings_for_head.weight", Name::Plain("output_layer.weight".into())),
            ("decoder.layers.3.self_attention.linear_qkv.layer_norm_bias", dense(Some(3), "input_layernorm.bias")),
            ("decoder.layers.mlp.linear_fc1.layer_norm_weight", dense(None, "pre_mlp_layernorm.weight")),
            ("decoder.layers.self_attention.linear_qkv.weight", dense(None, "self_attention.linear_qkv.weight")),
            ("language_model.encoder.layers.11.self_attention.query_key_value.bias", {
                dense(Some(11), "self_attention.linear_qkv.bias")
            }),
            ("language_model.transformer.layers.0.mlp.dense_4h_to_h.weight", dense(Some(0), "mlp.linear_fc2.weight")),
            ("language_model.encoder.layers.0.mlp.dense_h_to_4h.bias", dense(Some(0), "mlp.linear_fc1.bias")),
            ("decoder.layers.1.mlp.router.weight", dense(Some(1), "mlp.router.weight")),
            (
                "decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight",
                expert(Some(1), Some(2), "linear_fc1.weight"),
            ),
            ("decoder.layers.1.mlp.experts.linear_fc2.weight13", expert(Some(1), Some(13), "linear_fc2.weight")),
            ("decoder.layers.mlp.experts.experts.linear_fc1.weight", expert(None, None, "linear_fc1.weight")),
            ("decoder.layers.0.self_attention.linear_qkv._extra_state", Name::Ignored),
            ("decoder.layers.0.mlp.experts.weight1", Name::Unknown),
            (
                "decoder.layers.0.mlp.shared_experts.linear_fc1.weight",
                dense(Some(0), "mlp.shared_experts.linear_fc1.weight"),
            ),
            ("decoder.layers.0.mlp.shared_experts.gate_weight", Name::Unknown),
            ("decoder.layers.0.self_attention.linear_kv_down_proj.weight", Name::Unknown),
            ("mtp.layers.0.enorm.weight", Name::Unknown),
        ] {
            assert_eq!(parse(key), want, "{key}");
        }
    }
}
