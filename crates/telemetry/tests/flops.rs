//! FLOPs against published rows of NVIDIA's Megatron Bridge performance tables (releases 26.02 to 26.04), and against
//! the formula of the 2021 paper.

use ferrotron_telemetry::GptShape;
use ferrotron_telemetry::flops::{ParameterOptions, peak_tflops, utilisation};

const LLAMA3_70B: GptShape = GptShape {
    num_layers: 80,
    hidden_size: 8192,
    num_attention_heads: 64,
    num_query_groups: 8,
    kv_channels: 128,
    ffn_hidden_size: 28672,
    gated_mlp: true,
    seq_length: 8192,
    padded_vocab_size: 128256,
};

const LLAMA31_405B: GptShape =
    GptShape { num_layers: 126, hidden_size: 16384, num_attention_heads: 128, ffn_hidden_size: 53248, ..LLAMA3_70B };

/// (model, global batch, devices, seconds an iteration, published TFLOP/s a device).
/// Both figures of a row come from one run, rounded to four digits or so: they agree within 0.1 %.
const ROWS: [(&GptShape, u64, u64, f64, f64); 19] = [
    (&LLAMA3_70B, 256, 64, 6.69, 2201.0),
    (&LLAMA3_70B, 256, 64, 8.56, 1721.0),
    (&LLAMA3_70B, 256, 64, 6.25, 2355.0),
    (&LLAMA3_70B, 256, 64, 7.909, 1861.0),
    (&LLAMA31_405B, 1536, 256, 50.777, 2443.0),
    (&LLAMA31_405B, 1536, 256, 61.982, 2002.0),
    (&LLAMA31_405B, 1536, 256, 58.375, 2126.0),
    (&LLAMA3_70B, 256, 64, 4.68, 3147.0),
    (&LLAMA3_70B, 256, 64, 7.191, 2047.0),
    (&LLAMA3_70B, 256, 64, 6.25, 2353.0),
    (&LLAMA31_405B, 1536, 256, 36.194, 3428.0),
    (&LLAMA31_405B, 1536, 256, 51.793, 2394.0),
    (&LLAMA31_405B, 1536, 256, 60.088, 2063.0),
    (&LLAMA3_70B, 256, 64, 7.13, 2064.0),
    (&LLAMA3_70B, 256, 64, 9.069, 1623.0),
    (&LLAMA3_70B, 256, 64, 8.111, 1815.0),
    (&LLAMA3_70B, 256, 64, 20.215, 728.0),
    (&LLAMA31_405B, 1536, 256, 52.795, 2349.0),
    (&LLAMA31_405B, 1536, 256, 62.534, 1983.0),
];

#[test]
fn reproduces_published_throughput() {
    for (shape, batch, devices, seconds, published) in ROWS {
        let ours = shape.tflops_per_device(batch, seconds, devices);
        assert!((ours / published - 1.0).abs() < 1e-3, "{seconds} s: {ours} against {published}");
    }
}

#[test]
fn equals_the_2021_formula_with_half_the_attention() {
    // arXiv 2104.04473 without recomputation: 72·B·s·L·h²·(1 + s/6h + V/12Lh); the causal mask halves the s term.
    let gpt3 = GptShape {
        num_layers: 96,
        hidden_size: 12288,
        num_attention_heads: 96,
        num_query_groups: 96,
        kv_channels: 128,
        ffn_hidden_size: 4 * 12288,
        gated_mlp: false,
        seq_length: 2048,
        padded_vocab_size: 51200,
    };
    let (batch, s, layers, h, v) = (1536.0, 2048.0, 96.0, 12288.0, 51200.0);
    let expected = 72.0 * batch * s * layers * h * h * (1.0 + s / (12.0 * h) + v / (12.0 * layers * h));
    let ours = gpt3.flops_per_iteration(1536);
    // Only the order of f64 operations differs.
    assert!((ours / expected - 1.0).abs() < 1e-14, "{ours} against {expected}");
}

/// GPT-2 and GPT-3 as the papers count them: biases, LayerNorm, learned positions, tied embeddings.
const GPT: ParameterOptions = ParameterOptions {
    learned_positions: 2048,
    linear_bias: true,
    qkv_bias: true,
    norm_parameters: 2,
    qk_layernorm: false,
    tied_embeddings: true,
};

fn gpt(
    num_layers: u64,
    hidden_size: u64,
    num_attention_heads: u64,
    seq_length: u64,
    padded_vocab_size: u64,
) -> GptShape {
    GptShape {
        num_layers,
        hidden_size,
        num_attention_heads,
        num_query_groups: num_attention_heads,
        kv_channels: hidden_size / num_attention_heads,
        ffn_hidden_size: 4 * hidden_size,
        gated_mlp: false,
        seq_length,
        padded_vocab_size,
    }
}

/// 99 rows of the llm-foundry tables, from 125 M to 70 B parameters and from 512 to 65536 tokens: parameters exactly, MFU as it
/// is stated. Its definition is 6P + 12·L·h·s operations a token.
#[test]
fn published_parameters_and_utilisation() {
    let mut rows = 0;
    for line in include_str!("golden/published_mfu.tsv").lines().filter(|l| !l.starts_with('#')) {
        let n: Vec<f64> = line.split('\t').map(|v| v.parse().unwrap()).collect();
        let int = |i: usize| n[i] as u64;
        let shape = gpt(int(0), int(1), int(2), int(3), int(4));
        let parameters = shape.parameters(&ParameterOptions { learned_positions: int(3), ..GPT });
        assert_eq!(parameters, int(5), "{line}");
        let per_token = 6.0 * parameters as f64 + 12.0 * n[0] * n[1] * n[3];
        let ours = 100.0 * utilisation(n[6] * per_token, 1.0, 1, n[7]);
        // Tokens and percentages are given to four digits or more; the bound is the requirement's.
        assert!((ours / n[8] - 1.0).abs() < 3e-3, "{line}: {ours}");
        rows += 1;
    }
    assert!(rows > 90, "{rows}");
}

