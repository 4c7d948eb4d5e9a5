//! Model shape, norms, activation, positions, vocabulary, initial weights.

use super::NoticeKind;
use super::checker::{Checker, divisors, list};
use crate::flags::Source;
use crate::settings::{
    Activation, ModelConfig, NormConfig, NormKind, ParallelConfig, PositionKind, RopeConfig, RopeScaling,
    SlidingWindow, VocabConfig,
};
use crate::value::Value;

/// Other spellings of a value become the one that the rules read.
pub(super) fn before(c: &mut Checker) {
    for (main, other) in [("num_layers", "encoder_num_layers"), ("seq_length", "encoder_seq_length")] {
        if c.args.value(other).is_none() {
            continue;
        }
        if c.args.value(main).is_none() {
            let value = c.args.value(other).clone();
            let rule = format!("--{}", other.replace('_', "-"));
            c.derive(main, value, &rule);
        } else {
            let flags = [c.args.spelling(main), c.args.spelling(other)];
            c.invalid(&[&flags[0], &flags[1]], format!("{} and {} say the same; give one", flags[0], flags[1]));
        }
    }
    if c.args.int("num_experts") == Some(0) {
        c.derive("num_experts", Value::None, "0 experts are none");
    }
    if c.args.int("num_experts") == Some(1) && c.speaks(Source::MegatronDeepSpeed) {
        c.derive("num_experts", Value::None, "Megatron-DeepSpeed's way to say dense");
    }
    if let Some(groups) = c.args.int("num_key_value_heads") {
        c.derive("num_query_groups", Value::Int(groups), "--num-key-value-heads");
        c.derive("group_query_attention", Value::Bool(true), "--num-key-value-heads");
    }
}

pub(super) fn check(c: &mut Checker, p: &ParallelConfig) -> ModelConfig {
    let num_layers = c.required_size("num_layers", "transformer layers");
    let hidden_size = c.required_size("hidden_size", "width of the model");
    let num_attention_heads = c.required_size("num_attention_heads", "query heads");
    let (kv_channels, num_query_groups) = heads(c, p, hidden_size, num_attention_heads);
    let activation = activation(c);
    let ffn_hidden_size = match c.size("ffn_hidden_size") {
        Some(ffn) => ffn,
        None if c.args.is_broken("ffn_hidden_size") => 0,
        None => {
            let (ffn, rule) = match activation {
                // Megatron: int(4 * hidden * 2/3 / 64) * 64 keeps the parameter count of an ungated network.
                Activation::Swiglu => {
                    (hidden_size.saturating_mul(8) / 3 / 64 * 64, "int(8 x hidden / 3 / 64) x 64 for SwiGLU")
                }
                _ => (hidden_size.saturating_mul(4), "4 x hidden"),
            };
            if ffn == 0 && hidden_size > 0 {
                let v = c.invalid(&["--hidden-size", "--ffn-hidden-size"], "the default feed-forward size is 0");
                v.arithmetic = Some(format!("int(8 x {hidden_size} / 3 / 64) x 64 = 0"));
                v.legal = Some("--ffn-hidden-size".into());
            }
            c.derive_size("ffn_hidden_size", ffn, rule);
            ffn
        }
    };
    if ffn_hidden_size > 0 && !ffn_hidden_size.is_multiple_of(p.tp) {
        let v = c.invalid(
            &["--ffn-hidden-size", "--tensor-model-parallel-size"],
            "the feed-forward width does not divide over tensor-parallel ranks",
        );
        v.arithmetic = Some(format!("{ffn_hidden_size} % {} = {}", p.tp, ffn_hidden_size % p.tp));
    }
    let max_position_embeddings = max_positions(c);
    latent_attention(c);
    if c.args.flag("apply_query_key_layer_scaling") {
        c.derive("attention_softmax_in_fp32", Value::Bool(true), "--apply-query-key-layer-scaling");
    }
    let add_bias_linear = c.args.flag("add_bias_linear");
    let mut add_qkv_bias = c.args.flag("add_qkv_bias");
    if add_bias_linear && !add_qkv_bias {
        add_qkv_bias = true;
        c.derive("add_qkv_bias", Value::Bool(true), "all linear layers have biases");
    }
    let (position, rope) = positions(c, kv_channels);
    let init_method_std = c.real_from("init_method_std", 0.0).unwrap_or(0.02);
    let embedding_init_method_std = c.real_from("embedding_init_method_std", 0.0).unwrap_or(init_method_std);
    let probability = |c: &mut Checker, dest| c.real(dest, "0 <= p < 1", |p| (0.0..1.0).contains(&p)).unwrap_or(0.0);
    let kind = match c.args.text("normalization").map(str::to_ascii_lowercase).as_deref() {
        Some("rmsnorm") => NormKind::RmsNorm,
        _ => NormKind::LayerNorm,
    };
    ModelConfig {
        num_layers,
        hidden_size,
        ffn_hidden_size,
        num_attention_heads,
        num_query_groups,
        kv_channels,
        max_position_embeddings,
        vocab: vocab(c),
        norm: NormConfig {
            kind,
            epsilon: c.real("layernorm_epsilon", "above 0", |e| e > 0.0).unwrap_or(1e-5),
            zero_centered_gamma: c.args.flag("layernorm_zero_centered_gamma"),
        },
        activation,
        moe: None,
        position,
        rope,
        embedding_layernorm: c.args.flag("embed_layernorm"),
        add_bias_linear,
        add_qkv_bias,
        qk_layernorm: c.args.flag("qk_layernorm"),
        tie_embeddings: !c.args.flag("untie_embeddings_and_output_weights"),
        hidden_dropout: probability(c, "hidden_dropout"),
        attention_dropout: probability(c, "attention_dropout"),
        softmax_scale: 1.0 / (kv_channels.max(1) as f64).sqrt(),
        sliding_window: window(c),
        init_method_std,
        embedding_init_method_std,
        output_init_method_std: init_method_std / (2.0 * num_layers.max(1) as f64).sqrt(),
    }
}

