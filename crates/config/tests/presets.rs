//! The presets of `configs/` describe the published models: their parameter counts are the published files'.

mod common;

use ferrotron_config::settings::{Config, NormKind, PositionKind};

/// Parameters of a dense GPT with `vocab` embedding rows.
fn parameters(c: &Config, vocab: usize) -> usize {
    let m = &c.model;
    let (h, q, kv, f) =
        (m.hidden_size, m.num_attention_heads * m.kv_channels, m.num_query_groups * m.kv_channels, m.ffn_hidden_size);
    let up = if m.activation.is_gated() { 2 * f } else { f };
    let norm = if m.norm.kind == NormKind::LayerNorm { 2 * h } else { h };
    let bias = |on: bool, n: usize| if on { n } else { 0 };
    let layer = 2 * norm
        + h * (q + 2 * kv)
        + bias(m.add_qkv_bias, q + 2 * kv)
        + q * h
        + bias(m.add_bias_linear, h)
        + h * up
        + bias(m.add_bias_linear, up)
        + f * h
        + bias(m.add_bias_linear, h)
        + bias(m.qk_layernorm, 2 * m.kv_channels);
    let tables = if m.tie_embeddings { vocab * h } else { 2 * vocab * h };
    let positions = if m.position == PositionKind::LearnedAbsolute { m.max_position_embeddings * h } else { 0 };
    m.num_layers * layer + tables + positions + norm
}

#[test]
fn parameter_counts_are_the_published_ones() {
    // Sums over the tensors of the released checkpoints; GPT-3 was not released, its paper says 175.0 B.
    for (preset, vocab, published) in [
        ("gpt2-124m", 50257, 124_439_808),
        ("gpt2-1.5b", 50257, 1_557_611_200),
        ("llama2-7b", 32000, 6_738_415_616),
        ("llama3-8b", 128256, 8_030_261_248),
        ("llama3-70b", 128256, 70_553_706_496),
        ("qwen2.5-7b", 152064, 7_615_616_512),
        ("qwen3-8b", 151936, 8_190_735_360usize),
    ] {
        assert_eq!(parameters(&preset_config(preset), vocab), published, "{preset}");
    }
    let gpt3 = parameters(&preset_config("gpt3-175b"), 50257) as f64;
    assert!((gpt3 / 175.0e9 - 1.0).abs() < 0.005, "{gpt3}");
}

fn preset_config(name: &str) -> Config {
    let line = format!(
        "@configs/{name}.args --micro-batch-size 1 --train-iters 10 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer --vocab-size 1000"
    );
    match common::run(&common::words(&line), 1) {
        Ok(resolved) => resolved.config,
        Err(refused) => panic!("{name}: {}", ferrotron_config::report("test", &refused.violations)),
    }
}

#[test]
fn every_preset_is_tested() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");
    let count = std::fs::read_dir(folder)
        .unwrap()
        .filter(|f| f.as_ref().unwrap().path().extension().is_some_and(|e| e == "args"))
        .count();
    assert_eq!(count, 8);
}
