//! Which layers have experts, and the experts that every token passes.

use crate::settings::{ModelConfig, ParallelConfig};
use crate::validate::checker::Checker;
use crate::value::Value;

const FREQ: &str = "--moe-layer-freq";
const FIRST: &str = "--first-k-dense-replace";
const SHARED: &str = "--moe-shared-expert-intermediate-size";
const COUNT: &str = "--n-shared-experts";

/// Layers with an MLP: all but each N-th from the first (`--moe-layer-freq N`), those with 0 in a list of all layers, and the
/// first K (MindSpeed-LLM's `--first-k-dense-replace`). (megatron/core/models/gpt/gpt_layer_specs.py, `moe_layer_pattern`.)
pub(super) fn dense(c: &mut Checker, layers: usize) -> Vec<usize> {
    // MindSpeed-LLM's recipes say -1 for both where every layer has experts.
    let first = c.args.int("first_k_dense_replace").map_or(0, |n| usize::try_from(n).unwrap_or(0));
    let has: Vec<bool> = match c.args.value("moe_layer_freq").clone() {
        Value::Int(0) => {
            let legal = Some("1 for experts in every layer, or a list of 0 and 1 with an entry a layer".into());
            c.invalid(&[FREQ], format!("{FREQ} 0 divides by nothing")).legal = legal;
            return vec![];
        }
        Value::Int(n) => (0..layers as u64).map(|i| i % n.unsigned_abs() == 0).collect(),
        Value::List(pattern) => {
            let entries: Option<Vec<bool>> = pattern.iter().map(entry).collect();
            let Some(entries) = entries.filter(|e| e.len() == layers) else {
                let v =
                    c.invalid(&[FREQ, "--num-layers"], format!("{FREQ} has to be a list of 0 and 1, an entry a layer"));
                v.arithmetic = Some(format!("{} entries, {layers} layers", pattern.len()));
                return vec![];
            };
            entries
        }
        _ => vec![true; layers],
    };
    let dense: Vec<usize> = (0..layers).filter(|&i| i < first || !has[i]).collect();
    if dense.len() == layers && layers > 0 {
        c.invalid(&["--num-experts", FREQ, FIRST], "no layer has the experts that are asked for").legal =
            Some("fewer dense layers, or a model without --num-experts".into());
        return vec![];
    }
    dense
}

fn entry(v: &Value) -> Option<bool> {
    match v {
        Value::Int(0) => Some(false),
        Value::Int(1) => Some(true),
        _ => None,
    }
}

/// Width of the shared experts together: as it is given, or so many times the width of an expert.
pub(super) fn shared(c: &mut Checker, p: &ParallelConfig, m: &ModelConfig, expert: usize) -> usize {
    let by_count = c.size("n_shared_experts").map(|n| n.saturating_mul(expert));
    let given = c.size("moe_shared_expert_intermediate_size");
    if let (Some(a), Some(b)) = (given, by_count)
        && a != b
    {
        let v = c.invalid(&[SHARED, COUNT], "two widths of the shared experts");
        v.arithmetic = Some(format!("{SHARED} {a}, {COUNT} times the width of an expert {b}"));
    }
    let width = given.or(by_count).unwrap_or(0);
    if let (None, Some(n)) = (given, by_count) {
        c.derive_size("moe_shared_expert_intermediate_size", n, COUNT);
    }
    if width > 0 && !width.is_multiple_of(p.tp) {
        let v = c.invalid(&[SHARED, "--tensor-model-parallel-size"], "the shared experts do not divide over the ranks");
        v.arithmetic = Some(format!("{width} % {} = {}", p.tp, width % p.tp));
    }
    // SharedExpertMLP asserts that there is no bias.
    if width > 0 && m.add_bias_linear {
        c.invalid(&[SHARED, "--disable-bias-linear"], "shared experts have no biases").legal =
            Some("--disable-bias-linear".into());
    }
    width
}