/// Multi-head latent attention and multi-token prediction, as far as they exclude other flags.
fn latent_attention(c: &mut Checker) {
    const MLA: &str = "--multi-latent-attention";
    if c.args.flag("multi_latent_attention") {
        if c.args.flag("group_query_attention") {
            let v = c.invalid(
                &[MLA, "--group-query-attention"],
                format!("{MLA} and --group-query-attention exclude each other"),
            );
            v.why = Some("latent attention already shares keys and values, through one compressed vector".into());
        }
        if c.args.flag("rotary_interleaved") {
            c.invalid(&[MLA, "--rotary-interleaved"], format!("{MLA} and --rotary-interleaved exclude each other"));
        }
    }
    let position = c.args.text("position_embedding_type").unwrap_or("learned_absolute");
    let rotary =
        matches!(position, "rope" | "none" | "yarn" | "deepseek4") || c.args.flag("use_rotary_position_embeddings");
    if c.args.int("mtp_num_layers").is_some_and(|n| n > 0) && !rotary {
        let flags = ["--mtp-num-layers", "--position-embedding-type"];
        let what = format!("--mtp-num-layers needs rotary positions or none, not {position}");
        c.invalid(&flags, what).legal = Some("--position-embedding-type rope or none".into());
    }
}

/// Head size and key-value groups.
fn heads(c: &mut Checker, p: &ParallelConfig, hidden: usize, heads: usize) -> (usize, usize) {
    const TP: &str = "--tensor-model-parallel-size";
    let kv_channels = match c.size("kv_channels") {
        Some(channels) => channels,
        None if hidden == 0 || heads == 0 || c.args.is_broken("kv_channels") => 0,
        None => {
            if !hidden.is_multiple_of(heads) {
                let legal: Vec<usize> = divisors(hidden).into_iter().filter(|h| *h <= 512).collect();
                let v = c.invalid(
                    &["--hidden-size", "--num-attention-heads"],
                    "the hidden size does not divide over the heads",
                );
                v.arithmetic = Some(format!("{hidden} % {heads} heads = {}", hidden % heads));
                v.legal =
                    Some(format!("--num-attention-heads {}; or an explicit head size by --kv-channels", list(&legal)));
            }
            let channels = hidden / heads;
            c.derive_size("kv_channels", channels, "hidden size / heads");
            channels
        }
    };
    if (1..8).contains(&kv_channels) {
        c.warn(format!(
            "head size {kv_channels} is unusual ({heads} heads on hidden size {hidden}): were two flags swapped?"
        ));
    }
    if heads > 0 && !heads.is_multiple_of(p.tp) {
        let v = c.invalid(&["--num-attention-heads", TP], "the heads do not divide over tensor-parallel ranks");
        v.arithmetic = Some(format!("{heads} heads % tensor {} = {}", p.tp, heads % p.tp));
        v.legal = Some(format!("{TP} {}", list(&divisors(heads))));
    }
    let grouped = c.args.flag("group_query_attention");
    if !grouped {
        if c.given_any(&["num_query_groups"]) && c.args.int("num_query_groups") != Some(1) {
            c.warn("--num-query-groups is ignored without --group-query-attention, as in Megatron");
        }
        return (kv_channels, heads);
    }
    let groups = c.size("num_query_groups").unwrap_or(1);
    if heads > 0 && !heads.is_multiple_of(groups) {
        let v = c
            .invalid(&["--num-attention-heads", "--num-query-groups"], "the heads do not divide over the query groups");
        v.arithmetic = Some(format!("{heads} heads % {groups} groups = {}", heads % groups));
        v.legal = Some(format!("--num-query-groups {}", list(&divisors(heads))));
    }
    (kv_channels, groups)
}

