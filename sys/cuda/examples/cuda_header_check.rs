//! Writes a C++ file that compiles only if one of the vendor's headers agrees with our constants, sizes, offsets, and with
//! every function's number and sizes of arguments: `cuda_header_check cuda.h|cublasLt.h|nvrtc.h`. `cargo xtask cuda-check` runs it.

use std::process::ExitCode;

use ferrotron_cuda_sys::*;
use ferrotron_dynlib::{HeaderCheck, header_layout};

fn driver() -> HeaderCheck {
    let mut check = HeaderCheck::of(&["cuda.h"]);
    check.constants(CONSTANTS);
    for (name, value) in code::NAMES {
        check.constants(&[(&name.to_string_lossy(), i64::from(*value))]);
    }
    header_layout!(check, CUmemLocation, type_ as type, id as id);
    header_layout!(check, CUmemAccessDesc, location as location, flags as flags);
    header_layout!(
        check,
        CUmemAllocationProp,
        type_ as type,
        requestedHandleTypes as requestedHandleTypes,
        location as location,
        win32HandleMetaData as win32HandleMetaData,
        allocFlags as allocFlags,
    );
    header_layout!(
        check,
        CUgraphExecUpdateResultInfo,
        result as result,
        errorNode as errorNode,
        errorFromNode as errorFromNode,
    );
    check.functions(Driver::SIGNATURES);
    check
}

fn cublas_lt() -> HeaderCheck {
    let mut check = HeaderCheck::of(&["cublasLt.h"]);
    check.constants(BLAS_CONSTANTS);
    header_layout!(check, cublasLtMatmulAlgo_t, data as data);
    header_layout!(
        check,
        cublasLtMatmulHeuristicResult_t,
        algo as algo,
        workspaceSize as workspaceSize,
        state as state,
        wavesCount as wavesCount,
        reserved as reserved,
    );
    check.functions(CublasLt::SIGNATURES);
    check
}

fn nvrtc() -> HeaderCheck {
    let mut check = HeaderCheck::of(&["nvrtc.h"]);
    check.constants(NVRTC_CODES);
    check.functions(Nvrtc::SIGNATURES);
    check
}

fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        Some("cuda.h") => driver(),
        Some("cublasLt.h") => cublas_lt(),
        Some("nvrtc.h") => nvrtc(),
        _ => {
            eprintln!("cuda_header_check cuda.h|cublasLt.h|nvrtc.h");
            return ExitCode::FAILURE;
        }
    };
    print!("{check}");
    ExitCode::SUCCESS
}
