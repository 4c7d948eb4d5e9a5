//! The lines that Megatron prints while it validates (`arguments.py`), which users grep for.

use crate::raw::Origin;
use crate::settings::{ParamDtype, RunLength};
use crate::validate::Resolved;

/// World and mesh sizes, completed batch size and iterations, and the parameter type, as rank 0 prints them.
pub fn startup_lines(resolved: &Resolved) -> Vec<String> {
    let p = &resolved.config.parallel;
    let train = &resolved.config.train;
    let mut lines = vec![format!(
        "using world size: {}, data-parallel size: {}, context-parallel size: {}, hierarchical context-parallel sizes: None, \
         tensor-model-parallel size: {}, pipeline-model-parallel size: {}",
        p.world_size, p.dp, p.cp, p.tp, p.pp
    )];
    let derived = |dest| resolved.args.entry(dest).is_some_and(|e| matches!(e.origin, Origin::Derived(_)));
    if derived("global_batch_size") {
        lines.push(format!("setting global batch size to {}", train.global_batch_size));
    }
    if let (RunLength::Samples(_), Some(iters)) = (train.length, resolved.args.int("train_iters")) {
        lines.push(format!("setting training iterations to {iters}"));
    }
    if train.params_dtype == ParamDtype::Bf16 {
        lines.push("accumulate and all-reduce gradients in fp32 for bfloat16 data type.".to_string());
    }
    lines.push(format!("using {} for parameters ...", train.params_dtype.torch_name()));
    lines
}
