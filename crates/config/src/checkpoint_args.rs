//! `--use-checkpoint-args`: the model's shape from the arguments saved in a checkpoint.

use serde_json::Map;

use crate::raw::{Origin, RawArgs};
use crate::value::Value;

/// What a checkpoint's arguments decide: the model's shape and numerics (Megatron: `load_args_from_checkpoint`).
pub const SHAPE: &[&str] = &[
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "seq_length",
    "num_attention_heads",
    "num_query_groups",
    "group_query_attention",
    "kv_channels",
    "max_position_embeddings",
    "position_embedding_type",
    "embed_layernorm",
    "make_vocab_size_divisible_by",
    "padded_vocab_size",
    "untie_embeddings_and_output_weights",
    "add_bias_linear",
    "add_qkv_bias",
    "swiglu",
    "squared_relu",
    "openai_gelu",
    "geglu",
    "gelu_tanh",
    "bias_gelu_fusion",
    "normalization",
    "layernorm_epsilon",
    "layernorm_zero_centered_gamma",
    "qk_layernorm",
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "rotary_seq_len_interpolation_factor",
    "use_rope_scaling",
    "rope_scaling_factor",
    "rope_scaling_type",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "rope_scaling_original_max_position_embeddings",
    "rope_scaling_beta_fast",
    "rope_scaling_beta_slow",
    "rope_scaling_mscale",
    "rope_scaling_mscale_all_dim",
    "rope_theta",
    "rotary_scaling_factor",
    "yarn_original_max_position_embeddings",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_correction_range_round_to_int",
    "mscale",
    "mscale_all_dim",
    "apply_query_key_layer_scaling",
    "attention_dropout",
    "hidden_dropout",
    "window_size",
    "num_experts",
    "moe_layer_freq",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "moe_router_pre_softmax",
    "moe_router_score_function",
    "multi_latent_attention",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "mtp_num_layers",
];

/// The tokenizer, unless `--no-use-tokenizer-model-from-checkpoint-args`.
pub const TOKENIZER: &[&str] = &[
    "tokenizer_type",
    "tokenizer_model",
    "tokenizer_name_or_path",
    "vocab_file",
    "merge_file",
    "vocab_size",
    "tiktoken_pattern",
];

/// Puts the saved values into `args` where the user did not give the flag, and returns the dests that changed.
/// Saved values that no flag could hold (objects, huge numbers) are passed over, as are `null`s.
pub fn merge_checkpoint_args(args: &mut RawArgs, saved: &Map<String, serde_json::Value>) -> Vec<String> {
    let tokenizer: &[&str] = if matches!(args.value("use_tokenizer_model_from_checkpoint_args"), Value::Bool(false)) {
        &[]
    } else {
        TOKENIZER
    };
    let mut taken = Vec::new();
    for dest in SHAPE.iter().chain(tokenizer) {
        let Some(value) = saved.get(*dest).and_then(Value::from_json) else { continue };
        if value.is_none() || args.given(dest) || args.value(dest) == &value {
            continue;
        }
        let spelling = args.spelling(dest);
        args.set(dest, value, Origin::Checkpoint, &spelling);
        taken.push(dest.to_string());
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Table;
    use crate::parser::parse;

    #[test]
    fn every_name_is_a_dest() {
        let args = RawArgs::defaults(&Table::pretrain());
        for dest in SHAPE.iter().chain(TOKENIZER) {
            assert!(args.entry(dest).is_some(), "{dest}");
        }
    }

    #[test]
    fn the_command_line_wins_and_the_rest_comes_from_the_checkpoint() {
        let argv = ["--hidden-size".to_string(), "64".to_string()];
        let mut args = parse(&Table::pretrain(), &argv, &|_| Err(std::io::Error::other(""))).args;
        let saved = serde_json::json!({
            "hidden_size": 128, "num_layers": 3, "swiglu": true, "lr": 0.5, "tokenizer_type": "NullTokenizer",
            "ffn_hidden_size": null, "kv_channels": {"no": "value"}, "add_bias_linear": false
        });
        let taken = merge_checkpoint_args(&mut args, saved.as_object().unwrap());
        assert_eq!(taken, ["num_layers", "add_bias_linear", "swiglu", "tokenizer_type"]);
        assert_eq!(args.int("hidden_size"), Some(64));
        assert_eq!(args.entry("num_layers").unwrap().origin, Origin::Checkpoint);
        assert!(args.value("lr").is_none(), "only the shape is taken");

        args.set("use_tokenizer_model_from_checkpoint_args", Value::Bool(false), Origin::Flag, "");
        args.set("tokenizer_type", Value::None, Origin::Default, "--tokenizer-type");
        assert_eq!(merge_checkpoint_args(&mut args, saved.as_object().unwrap()), Vec::<String>::new());
    }
}
