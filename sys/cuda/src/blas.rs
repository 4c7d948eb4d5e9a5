//! Matrix products: libcublasLt. Matrices are column-major.

use std::ffi::{c_char, c_int, c_void};

use crate::types::CUstream;

/// Error code; 0 is success.
pub type cublasStatus_t = c_int;
/// The library's state.
pub type cublasLtHandle_t = *mut c_void;
/// A kind of product.
pub type cublasLtMatmulDesc_t = *mut c_void;
/// A matrix's shape and type.
pub type cublasLtMatrixLayout_t = *mut c_void;
/// What an algorithm may need.
pub type cublasLtMatmulPreference_t = *mut c_void;
/// An element type.
pub type cudaDataType_t = c_int;

ferrotron_dynlib::constants! { BLAS_CONSTANTS:
    /// Float.
    CUDA_R_32F: cudaDataType_t = 0;
    /// Half.
    CUDA_R_16F: cudaDataType_t = 2;
    /// bfloat16.
    CUDA_R_16BF: cudaDataType_t = 14;
    /// Products and sums in float; no TF32.
    CUBLAS_COMPUTE_32F: c_int = 68;
    /// As stored.
    CUBLAS_OP_N: c_int = 0;
    /// Transposed.
    CUBLAS_OP_T: c_int = 1;
    /// Operation on A.
    CUBLASLT_MATMUL_DESC_TRANSA: c_int = 3;
    /// Operation on B.
    CUBLASLT_MATMUL_DESC_TRANSB: c_int = 4;
    /// What follows the product.
    CUBLASLT_MATMUL_DESC_EPILOGUE: c_int = 7;
    /// A vector as long as a column of D, of D's type.
    CUBLASLT_MATMUL_DESC_BIAS_POINTER: c_int = 8;
    /// A matrix of D's shape and type, which GELU was or will be applied to.
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: c_int = 11;
    /// Elements from one of its columns to the next, a multiple of 8.
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: c_int = 12;
    /// Nothing follows.
    CUBLASLT_EPILOGUE_DEFAULT: u32 = 1;
    /// The bias is added.
    CUBLASLT_EPILOGUE_BIAS: u32 = 4;
    /// GELU by tanh; its argument is written to the other matrix.
    CUBLASLT_EPILOGUE_GELU_AUX: u32 = 160;
    /// The bias is added before that.
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS: u32 = 164;
    /// The product is multiplied by GELU's slope at the other matrix.
    CUBLASLT_EPILOGUE_DGELU: u32 = 192;
    /// Most bytes of workspace.
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: c_int = 1;
    /// Ways to add up parts of a sum over K: a mask.
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: c_int = 3;
    /// Least alignment of A in bytes; without a word the library takes 256 for granted.
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: c_int = 5;
    /// Of B.
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: c_int = 6;
    /// Of C.
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: c_int = 7;
    /// Of D.
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: c_int = 8;
    /// Parts are added in float in workspace: not in place, where the order is that of arrival.
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: u32 = 2;
}

/// An algorithm with its parameters: opaque.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct cublasLtMatmulAlgo_t {
    /// Opaque.
    pub data: [u64; 8],
}

/// A proposal.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct cublasLtMatmulHeuristicResult_t {
    /// The algorithm.
    pub algo: cublasLtMatmulAlgo_t,
    /// Workspace that it needs, in bytes.
    pub workspaceSize: usize,
    /// 0 when the rest holds.
    pub state: cublasStatus_t,
    /// Occupancy.
    pub wavesCount: f32,
    /// Nothing.
    pub reserved: [c_int; 4],
}

ferrotron_dynlib::table! {
    /// The functions of cublasLt.
    pub struct CublasLt {
        required {
            /// 10000 major + 100 minor + patch.
            fn cublasLtGetVersion() -> usize;
            /// The library's state, for the current context. Threads may share it.
            fn cublasLtCreate(handle: *mut cublasLtHandle_t) -> cublasStatus_t;
            /// Ends it.
            fn cublasLtDestroy(handle: cublasLtHandle_t) -> cublasStatus_t;
            /// A matrix's shape.
            fn cublasLtMatrixLayoutCreate(
                layout: *mut cublasLtMatrixLayout_t, dtype: cudaDataType_t, rows: u64, cols: u64, ld: i64,
            ) -> cublasStatus_t;
            /// Ends it.
            fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) -> cublasStatus_t;
            /// A kind of product.
            fn cublasLtMatmulDescCreate(
                desc: *mut cublasLtMatmulDesc_t, compute: c_int, scale: cudaDataType_t,
            ) -> cublasStatus_t;
            /// Ends it.
            fn cublasLtMatmulDescDestroy(desc: cublasLtMatmulDesc_t) -> cublasStatus_t;
            /// Sets one of its attributes.
            fn cublasLtMatmulDescSetAttribute(
                desc: cublasLtMatmulDesc_t, attribute: c_int, value: *const c_void, bytes: usize,
            ) -> cublasStatus_t;
            /// What an algorithm may need.
            fn cublasLtMatmulPreferenceCreate(preference: *mut cublasLtMatmulPreference_t) -> cublasStatus_t;
            /// Ends it.
            fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t) -> cublasStatus_t;
            /// Sets one of its attributes.
            fn cublasLtMatmulPreferenceSetAttribute(
                preference: cublasLtMatmulPreference_t, attribute: c_int, value: *const c_void, bytes: usize,
            ) -> cublasStatus_t;
            /// Proposes algorithms, the best first.
            fn cublasLtMatmulAlgoGetHeuristic(
                handle: cublasLtHandle_t, desc: cublasLtMatmulDesc_t, a: cublasLtMatrixLayout_t,
                b: cublasLtMatrixLayout_t, c: cublasLtMatrixLayout_t, d: cublasLtMatrixLayout_t,
                preference: cublasLtMatmulPreference_t, wanted: c_int, results: *mut cublasLtMatmulHeuristicResult_t,
                found: *mut c_int,
            ) -> cublasStatus_t;
            /// `D = alpha op(A) op(B) + beta C`, and what follows, in stream order. `alpha` and `beta` are host floats.
            fn cublasLtMatmul(
                handle: cublasLtHandle_t, desc: cublasLtMatmulDesc_t, alpha: *const c_void, a: *const c_void,
                a_layout: cublasLtMatrixLayout_t, b: *const c_void, b_layout: cublasLtMatrixLayout_t, beta: *const c_void,
                c: *const c_void, c_layout: cublasLtMatrixLayout_t, d: *mut c_void, d_layout: cublasLtMatrixLayout_t,
                algo: *const cublasLtMatmulAlgo_t, workspace: *mut c_void, workspace_bytes: usize, stream: CUstream,
            ) -> cublasStatus_t;
        }
        optional {
            /// A status in words.
            fn cublasLtGetStatusString(status: cublasStatus_t) -> *const c_char;
        }
    }
}
