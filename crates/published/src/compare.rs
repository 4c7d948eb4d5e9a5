//! Whether the model of a command line is the published one.

use ferrotron_models::{ModelConfig, Position};

/// What differs so that the weights do not fit or mean something else, a line each, theirs first; then what may well differ
/// on purpose.
pub fn compare(theirs: &ModelConfig, ours: &ModelConfig) -> (Vec<String>, Vec<String>) {
    let (mut wrong, mut noted) = (vec![], vec![]);
    let mut sizes = |what: &str, theirs: usize, ours: usize| {
        if theirs != ours {
            wrong.push(format!("{what}: {theirs} there, {ours} here"));
        }
    };
    sizes("--num-layers", theirs.num_layers, ours.num_layers);
    sizes("--hidden-size", theirs.hidden, ours.hidden);
    sizes("--num-attention-heads", theirs.heads, ours.heads);
    sizes("--num-query-groups", theirs.groups, ours.groups);
    sizes("--kv-channels", theirs.head_dim, ours.head_dim);
    match (theirs.experts, ours.experts) {
        (Some(a), Some(b)) => {
            sizes("--num-experts", a.count, b.count);
            sizes("--moe-router-topk", a.chosen, b.chosen);
            sizes("--moe-ffn-hidden-size", a.ffn, b.ffn);
            sizes("--moe-router-pre-softmax", a.pre_softmax.into(), b.pre_softmax.into());
        }
        (None, None) => sizes("--ffn-hidden-size", theirs.ffn, ours.ffn),
        (a, b) => sizes("--num-experts", a.map_or(0, |e| e.count), b.map_or(0, |e| e.count)),
    }
    if ours.vocab < theirs.vocab {
        wrong.push(format!(
            "vocabulary: {} rows there, {} here: --vocab-size {}",
            theirs.vocab, ours.vocab, theirs.vocab
        ));
    }
    let mut flags = |what: &str, theirs: bool, ours: bool| {
        if theirs != ours {
            let is = |on| if on { "on" } else { "off" };
            wrong.push(format!("{what}: {} there, {} here", is(theirs), is(ours)));
        }
    };
    flags("shared embeddings (--untie-embeddings-and-output-weights)", theirs.tied, ours.tied);
    flags("biases of linear layers (--disable-bias-linear)", theirs.linear_bias, ours.linear_bias);
    flags("--add-qkv-bias", theirs.qkv_bias, ours.qkv_bias);
    flags("--embed-layernorm", theirs.embedding_norm, ours.embedding_norm);
    flags("--qk-layernorm", theirs.qk_norm, ours.qk_norm);
    flags("a gated MLP (--swiglu)", theirs.gated, ours.gated);
    flags("--apply-layernorm-1p", theirs.norm_plus_one, ours.norm_plus_one);
    if theirs.norm != ours.norm {
        wrong.push(format!("--normalization: {:?} there, {:?} here", theirs.norm, ours.norm));
    }
    if theirs.activation != ours.activation {
        wrong.push(format!("activation: {:?} there, {:?} here", theirs.activation, ours.activation));
    }
    let mut note = |differs: bool, what: String| {
        if differs {
            noted.push(what);
        }
    };
    match (theirs.position, ours.position) {
        (Position::Learned, Position::Learned) => {
            let (a, b) = (theirs.max_positions, ours.max_positions);
            if b > a {
                wrong.push(format!("--max-position-embeddings: {a} learned positions there, {b} here"));
            }
        }
        (
            Position::Rope { percent: p, interleaved: i, base, scaling },
            Position::Rope { percent, interleaved, base: ours_base, scaling: ours_scaling },
        ) => {
            if (p, i) != (percent, interleaved) {
                wrong.push("rotary positions: --rotary-percent or --rotary-interleaved differ".into());
            }
            note(base != ours_base, format!("--rotary-base is {base} there, {ours_base} here"));
            note(scaling != ours_scaling, format!("rotations are scaled by {scaling:?} there, {ours_scaling:?} here"));
        }
        (a, b) => wrong.push(format!("--position-embedding-type: {a:?} there, {b:?} here")),
    }
    let (a, b) = (theirs.norm_eps, ours.norm_eps);
    note(a != b, format!("--norm-epsilon is {a} there, {b} here"));
    (wrong, noted)
}
