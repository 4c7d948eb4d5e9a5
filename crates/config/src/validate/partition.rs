//! Megatron-DeepSpeed's `--pp-partition-method`: what weighs how much when stages are balanced (deepspeed/runtime/pipe/
//! module.py, `_partition_layers`; megatron/model/gpt_model.py, `GPTModelPipe`).
//!
//! DeepSpeed's list of layers holds small functions (casts, transposes) between those that have a class. They weigh nothing
//! here, also in `uniform`: a boundary may lie one layer beside upstream's, which changes no number.

use ferrotron_schedule::Way;

use super::checker::Checker;
use crate::settings::{Activation, ModelConfig, NormKind, PositionKind};

const METHOD: &str = "--pp-partition-method";
const LAYER: &str = "ParallelTransformerLayerPipe";

/// The division that the method asks for; `None` after a complaint.
pub(super) fn way(c: &mut Checker, text: &str, m: &ModelConfig, tp: usize) -> Option<Way> {
    let method = text.to_lowercase();
    let (embedding, layer, head) = match method.strip_prefix("type:") {
        Some(words) => types(c, text, words, m)?,
        // Embedding; a layer; final norm and head.
        None if method == "uniform" => (1, 1, 2),
        None if method == "parameters" => parameters(c, m, tp)?,
        None => {
            c.invalid(&[METHOD], format!("{METHOD} '{text}' is no way to divide layers")).legal =
                Some("uniform, parameters, type:transformer, type:transformer|embedding".into());
            return None;
        }
    };
    Some(Way::Weighed { embedding, layer, head })
}

/// Layers whose class has one of the words in its name weigh 1, the others nothing.
fn types(c: &mut Checker, text: &str, words: &str, m: &ModelConfig) -> Option<(u64, u64, u64)> {
    if words.contains(|ch: char| !(ch.is_ascii_alphanumeric() || ch == '_' || ch == '|')) {
        let v = c.planned(
            &[METHOD],
            format!("{METHOD} '{text}': regular expressions beyond words joined by | are not there yet"),
        );
        v.legal = Some("type:transformer, type:transformer|embedding".into());
        return None;
    }
    let weight = |class: &str| u64::from(words.split('|').any(|w| class.to_lowercase().contains(w)));
    let norm = if m.norm.kind == NormKind::RmsNorm { "RMSNorm" } else { "LayerNorm" };
    let head = if m.tie_embeddings { "EmbeddingPipe" } else { "LMHeadPipe" };
    if weight(LAYER) == 0 {
        c.invalid(&[METHOD], format!("{METHOD} '{text}' counts no transformer layer")).legal =
            Some(format!("type:transformer (their class is {LAYER})"));
        return None;
    }
    Some((weight("EmbeddingPipe"), 1, weight(norm) + weight(head)))
}

/// Parameters of the embedding, a layer, final norm and head.
fn parameters(c: &mut Checker, m: &ModelConfig, tp: usize) -> Option<(u64, u64, u64)> {
    let rows = m.vocab.padded_vocab_size.or_else(|| m.vocab.vocab_size.and_then(|n| m.vocab.padded(n, tp).ok()));
    let Some(rows) = rows else {
        c.missing("vocab_size", "--vocab-size", &format!("the vocabulary that {METHOD} parameters weighs"));
        return None;
    };
    let n = |sizes: &[usize]| sizes.iter().fold(1u64, |a, b| a.saturating_mul(*b as u64));
    let (h, f, d) = (m.hidden_size, m.ffn_hidden_size, m.kv_channels);
    let qkv = m.num_attention_heads + 2 * m.num_query_groups;
    let gated = matches!(m.activation, Activation::Swiglu | Activation::Geglu | Activation::GegluTanh);
    let up = if gated { 2 } else { 1 };
    let norm = if m.norm.kind == NormKind::RmsNorm { n(&[h]) } else { n(&[2, h]) };
    let qk_norm = if m.qk_layernorm { 2 * norm / n(&[h]).max(1) * n(&[d]) } else { 0 };
    let biases = n(&[usize::from(m.add_qkv_bias), qkv, d]) + n(&[usize::from(m.add_bias_linear), 2 * h + up * f]);
    let matrices = [n(&[h, qkv, d]), n(&[m.num_attention_heads, d, h]), n(&[up + 1, h, f])];
    let layer = matrices.iter().fold(2 * norm + qk_norm + biases, |a, b| a.saturating_add(*b));
    let learned = usize::from(m.position == PositionKind::LearnedAbsolute);
    let normed = n(&[usize::from(m.embedding_layernorm), 2 * h]);
    let embedding = n(&[rows, h]).saturating_add(n(&[learned, m.max_position_embeddings, h])).saturating_add(normed);
    Some((embedding, layer.max(1), n(&[rows, h]).saturating_add(norm)))
}
