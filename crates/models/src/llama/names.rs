//! Llama's tensor names, with the extras of its descendants (qkv bias, q/k norm) when the configuration has them.

use crate::ModelConfig;
use crate::hf::{Mapping, Source};

/// Our parameters and their sources.
pub fn mapping(c: &ModelConfig) -> Mapping {
    with_feed_forward(c, |_, ours, theirs| mlp(ours, theirs))
}

/// An MLP's names, by our and their block.
fn mlp(ours: &str, theirs: &str) -> Mapping {
    let fc1 = ["gate", "up"].map(|x| format!("{theirs}.mlp.{x}_proj.weight"));
    vec![
        (format!("{ours}.mlp.linear_fc1.weight"), Source::Stacked(fc1.to_vec())),
        (format!("{ours}.mlp.linear_fc2.weight"), Source::Same(format!("{theirs}.mlp.down_proj.weight"))),
    ]
}

/// What descendants with experts call them.
pub(crate) struct ExpertNames {
    /// In the place of `mlp`.
    pub folder: &'static str,
    /// An expert's first layer, gated half.
    pub gate: &'static str,
    /// The other half.
    pub up: &'static str,
    /// Its second layer.
    pub down: &'static str,
}

/// The same with experts in the place of the MLP, where the model has them.
pub(crate) fn mapping_with_experts(c: &ModelConfig, n: &ExpertNames) -> Mapping {
    let experts = c.experts.map_or(0, |e| e.count);
    with_feed_forward(c, |i, ours, theirs| {
        if !c.has_experts(i) {
            return mlp(ours, theirs);
        }
        let folder = format!("{theirs}.{}", n.folder);
        let mut m = vec![(format!("{ours}.mlp.router.weight"), Source::Same(format!("{folder}.gate.weight")))];
        for e in 0..experts {
            let ours = format!("{ours}.mlp.experts.local_experts.{e}");
            let key = |x: &str| format!("{folder}.experts.{e}.{x}.weight");
            m.push((format!("{ours}.linear_fc1.weight"), Source::Stacked(vec![key(n.gate), key(n.up)])));
            m.push((format!("{ours}.linear_fc2.weight"), Source::Same(key(n.down))));
        }
        m
    })
}

/// Names of everything but the feed-forward layers, for which `of` is asked by number, and our and their block.
fn with_feed_forward(c: &ModelConfig, of: impl Fn(usize, &str, &str) -> Mapping) -> Mapping {
    let same = |ours: &str, theirs: &str| (ours.to_string(), Source::Same(theirs.into()));
    let mut m = vec![same("embedding.word_embeddings.weight", "model.embed_tokens.weight")];
    for i in 0..c.num_layers {
        let (ours, theirs) = (format!("decoder.layers.{i}"), format!("model.layers.{i}"));
        let qkv = |part: &str| {
            let key = |x: &str| format!("{theirs}.self_attn.{x}_proj.{part}");
            (format!("{ours}.self_attention.linear_qkv.{part}"), Source::Qkv([key("q"), key("k"), key("v")]))
        };
        m.push(qkv("weight"));
        if c.qkv_bias {
            m.push(qkv("bias"));
        }
        let mut names = vec![
            ("input_layernorm", "input_layernorm"),
            ("pre_mlp_layernorm", "post_attention_layernorm"),
            ("self_attention.linear_proj", "self_attn.o_proj"),
        ];
        if c.qk_norm {
            names.push(("self_attention.q_layernorm", "self_attn.q_norm"));
            names.push(("self_attention.k_layernorm", "self_attn.k_norm"));
        }
        m.extend(names.iter().map(|(a, b)| same(&format!("{ours}.{a}.weight"), &format!("{theirs}.{b}.weight"))));
        m.extend(of(i, &ours, &theirs));
    }
    m.push(same("decoder.final_layernorm.weight", "model.norm.weight"));
    if !c.tied {
        m.push(same("output_layer.weight", "lm_head.weight"));
    }
    m
}