fn activation(c: &mut Checker) -> Activation {
    let chosen: Vec<(&str, Activation)> = [
        ("swiglu", Activation::Swiglu),
        ("squared_relu", Activation::SquaredRelu),
        ("openai_gelu", Activation::GeluTanh),
        ("geglu", Activation::Geglu),
        // Planned by its own status; named here because it excludes the others.
        ("quick_geglu", Activation::Geglu),
    ]
    .into_iter()
    .filter(|(dest, _)| c.args.flag(dest))
    .collect();
    let gelu_tanh = c.args.flag("gelu_tanh");
    // BigScience's spelling: a gated MLP by the name of its function.
    match c.args.text("glu_activation").map(str::to_string).as_deref() {
        None => {}
        Some("swiglu") if chosen.is_empty() => {
            c.derive("swiglu", Value::Bool(true), "--glu-activation");
            return Activation::Swiglu;
        }
        Some("geglu") if chosen.is_empty() => {
            c.derive("geglu", Value::Bool(true), "--glu-activation");
            return Activation::Geglu;
        }
        Some(name) if chosen.is_empty() => {
            c.planned(&["--glu-activation"], format!("--glu-activation {name} is not there yet")).legal =
                Some("swiglu, geglu".into());
        }
        Some(name) => {
            let flag = c.args.spelling(chosen[0].0);
            c.invalid(
                &["--glu-activation", &flag],
                format!("one activation only, got --glu-activation {name} and {flag}"),
            );
        }
    }
    if chosen.len() > 1 {
        let flags: Vec<String> = chosen.iter().map(|(dest, _)| c.args.spelling(dest)).collect();
        let names: Vec<&str> = flags.iter().map(String::as_str).collect();
        c.invalid(&names, format!("one activation only, got {}", names.join(" and ")));
    }
    match chosen.first() {
        Some((_, Activation::Geglu)) if gelu_tanh => Activation::GegluTanh,
        Some((_, activation)) => *activation,
        None if gelu_tanh => Activation::GeluTanh,
        None => {
            // Upstream's fused bias-gelu computes the tanh form; without bias or fusion it is F.gelu, the error function.
            let fused = c.args.flag("bias_gelu_fusion") && c.args.flag("add_bias_linear");
            if fused { Activation::GeluTanh } else { Activation::Gelu }
        }
    }
}

