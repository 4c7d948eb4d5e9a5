//! GPT-2's tensor names. Its linear layers ("Conv1D") store `[in,out]`.

use crate::ModelConfig;
use crate::hf::{Mapping, Source};

/// Our parameters and their sources.
pub fn mapping(c: &ModelConfig) -> Mapping {
    let same = |ours: String, theirs: String| (ours, Source::Same(theirs));
    let mut m = vec![
        same("embedding.word_embeddings.weight".into(), "transformer.wte.weight".into()),
        same("embedding.position_embeddings.weight".into(), "transformer.wpe.weight".into()),
    ];
    for i in 0..c.num_layers {
        let (ours, theirs) = (format!("decoder.layers.{i}"), format!("transformer.h.{i}"));
        for (a, b) in [("input_layernorm", "ln_1"), ("pre_mlp_layernorm", "ln_2")] {
            for part in ["weight", "bias"] {
                m.push(same(format!("{ours}.{a}.{part}"), format!("{theirs}.{b}.{part}")));
            }
        }
        for part in ["weight", "bias"] {
            let qkv = Source::FusedQkv(format!("{theirs}.attn.c_attn.{part}"));
            m.push((format!("{ours}.self_attention.linear_qkv.{part}"), qkv));
        }
        let linear = [
            ("self_attention.linear_proj", "attn.c_proj"),
            ("mlp.linear_fc1", "mlp.c_fc"),
            ("mlp.linear_fc2", "mlp.c_proj"),
        ];
        for (a, b) in linear {
            m.push((format!("{ours}.{a}.weight"), Source::Transposed(format!("{theirs}.{b}.weight"))));
            m.push(same(format!("{ours}.{a}.bias"), format!("{theirs}.{b}.bias")));
        }
    }
    for part in ["weight", "bias"] {
        m.push(same(format!("decoder.final_layernorm.{part}"), format!("transformer.ln_f.{part}")));
    }
    if !c.tied {
        m.push(same("output_layer.weight".into(), "lm_head.weight".into()));
    }
    m
}