/// arXiv 2104.04473 table 1: parameters in billions (equation 2) and equation 3 for the batch of the row.
#[test]
fn the_2021_table_is_reproduced() {
    for (layers, hidden, heads, batch, billions, equation_3) in [
        (24, 2304, 24, 512, 1.7, 1.5466830067924994e16),
        (48, 8192, 64, 1536, 39.1, 1.0212263998783488e18),
        (96, 16384, 128, 2160, 310.1, 1.1194006936108399e19),
        (105, 20480, 128, 2520, 529.6, 2.221594167685939e19),
        (128, 25600, 160, 3072, 1008.0, 5.139051377527358e19),
    ] {
        let shape = gpt(layers, hidden, heads, 2048, 51200);
        // Equation 2 leaves out the last norm, and the table rounds to a tenth of a billion.
        let ours = (shape.parameters(&GPT) - 2 * hidden) as f64 / 1e9;
        assert!((ours - billions).abs() <= 0.05 + 1e-9, "{ours} against {billions}");
        // Only the order of f64 operations differs.
        let ours = shape.hardware_flops_per_iteration(batch);
        assert!((ours / equation_3 - 1.0).abs() < 1e-13, "{ours} against {equation_3}");
    }
}

/// (layers, hidden, heads, vocabulary, batch, devices, seconds, stated MFU in percent) on A100, sequences of 2048:
/// arXiv 2205.05198 table 5 and the Megatron-LM rows of arXiv 2402.15627 tables 1 and 2.
#[test]
fn stated_utilisation_is_met() {
    for (layers, hidden, heads, vocabulary, batch, devices, seconds, stated) in [
        (96, 12288, 96, 51200, 64, 64, 18.13, 39.0),
        (96, 12288, 96, 51200, 64, 64, 13.75, 51.4),
        (105, 20480, 128, 51200, 280, 280, 37.83, 56.0),
        (96, 12288, 128, 64000, 768, 256, 40.0, 53.0),
        (96, 12288, 128, 64000, 6144, 8192, 12.24, 43.3),
    ] {
        let shape = gpt(layers, hidden, heads, 2048, vocabulary);
        let flops = shape.flops_per_iteration_full_square(batch);
        let ours = 100.0 * utilisation(flops, seconds, devices, peak_tflops("NVIDIA A100-SXM4-80GB").unwrap());
        assert!((ours / stated - 1.0).abs() < 3e-3, "{ours} against {stated}");
    }
    let gpt_22b = gpt(48, 6144, 64, 2048, 51200).flops_per_iteration_full_square(4);
    assert!((gpt_22b / 1143560812363776.0 - 1.0).abs() < 1e-14, "{gpt_22b}");
}

/// Public checkpoints, counted by their tensors.
#[test]
fn parameters_of_public_models() {
    let llama = ParameterOptions {
        learned_positions: 0,
        linear_bias: false,
        qkv_bias: false,
        norm_parameters: 1,
        qk_layernorm: false,
        tied_embeddings: false,
    };
    assert_eq!(LLAMA3_70B.parameters(&llama), 70_553_706_496);
    assert_eq!(LLAMA31_405B.parameters(&llama), 405_853_388_800);
    let llama3_8b =
        GptShape { num_layers: 32, hidden_size: 4096, num_attention_heads: 32, ffn_hidden_size: 14336, ..LLAMA3_70B };
    assert_eq!(llama3_8b.parameters(&llama), 8_030_261_248);
    let qwen25_7b = GptShape {
        num_layers: 28,
        hidden_size: 3584,
        num_attention_heads: 28,
        num_query_groups: 4,
        ffn_hidden_size: 18944,
        padded_vocab_size: 152064,
        ..LLAMA3_70B
    };
    assert_eq!(qwen25_7b.parameters(&ParameterOptions { qkv_bias: true, ..llama }), 7_615_616_512);
    let qwen3_8b = GptShape {
        num_layers: 36,
        hidden_size: 4096,
        num_attention_heads: 32,
        ffn_hidden_size: 12288,
        padded_vocab_size: 151936,
        ..LLAMA3_70B
    };
    assert_eq!(qwen3_8b.parameters(&ParameterOptions { qk_layernorm: true, ..llama }), 8_190_735_360);
    let gpt2 = gpt(12, 768, 12, 1024, 50257);
    assert_eq!(gpt2.parameters(&ParameterOptions { learned_positions: 1024, ..GPT }), 124_439_808);
}

/// LOG-01: what once was wrong elsewhere - a free FFN width, SwiGLU, grouped queries, recomputation - by hand, in integers.
#[test]
fn log_01_each_part_is_counted_once() {
    let base = gpt(2, 64, 4, 32, 128);
    let by_hand = |qkv: u64, mlp: u64| 6 * 32 * (2 * (64 * qkv + 64 * 64 + 64 * 32 + mlp) + 64 * 128);
    assert_eq!(base.flops_per_iteration(1), by_hand(192, 2 * 64 * 256) as f64);
    let grouped = GptShape { num_query_groups: 2, ..base };
    assert_eq!(grouped.flops_per_iteration(1), by_hand(128, 2 * 64 * 256) as f64);
    let swiglu = GptShape { gated_mlp: true, ffn_hidden_size: 176, ..base };
    assert_eq!(swiglu.flops_per_iteration(1), by_hand(192, 3 * 64 * 176) as f64);
    assert!(base.hardware_flops_per_iteration(1) > base.flops_per_iteration(1), "recomputation is no useful work");
}
