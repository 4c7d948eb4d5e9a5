//! FLOPs against published rows of NVIDIA's Megatron Bridge performance tables (releases 26.02 to 26.04), and against
//! the formula of the 2021 paper.

use ferrotron_telemetry::GptShape;

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
