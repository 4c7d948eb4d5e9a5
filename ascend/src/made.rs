//! What each op of the contract is made of, for the report at start. A test compares it with what really ran.

use std::fmt::Write;

use ferrotron_device::DeviceInfo;

use crate::shared::Shared;

/// What draws dropout's masks.
pub const HOST_MASK: &str = "masks from the host";

/// Ops and the operators that they may use, by the names of aclnn without `aclnn`.
#[rustfmt::skip]
pub const MADE: &[(&str, &str)] = &[
    ("activation", "GeluV2, InplaceCopy, Mul, Muls, Relu, Silu"),
    ("activation_backward", "GeluBackwardV2, InplaceCopy, Mul, Muls, Relu, SiluBackward, ThresholdBackward"),
    ("adam", "Adds, Div, InplaceAdd, InplaceCopy, Mul, Muls, Sqrt"),
    ("add", "Add"),
    ("attention", "FlashAttentionVarLenScore, Adds, Amax, BatchMatMul, Div, Exp, GeScalar, InplaceAdd, InplaceCopy, InplaceFillScalar, InplaceZero, Log, LtScalar, Muls, ReduceSum, SWhere, Sub, masks from the host"),
    ("attention_backward", "FlashAttentionUnpaddingScoreGrad, Add, Adds, BatchMatMul, Exp, GeScalar, InplaceAdd, InplaceCopy, InplaceFillScalar, InplaceZero, LtScalar, Mul, Muls, ReduceSum, SWhere, Sub, masks from the host"),
    ("axpy", "InplaceAdd, InplaceCopy"),
    ("ce_backward", "Adds, Cast, Clamp, Exp, GeScalar, InplaceCopy, LtScalar, Mul, Muls, ScatterAdd, Sub"),
    ("ce_loss", "InplaceAdd, Log, Sub"),
    ("ce_rescale", "Exp, Mul, Sub"),
    ("ce_stats", "Adds, Amax, Cast, Clamp, EqScalar, Exp, Gather, GeScalar, InplaceFillScalar, LtScalar, Mul, ReduceSum, SWhere, Sub"),
    ("column_sum", "InplaceAdd, InplaceCopy, ReduceSum"),
    ("combine", "IndexSelect, InplaceAdd, InplaceCopy, Mul"),
    ("combine_backward", "IndexSelect, InplaceCopy, Mul, ReduceSum"),
    ("copy", "InplaceCopy"),
    ("count_zeros", "Cast, EqScalar, InplaceAdd, ReduceSum"),
    ("dropout", "InplaceAdd, InplaceCopy, InplaceFillScalar, Muls, SWhere, masks from the host"),
    ("embedding", "Adds, Cast, Clamp, Embedding, EqScalar, GeScalar, InplaceAdd, InplaceCopy, InplaceFillScalar, LtScalar, Mul, SWhere"),
    ("embedding_backward", "Adds, Cast, Clamp, EmbeddingDenseBackward, EqScalar, GeScalar, InplaceAdd, InplaceCopy, InplaceFillScalar, LtScalar, Mul, SWhere"),
    ("fill", "InplaceFillScalar"),
    ("gather_rows", "Gather, IndexSelect, InplaceCopy"),
    ("gemm", "Matmul, Addmm, GroupedMatmulAdd, InplaceAdd, InplaceCopy, InplaceFillScalar, InplaceZero, Muls"),
    ("glu", "GeluV2, InplaceCopy, Mul, Muls, Relu, Silu, SwiGlu"),
    ("glu_backward", "GeluBackwardV2, GeluV2, InplaceCopy, Mul, Muls, Relu, Silu, SiluBackward, SwiGluGrad, ThresholdBackward"),
    ("layer_norm", "Adds, InplaceCopy, LayerNorm"),
    ("layer_norm_backward", "Adds, InplaceAdd, InplaceCopy, LayerNormBackward"),
    ("load_balance", "InplaceAdd, Mul, Muls, ReduceSum"),
    ("qkv_merge", "InplaceCopy"),
    ("qkv_split", "InplaceCopy"),
    ("rms_norm", "Adds, InplaceCopy, RmsNorm"),
    ("rms_norm_backward", "Adds, InplaceAdd, InplaceCopy, RmsNormGrad"),
    ("rope", "Add, IndexSelect, InplaceCopy, Mul, Sub"),
    ("route", "Adds, Amax, Div, Exp, Gather, InplaceAdd, InplaceCopy, Log, ReduceSum, Sort, Sub"),
    ("route_backward", "InplaceAdd, Mul, Muls, ReduceSum, ScatterAdd, Sub"),
    ("scale", "Cast, InplaceCopy, Mul"),
    ("sgd", "InplaceAdd, InplaceCopy, Mul, Muls"),
    ("sort_by_expert", "InplaceCopy, InplaceFillScalar, InplaceZero, ScatterAdd, Sort"),
    ("sum_squares", "InplaceAdd, InplaceCopy, Mul, ReduceSum"),
    ("weighted_sum", "InplaceAdd, Mul, ReduceSum"),
];

/// The names of an op's parts.
pub fn parts(list: &str) -> impl Iterator<Item = String> + '_ {
    list.split(", ").map(|p| if p == HOST_MASK { p.to_string() } else { format!("aclnn{p}") })
}

/// Device, versions, memory, and a line for each op.
pub fn describe(shared: &Shared, info: &DeviceInfo, total: usize) -> Vec<String> {
    let name = &info.name;
    let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
    let mut lines = vec![format!("{name}: {}, {:.1} GiB of memory free", info.model, gib(info.memory))];
    // the driver's own share is a few percent
    let taken = total.saturating_sub(info.memory);
    if taken > total / 10 {
        lines.push(format!(
            "{name}: warning: {:.1} of {:.1} GiB were in use before this program came: is another job on the device? HCCL does \
             not share devices (507049), and a process that hangs keeps its memory (npu-smi info)",
            gib(taken),
            gib(total)
        ));
    }
    let lacking = shared.cann.acl.lacking();
    if !lacking.is_empty() {
        lines.push(format!("{name}: this release has no {}", lacking.join(", ")));
    }
    if shared.cann.acl.aclrtLaunchHostFunc.is_none() {
        lines.push(format!("{name}: without aclrtLaunchHostFunc the host waits for the device at every dropout"));
    }
    let mut how = String::new();
    let set = |on: bool| if on { "on" } else { "off" };
    let _ = write!(how, "deterministic operators {}", set(shared.options.deterministic));
    let _ = write!(how, ", waiting after every operator {}", set(shared.options.blocking));
    lines.push(format!("{name}: {how}"));
    lines.push(format!("{name}: ops, and the aclnn operators that they are made of:"));
    let missing: Vec<&str> = shared.cann.ops.lacking();
    for (op, list) in MADE {
        let without: Vec<String> = parts(list).filter(|p| missing.contains(&p.as_str())).collect();
        let note =
            if without.is_empty() { String::new() } else { format!(" (this release lacks {})", without.join(", ")) };
        lines.push(format!("{name}: {op} = {list}{note}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use ferrotron_acl_sys::OpApi;

    use super::*;

    #[test]
    fn every_operator_of_the_table_is_used_and_every_part_is_one() {
        let mut used: Vec<String> = MADE.iter().flat_map(|(_, list)| parts(list)).filter(|p| p != HOST_MASK).collect();
        used.sort();
        used.dedup();
        let mut all: Vec<&str> = OpApi::NAMES.to_vec();
        all.sort();
        assert_eq!(used, all);
    }
}
