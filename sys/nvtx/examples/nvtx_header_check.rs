//! Writes a C++ file that compiles only if the vendor's NVTX headers and cudaProfiler.h agree with our constants, structs and
//! functions. `cargo xtask cuda-check` runs it.

use ferrotron_cuda_sys::Profiler;
use ferrotron_dynlib::{HeaderCheck, header_layout};
use ferrotron_nvtx_sys::{CONSTANTS, NvtxExportTableCallbacks, NvtxExportTableVersionInfo, ToolsExt};

fn main() {
    let mut check = HeaderCheck::of(&["cudaProfiler.h", "nvtx3/nvToolsExt.h"]);
    check.constants(CONSTANTS);
    header_layout!(
        check,
        NvtxExportTableCallbacks,
        struct_size as struct_size,
        GetModuleFunctionTable as GetModuleFunctionTable,
    );
    header_layout!(
        check,
        NvtxExportTableVersionInfo,
        struct_size as struct_size,
        version as version,
        reserved0 as reserved0,
        SetInjectionNvtxVersion as SetInjectionNvtxVersion,
    );
    check.functions(ToolsExt::SIGNATURES);
    check.functions(Profiler::SIGNATURES);
    check.line("#include <type_traits>");
    // what tools and we call through pointers, by type
    for (name, theirs, ours) in [
        ("a slot", "NvtxFunctionTable", "void (***)(void)"),
        ("tables", "NvtxGetExportTableFunc_t", "const void* (*)(uint32_t)"),
        ("the entry", "NvtxInitializeInjectionNvtxFunc_t", "int (*)(NvtxGetExportTableFunc_t)"),
        ("push", "nvtxRangePushA_impl_fntype", "int (*)(const char*)"),
        ("pop", "nvtxRangePop_impl_fntype", "int (*)(void)"),
        ("names", "nvtxNameOsThreadA_impl_fntype", "void (*)(uint32_t, const char*)"),
        (
            "slots of a module",
            "decltype(NvtxExportTableCallbacks::GetModuleFunctionTable)",
            "int (*)(NvtxCallbackModule, NvtxFunctionTable*, unsigned*)",
        ),
        ("an enum is an int", "std::underlying_type<NvtxCallbackModule>::type", "unsigned"),
    ] {
        check.claim(name, &format!("std::is_same<{theirs}, {ours}>::value"));
    }
    print!("{check}");
}
