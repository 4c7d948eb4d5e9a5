//! Llama's tensor names, with the extras of its descendants (qkv bias, q/k norm) when the configuration has them.

use crate::ModelConfig;
use crate::hf::{Mapping, Source};

/// Our parameters and their sources.
pub fn mapping(c: &ModelConfig) -> Mapping {
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
            ("mlp.linear_fc2", "mlp.down_proj"),
        ];
        if c.qk_norm {
            names.push(("self_attention.q_layernorm", "self_attn.q_norm"));
            names.push(("self_attention.k_layernorm", "self_attn.k_norm"));
        }
        m.extend(names.iter().map(|(a, b)| same(&format!("{ours}.{a}.weight"), &format!("{theirs}.{b}.weight"))));
        let fc1 = ["gate", "up"].map(|x| format!("{theirs}.mlp.{x}_proj.weight"));
        m.push((format!("{ours}.mlp.linear_fc1.weight"), Source::Stacked(fc1.to_vec())));
    }
    m.push(same("decoder.final_layernorm.weight", "model.norm.weight"));
    if !c.tied {
        m.push(same("output_layer.weight", "lm_head.weight"));
    }
    m
}
