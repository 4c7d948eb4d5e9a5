//! FLOPs against published rows: NVIDIA's Megatron Bridge performance tables (releases 26.02 to 26.08), llm-foundry's, papers.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use ferrotron_telemetry::flops::{ParameterOptions, utilisation};
use ferrotron_telemetry::{GptShape, peak_tflops};

const LLAMA3_70B: GptShape = GptShape {
    num_layers: 80,
    hidden_size: 8192,
    num_attention_heads: 64,
    num_query_groups: 8,
    kv_channels: 128,
    ffn_hidden_size: 28672,
    other_ffn: None,
    gated_mlp: true,
    seq_length: 8192,
    padded_vocab_size: 128256,
};

const LLAMA31_405B: GptShape =
    GptShape { num_layers: 126, hidden_size: 16384, num_attention_heads: 128, ffn_hidden_size: 53248, ..LLAMA3_70B };

/// All rows of NVIDIA's tables that give a dense shape: tokens/s and TFLOP/s of a row are of one run, so that one gives the other
/// within the requirement's 0.3 %. Of 8 rows the tokens are those of a whole number of samples a second, and of 3 the weights are
/// frozen (LoRA); `docs/flops.md` has the arithmetic.
#[test]
fn reproduces_published_throughput() {
    let (mut exact, mut samples, mut frozen) = (0, 0, 0);
    for line in include_str!("golden/published_throughput.tsv").lines().filter(|l| !l.starts_with('#')) {
        let field: Vec<&str> = line.split('\t').collect();
        let int = |i: usize| field[i].parse::<u64>().unwrap();
        let (devices, tokens, published) = (int(9), int(10) as f64, int(11) as f64);
        let shape = GptShape {
            num_layers: int(0),
            hidden_size: int(1),
            num_attention_heads: int(2),
            num_query_groups: int(3),
            kv_channels: int(4),
            ffn_hidden_size: int(5),
            other_ffn: None,
            gated_mlp: true,
            seq_length: int(6),
            padded_vocab_size: int(7),
        };
        assert_eq!(shape, GptShape { seq_length: int(6), ..if int(0) == 80 { LLAMA3_70B } else { LLAMA31_405B } });
        let sequence = shape.seq_length as f64;
        let seconds = int(8) as f64 * sequence / (tokens * devices as f64);
        let off = shape.tflops_per_device(int(8), seconds, devices) / published - 1.0;
        match field[12] {
            "exact" => {
                assert!(off.abs() < 3e-3, "{line}: {off}");
                exact += 1;
            }
            "samples" => {
                let stated = tokens * devices as f64 / sequence;
                let ours = published * 1e12 * devices as f64 / shape.flops_per_iteration(1);
                assert!(stated.fract() == 0.0 && ours.round() == stated, "{line}: {ours} samples/s");
                samples += 1;
            }
            _ => {
                assert!((off - 0.55).abs() < 5e-3, "{line}: no gradients of weights, {off}");
                frozen += 1;
            }
        }
    }
    assert_eq!((exact, samples, frozen), (27, 8, 3));
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
        other_ffn: None,
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
        other_ffn: None,
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

/// Layers, hidden size, heads, vocabulary, batch, devices; seconds and stated MFU in percent.
type Timed = (u64, u64, u64, u64, u64, u64, &'static str, &'static str);

/// On A100, sequences of 2048: all rows of arXiv 2205.05198 table 5 and arXiv 2402.15627 tables 1 and 2. The last two are texts, as
/// stated: they are right to half of their last digit.
const TIMED: [Timed; 11] = [
    (48, 6144, 64, 51200, 4, 8, "1.10", "41.5"),
    (96, 12288, 96, 51200, 64, 64, "18.13", "39.0"),
    (96, 12288, 96, 51200, 64, 64, "13.75", "51.4"),
    (105, 20480, 128, 51200, 280, 280, "37.83", "56.0"),
    (96, 12288, 128, 64000, 768, 256, "40.0", "53.0"),
    (96, 12288, 128, 64000, 6144, 8192, "12.24", "43.3"),
    (96, 12288, 128, 64000, 768, 768, "11.5", "61.3"),
    // MegaScale's own system on 256, 1024, 6144 and 12288 devices: its sliding window does less work than the formula counts.
    (96, 12288, 128, 64000, 768, 256, "32.0", "65.3"),
    (96, 12288, 128, 64000, 768, 1024, "8.9", "59.0"),
    (96, 12288, 128, 64000, 6144, 6144, "12.21", "57.3"),
    (96, 12288, 128, 64000, 6144, 12288, "6.34", "55.2"),
];

/// Half of the last digit of a decimal number.
fn half_digit(text: &str) -> f64 {
    let decimals = text.split_once('.').map_or(0, |(_, d)| d.len());
    0.5 * 10f64.powi(-(decimals as i32))
}

/// Within 0.3 %, or as close as the digits of the stated time and percentage allow. Four rows of a window that is not stated are
/// not: the formula counts one to two percent more than they do.
#[test]
fn stated_utilisation_is_met() {
    let peak = peak_tflops("NVIDIA A100-SXM4-80GB").unwrap();
    let mut windowed = 0;
    for (layers, hidden, heads, vocabulary, batch, devices, time, percent) in TIMED {
        let shape = gpt(layers, hidden, heads, 2048, vocabulary);
        let flops = shape.flops_per_iteration_full_square(batch);
        let (seconds, stated): (f64, f64) = (time.parse().unwrap(), percent.parse().unwrap());
        let of = |seconds: f64| 100.0 * utilisation(flops, seconds, devices, peak);
        let (least, most) = (of(seconds + half_digit(time)), of(seconds - half_digit(time)));
        let near = (of(seconds) / stated - 1.0).abs() < 3e-3;
        let rounds = least - half_digit(percent) <= stated && stated <= most + half_digit(percent);
        if !(near || rounds) {
            let ratio = stated / of(seconds);
            assert!((0.984..0.991).contains(&ratio), "{devices} devices, {time} s: {ratio}");
            windowed += 1;
        }
    }
    assert_eq!(windowed, 4);
    let gpt_22b = gpt(48, 6144, 64, 2048, 51200).flops_per_iteration_full_square(4);
    assert!((gpt_22b / 1143560812363776.0 - 1.0).abs() < 1e-14, "{gpt_22b}");
}

/// Rows that state TFLOP/s of a device and the share of its peak, not the time: arXiv 2104.04473 tables 1 and 2 (A100, hardware
/// FLOPs by equation 3), Megatron-LM's README (H100), arXiv 2304.11277 (A100), 1910.02054 (V100).
#[test]
fn stated_shares_are_of_the_peaks_known_here() {
    for (device, tflops, percent) in [
        ("A100", 137.0, "44"),
        ("A100", 138.0, "44"),
        ("A100", 155.0, "50"),
        ("A100", 163.0, "52"),
        ("A100", 138.0, "44.2"),
        ("A100", 48.0, "15.4"),
        ("A100", 153.0, "49.0"),
        ("A100", 149.0, "47.8"),
        ("A100", 141.0, "45.2"),
        ("A100", 171.0, "54.8"),
        ("A100", 159.0, "51.0"),
        ("H100", 465.9, "47"),
        ("H100", 489.1, "49"),
        ("H100", 459.6, "46"),
        ("H100", 474.4, "48"),
        ("A100", 173.0, "55"),
        ("V100", 38.0, "30"),
    ] {
        let ours = 100.0 * utilisation(tflops * 1e12, 1.0, 1, peak_tflops(device).unwrap());
        let stated: f64 = percent.parse().unwrap();
        assert!((ours - stated).abs() <= half_digit(percent), "{tflops} on {device}: {ours} against {percent}");
    }
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
        other_ffn: None,
        padded_vocab_size: 152064,
        ..LLAMA3_70B
    };
    assert_eq!(qwen25_7b.parameters(&ParameterOptions { qkv_bias: true, ..llama }), 7_615_616_512);
    let qwen3_8b = GptShape {
        num_layers: 36,
        hidden_size: 4096,
        num_attention_heads: 32,
        ffn_hidden_size: 12288,
        other_ffn: None,
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