/// `--max-position-embeddings`, the sequence length when omitted.
fn max_positions(c: &mut Checker) -> usize {
    let seq = c.args.int("seq_length").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    match c.size("max_position_embeddings") {
        Some(max) if seq > max => {
            let v =
                c.invalid(&["--seq-length", "--max-position-embeddings"], "sequences are longer than the positions");
            v.arithmetic = Some(format!("sequence length {seq} > {max} positions"));
            v.legal = Some(format!("--max-position-embeddings {seq} or more, or a shorter --seq-length"));
            max
        }
        Some(max) => max,
        None => {
            if seq > 0 && !c.args.is_broken("max_position_embeddings") {
                c.derive_size("max_position_embeddings", seq, "sequence length");
                c.notice(
                    NoticeKind::Adjusted,
                    format!("--max-position-embeddings not given: {seq}, the sequence length"),
                );
            }
            seq
        }
    }
}

fn positions(c: &mut Checker, kv_channels: usize) -> (PositionKind, Option<RopeConfig>) {
    const TYPE: &str = "--position-embedding-type";
    if c.args.flag("use_rotary_position_embeddings") {
        c.derive("position_embedding_type", Value::Str("rope".into()), "--use-rotary-position-embeddings");
    }
    let name = c.args.text("position_embedding_type").unwrap_or("learned_absolute").to_string();
    if matches!(c.args.value("add_position_embedding"), Value::Bool(false)) && name != "rope" {
        let v = c.invalid(
            &["--no-position-embedding", TYPE],
            format!("--no-position-embedding goes with rope, but {TYPE} is {name}"),
        );
        v.legal = Some(format!("{TYPE} rope, or {TYPE} none for no positions at all"));
    }
    let kind = match name.as_str() {
        "rope" | "yarn" => PositionKind::Rope,
        "learned_absolute" => PositionKind::LearnedAbsolute,
        "none" => PositionKind::None,
        other => {
            if other == "mrope" && c.args.list("mrope_section").is_empty() {
                c.invalid(&[TYPE, "--mrope-section"], format!("{TYPE} mrope needs --mrope-section"));
            }
            c.planned(&[TYPE], format!("{TYPE} {other} is not there yet")).legal =
                Some("learned_absolute, rope, yarn, none".into());
            PositionKind::None
        }
    };
    if kind != PositionKind::Rope {
        return (kind, None);
    }
    let percent = c.real("rotary_percent", "0 < percent <= 1", |p| p > 0.0 && p <= 1.0).unwrap_or(1.0);
    let rotated = (kv_channels as f64 * percent) as usize;
    // Multi-head latent attention rotates a part of its own (--qk-pos-emb-head-dim).
    let latent = c.args.flag("multi_latent_attention");
    if !latent && kv_channels > 0 && (rotated == 0 || !rotated.is_multiple_of(2)) {
        let v = c.invalid(
            &["--kv-channels", "--rotary-percent"],
            "rotary positions turn pairs, so the rotated part of a head must be even",
        );
        v.arithmetic = Some(format!("head size {kv_channels} x {percent} = {rotated}"));
        v.legal = Some("an even head size: hidden size / heads, or --kv-channels".into());
    }
    // `--rotary-position-embeddings-theta` and `--rope-theta` are other projects' names of `--rotary-base`.
    let base = if c.args.is_set("rope_theta") && !c.args.is_set("rotary_base") { "rope_theta" } else { "rotary_base" };
    let base = c.real(base, "above 1", |b| b > 1.0).unwrap_or(10000.0);
    let seq_len_interpolation_factor = c.real("rotary_seq_len_interpolation_factor", "above 0", |f| f > 0.0);
    let scaling = scaling(c, name == "yarn");
    // ChatGLM's rotation, which MindSpeed-LLM has code of its own for, is that of neighbouring elements; a half of each head is
    // turned by --rotary-percent.
    if c.args.flag("use_glm_rope") && !c.args.flag("rotary_interleaved") {
        c.derive("rotary_interleaved", Value::Bool(true), "--use-glm-rope");
    }
    let interleaved = c.args.flag("rotary_interleaved");
    (kind, Some(RopeConfig { base, percent, interleaved, seq_len_interpolation_factor, scaling }))
}

