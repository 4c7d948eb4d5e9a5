//! aclnn operators: libopapi and its successors.
//!
//! Each is two functions. Phase one, `aclnnXxxGetWorkspaceSize`, takes the arguments, and gives an executor and the
//! bytes of workspace it needs; phase two, `aclnnXxx`, takes workspace, executor and stream. An executor serves once,
//! and leaks when phase two is left out; the workspace must live until the stream has passed the call.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use ferrotron_dynlib::{Library, SymbolAddress, Symbols, c_name};

use crate::types::*;

/// Phase two, the same for every operator.
pub type Run = unsafe extern "C" fn(
    workspace: *mut c_void,
    workspace_size: u64,
    executor: *mut aclOpExecutor,
    stream: aclrtStream,
) -> aclnnStatus;

/// An operator: its name and both phases.
#[derive(Clone, Copy, Debug)]
pub struct Op<F> {
    /// `aclnnAdd`.
    pub name: &'static str,
    /// Phase one.
    pub plan: F,
    /// Phase two.
    pub run: Run,
}

macro_rules! operators {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The operators that we call. All are optional: releases differ, and a device says which op it lacks.
        pub struct OpApi {
            $($(#[$doc])* pub $name: Option<Op<unsafe extern "C" fn(
                $($arg: $ty,)* workspace_size: *mut u64, executor: *mut *mut aclOpExecutor,
            ) -> aclnnStatus>>,)*
            /// The libraries searched, in order: own kernels first.
            pub libraries: Vec<Arc<Library>>,
        }

        impl OpApi {
            /// Names of all operators.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Finds both phases of every operator, each in the first library that has it.
            pub fn load(libraries: &[Arc<Library>]) -> OpApi {
                let symbols = Symbols::of(libraries);
                OpApi {
                    $($name: symbols
                        .find(c_name!($name, "GetWorkspaceSize"))
                        .zip(symbols.find(c_name!($name)))
                        .map(|(plan, run)| Op {
                            name: stringify!($name),
                            // SAFETY: the address is that of the C function of this name, whose signature stands above.
                            plan: unsafe { std::mem::transmute::<SymbolAddress, unsafe extern "C" fn(
                                $($ty,)* *mut u64, *mut *mut aclOpExecutor) -> aclnnStatus>(plan) },
                            // SAFETY: every operator's second phase has this signature.
                            run: unsafe { std::mem::transmute::<SymbolAddress, Run>(run) },
                        }),)*
                    libraries: libraries.to_vec(),
                }
            }

            /// Operators that these libraries lack.
            pub fn lacking(&self) -> Vec<&'static str> {
                [$((stringify!($name), self.$name.is_some())),*].iter().filter(|o| !o.1).map(|o| o.0).collect()
            }
        }
    };
}

operators! {
    /// `out = self @ mat2`, dims up to 6.
    fn aclnnMatmul(self_: *const aclTensor, mat2: *const aclTensor, out: *mut aclTensor, cube_math_type: i8);
    /// `out[i] = self[i] @ mat2[i]`, three dims.
    fn aclnnBatchMatMul(self_: *const aclTensor, mat2: *const aclTensor, out: *mut aclTensor, cube_math_type: i8);
    /// `out = beta * self + alpha * (mat1 @ mat2)`, with broadcasting of self.
    fn aclnnAddmm(
        self_: *const aclTensor, mat1: *const aclTensor, mat2: *const aclTensor, beta: *const aclScalar,
        alpha: *const aclScalar, out: *mut aclTensor, cube_math_type: i8,
    );
    /// `y_i += x_i^T @ weight_i` for groups i along K: x `[K,M]` and weight `[K,N]` of 16 bits, y `F32[M,N]` (one group),
    /// ends of the groups `I64` on the device. Only x transposed, weight not, and group type 2 exist.
    fn aclnnGroupedMatmulAdd(
        x: *const aclTensor, weight: *const aclTensor, group_list: *const aclTensor, y: *mut aclTensor,
        transpose_x: bool, transpose_weight: bool, group_type: i64,
    );
    /// Attention of packed sequences, layout TND: q `[T,N,D]`, k and v `[T,G,D]`, ends of sequences on the host;
    /// `softmax_max` and `softmax_sum` are `F32[T,N,8]`. Sparse mode 3 takes the triangle `[2048,2048]` as its mask.
    fn aclnnFlashAttentionVarLenScore(
        query: *const aclTensor, key: *const aclTensor, value: *const aclTensor, real_shift: *const aclTensor,
        drop_mask: *const aclTensor, padding_mask: *const aclTensor, atten_mask: *const aclTensor,
        prefix: *const aclIntArray, actual_seq_q: *const aclIntArray, actual_seq_kv: *const aclIntArray, scale: f64,
        keep_prob: f64, pre_tokens: i64, next_tokens: i64, head_num: i64, input_layout: *mut c_char,
        inner_precise: i64, sparse_mode: i64, softmax_max: *const aclTensor, softmax_sum: *const aclTensor,
        softmax_out: *const aclTensor, attention_out: *const aclTensor,
    );
    /// Its gradients.
    fn aclnnFlashAttentionUnpaddingScoreGrad(
        query: *const aclTensor, key: *const aclTensor, value: *const aclTensor, dy: *const aclTensor,
        pse_shift: *const aclTensor, drop_mask: *const aclTensor, padding_mask: *const aclTensor,
        atten_mask: *const aclTensor, softmax_max: *const aclTensor, softmax_sum: *const aclTensor,
        softmax_in: *const aclTensor, attention_in: *const aclTensor, prefix: *const aclIntArray,
        actual_seq_q: *const aclIntArray, actual_seq_kv: *const aclIntArray, scale: f64, keep_prob: f64,
        pre_tokens: i64, next_tokens: i64, head_num: i64, input_layout: *mut c_char, inner_precise: i64,
        sparse_mode: i64, dq: *const aclTensor, dk: *const aclTensor, dv: *const aclTensor, dpse: *const aclTensor,
    );
    /// `out = self + alpha * other`, with broadcasting.
    fn aclnnAdd(self_: *const aclTensor, other: *const aclTensor, alpha: *const aclScalar, out: *mut aclTensor);
    /// `out = self + alpha * other`, other a scalar.
    fn aclnnAdds(self_: *const aclTensor, other: *const aclScalar, alpha: *const aclScalar, out: *mut aclTensor);
    /// `self += alpha * other`.
    fn aclnnInplaceAdd(self_: *const aclTensor, other: *const aclTensor, alpha: *const aclScalar);
    /// `out = self - alpha * other`, with broadcasting.
    fn aclnnSub(self_: *const aclTensor, other: *const aclTensor, alpha: *const aclScalar, out: *mut aclTensor);
    /// `out = self * other`, with broadcasting.
    fn aclnnMul(self_: *const aclTensor, other: *const aclTensor, out: *mut aclTensor);
    /// `out = self * other`, other a scalar.
    fn aclnnMuls(self_: *const aclTensor, other: *const aclScalar, out: *mut aclTensor);
    /// `out = self / other`, with broadcasting.
    fn aclnnDiv(self_: *const aclTensor, other: *const aclTensor, out: *mut aclTensor);
    /// `out = sqrt(self)`.
    fn aclnnSqrt(self_: *const aclTensor, out: *mut aclTensor);
    /// `out = exp(self)`.
    fn aclnnExp(self_: *const aclTensor, out: *mut aclTensor);
    /// `out = ln(self)`.
    fn aclnnLog(self_: *const aclTensor, out: *mut aclTensor);
    /// `out = (self == other)`, bool.
    fn aclnnEqScalar(self_: *const aclTensor, other: *const aclScalar, out: *mut aclTensor);
    /// `out = (self >= other)`, bool.
    fn aclnnGeScalar(self_: *const aclTensor, other: *const aclScalar, out: *mut aclTensor);
    /// `out = (self < other)`, bool.
    fn aclnnLtScalar(self_: *const aclTensor, other: *const aclScalar, out: *mut aclTensor);
    /// `out = min(max(self, low), high)`.
    fn aclnnClamp(self_: *const aclTensor, low: *const aclScalar, high: *const aclScalar, out: *mut aclTensor);
    /// `out = condition ? self : other`, with broadcasting.
    fn aclnnSWhere(
        condition: *const aclTensor, self_: *const aclTensor, other: *const aclTensor, out: *mut aclTensor,
    );
    /// Converts: to nearest even between floats.
    fn aclnnCast(self_: *const aclTensor, dtype: aclDataType, out: *mut aclTensor);
    /// `self = src`, converting; strides of both are honoured.
    fn aclnnInplaceCopy(self_: *mut aclTensor, src: *const aclTensor);
    /// `self = 0`.
    fn aclnnInplaceZero(self_: *mut aclTensor);
    /// `self = value`.
    fn aclnnInplaceFillScalar(self_: *mut aclTensor, value: *const aclScalar);
    /// Sum over dims, in `dtype`.
    fn aclnnReduceSum(
        self_: *const aclTensor, dims: *const aclIntArray, keep_dims: bool, dtype: aclDataType, out: *mut aclTensor,
    );
    /// Maximum over dims.
    fn aclnnAmax(self_: *const aclTensor, dims: *const aclIntArray, keep_dims: bool, out: *mut aclTensor);
    /// `y = x r gamma`, `r = 1/sqrt(mean(x^2) + eps)` in float32.
    fn aclnnRmsNorm(
        x: *const aclTensor, gamma: *const aclTensor, epsilon: f64, y: *const aclTensor, rstd: *const aclTensor,
    );
    /// Gradients of [`OpApi::aclnnRmsNorm`]; that of gamma is float32.
    fn aclnnRmsNormGrad(
        dy: *const aclTensor, x: *const aclTensor, rstd: *const aclTensor, gamma: *const aclTensor,
        dx: *const aclTensor, dgamma: *const aclTensor,
    );
    /// LayerNorm with its mean and 1/std.
    fn aclnnLayerNorm(
        input: *const aclTensor, normalized_shape: *const aclIntArray, weight: *const aclTensor,
        bias: *const aclTensor, eps: f64, out: *mut aclTensor, mean: *mut aclTensor, rstd: *mut aclTensor,
    );
    /// Gradients of [`OpApi::aclnnLayerNorm`]; the mask says which of dx, dgamma, dbeta.
    fn aclnnLayerNormBackward(
        grad_out: *const aclTensor, input: *const aclTensor, normalized_shape: *const aclIntArray,
        mean: *const aclTensor, rstd: *const aclTensor, weight: *const aclTensor, bias: *const aclTensor,
        output_mask: *const aclBoolArray, grad_input: *mut aclTensor, grad_weight: *mut aclTensor,
        grad_bias: *mut aclTensor,
    );
    /// GELU; approximate 0 by erf, 1 by tanh.
    fn aclnnGeluV2(x: *const aclTensor, approximate: i64, y: *mut aclTensor);
    /// Its gradient; approximate "none" or "tanh".
    fn aclnnGeluBackwardV2(
        grad_output: *const aclTensor, self_: *const aclTensor, approximate: *mut c_char, grad_input: *mut aclTensor,
    );
    /// `out = self sigmoid(self)`.
    fn aclnnSilu(self_: *const aclTensor, out: *mut aclTensor);
    /// Its gradient.
    fn aclnnSiluBackward(grad_output: *const aclTensor, self_: *const aclTensor, grad_input: *mut aclTensor);
    /// `out = max(self, 0)`.
    fn aclnnRelu(self_: *const aclTensor, out: *mut aclTensor);
    /// `out = self > threshold ? grad : 0`.
    fn aclnnThresholdBackward(
        grad_output: *const aclTensor, self_: *const aclTensor, threshold: *const aclScalar, out: *mut aclTensor,
    );
    /// `silu(a) * b` of the halves a, b along `dim`.
    fn aclnnSwiGlu(x: *const aclTensor, dim: i64, out: *const aclTensor);
    /// Its gradient, laid out as x.
    fn aclnnSwiGluGrad(y_grad: *const aclTensor, x: *const aclTensor, dim: i64, out: *const aclTensor);
    /// Rows of the weight. Indices must be rows it has.
    fn aclnnEmbedding(weight: *const aclTensor, indices: *const aclTensor, out: *const aclTensor);
    /// Sums of gradient rows by index, float32. `padding_idx` of all ones: none.
    fn aclnnEmbeddingDenseBackward(
        grad: *const aclTensor, indices: *const aclTensor, num_weights: u64, padding_idx: u64,
        scale_grad_by_freq: bool, out: *const aclTensor,
    );
    /// Slices of `self` along `dim` by index.
    fn aclnnIndexSelect(self_: *const aclTensor, dim: i64, index: *const aclTensor, out: *mut aclTensor);
    /// `out[i][j] = self[i][index[i][j]]` for dim 1.
    fn aclnnGather(self_: *const aclTensor, dim: i64, index: *const aclTensor, out: *mut aclTensor);
    /// `out = self`, then `out[i][index[i][j]] += src[i][j]` for dim 1.
    fn aclnnScatterAdd(
        self_: *const aclTensor, dim: i64, index: *const aclTensor, src: *const aclTensor, out: *mut aclTensor,
    );
    /// Sorts along `dim`, with `I64` indices into it. `stable`: equals stay in their order, in both directions.
    fn aclnnSort(
        self_: *const aclTensor, stable: bool, dim: i64, descending: bool, values_out: *mut aclTensor,
        indices_out: *mut aclTensor,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_without_operators_lack_them_all() {
        let ops = OpApi::load(&[]);
        assert_eq!(ops.lacking(), OpApi::NAMES);
        assert_eq!(OpApi::NAMES.len(), 45);
    }
}