fn scaling(c: &mut Checker, yarn: bool) -> RopeScaling {
    let above_zero =
        |c: &mut Checker, dest: &str, default: f64| c.real(dest, "above 0", |x| x > 0.0).unwrap_or(default);
    // MindSpeed names the method and its numbers by flags of their own.
    let mindspeed = c.args.text("rope_scaling_type").map(str::to_string);
    match mindspeed.as_deref() {
        None | Some("yarn" | "llama3") => {}
        Some(other) => {
            c.planned(&["--rope-scaling-type"], format!("--rope-scaling-type {other} is not there yet")).legal =
                Some("yarn, llama3".into());
        }
    }
    if yarn || mindspeed.as_deref() == Some("yarn") {
        let own = mindspeed.is_some();
        let pick = |a: &'static str, b: &'static str| if own { b } else { a };
        let original = pick("yarn_original_max_position_embeddings", "rope_scaling_original_max_position_embeddings");
        return RopeScaling::Yarn {
            factor: above_zero(c, pick("rotary_scaling_factor", "rope_scaling_factor"), 1.0),
            original_max_position: c.size(original).unwrap_or(4096),
            beta_fast: above_zero(c, pick("yarn_beta_fast", "rope_scaling_beta_fast"), 32.0),
            beta_slow: above_zero(c, pick("yarn_beta_slow", "rope_scaling_beta_slow"), 1.0),
            mscale: c.real_from(pick("mscale", "rope_scaling_mscale"), 0.0).unwrap_or(1.0),
            mscale_all_dim: c.real_from(pick("mscale_all_dim", "rope_scaling_mscale_all_dim"), 0.0).unwrap_or(0.0),
            round_correction_range: !matches!(c.args.value("yarn_correction_range_round_to_int"), Value::Bool(false)),
        };
    }
    if c.args.flag("use_rope_scaling") || mindspeed.as_deref() == Some("llama3") {
        return RopeScaling::Llama3 {
            factor: above_zero(c, "rope_scaling_factor", 8.0),
            low_freq_factor: above_zero(c, "low_freq_factor", 1.0),
            high_freq_factor: above_zero(c, "high_freq_factor", 4.0),
            original_max_position: above_zero(c, "original_max_position_embeddings", 8192.0),
        };
    }
    RopeScaling::None
}

fn window(c: &mut Checker) -> Option<SlidingWindow> {
    let sides = c.args.list("window_size").to_vec();
    if sides.is_empty() {
        return None;
    }
    let side = |v: &Value| match v {
        Value::Int(-1) => Some(None),
        Value::Int(n) => usize::try_from(*n).ok().map(Some),
        _ => None,
    };
    match sides.iter().map(side).collect::<Option<Vec<_>>>().as_deref() {
        Some([left, right]) => Some(SlidingWindow { left: *left, right: *right }),
        _ => {
            c.invalid(&["--window-size"], "--window-size takes two numbers, tokens before and after").legal =
                Some("for example 127,0; -1 for no limit on a side".into());
            None
        }
    }
}

fn vocab(c: &mut Checker) -> VocabConfig {
    let padded = c.size("padded_vocab_size").or_else(|| c.size("pad_vocab_size_to"));
    let vocab_size = c.size("vocab_size");
    if let (Some(padded), Some(vocab)) = (padded, vocab_size)
        && padded < vocab
    {
        let v = c.invalid(&["--padded-vocab-size", "--vocab-size"], "fewer padded vocabulary rows than entries");
        v.arithmetic = Some(format!("{padded} < {vocab}"));
    }
    VocabConfig {
        vocab_size,
        padded_vocab_size: padded,
        divisible_by: c.size("make_vocab_size_divisible_by").unwrap_or(128),
        pad: !matches!(c.args.value("pad_vocab_size"), Value::Bool(false)),
    }
}
