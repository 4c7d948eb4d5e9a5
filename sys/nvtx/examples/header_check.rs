//! Writes a C++ file that compiles only if the vendor's NVTX headers and cudaProfiler.h agree with our constants, structs and
//! functions. `cargo xtask cuda-check` runs it.

use std::mem::{align_of, offset_of, size_of};

use ferrotron_cuda_sys::Profiler;
use ferrotron_nvtx_sys::{CONSTANTS, NvtxExportTableCallbacks, NvtxExportTableVersionInfo, ToolsExt};

const PREAMBLE: &str = r#"#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include "cudaProfiler.h"
#include "nvtx3/nvToolsExt.h"
template <class T> struct bytes_of { static constexpr size_t value = sizeof(T); };
template <> struct bytes_of<void> { static constexpr size_t value = 0; };
template <class R, class... A>
constexpr bool sizes(R (*)(A...), size_t result, std::initializer_list<size_t> want) {
  const size_t have[] = {sizeof(A)..., 0};
  size_t i = 0;
  for (size_t w : want)
    if (i >= sizeof...(A) || have[i++] != w) return false;
  return i == sizeof...(A) && bytes_of<R>::value == result;
}
template <class T, class U> constexpr bool same = std::is_same<T, U>::value;"#;

fn claim(what: &str, condition: String) {
    println!("static_assert({condition}, \"{what}\");");
}

fn main() {
    println!("{PREAMBLE}");
    for (name, value) in CONSTANTS {
        claim(name, format!("(long long)({name}) == {value}LL"));
    }
    macro_rules! layout {
        ($ty:ident, $($field:ident),*) => {
            claim(stringify!($ty), format!(
                "sizeof({0}) == {1} && alignof({0}) == {2}", stringify!($ty), size_of::<$ty>(), align_of::<$ty>()));
            $(claim(concat!(stringify!($ty), ".", stringify!($field)), format!(
                "offsetof({}, {}) == {}", stringify!($ty), stringify!($field), offset_of!($ty, $field)));)*
        };
    }
    layout!(NvtxExportTableCallbacks, struct_size, GetModuleFunctionTable);
    layout!(NvtxExportTableVersionInfo, struct_size, version, reserved0, SetInjectionNvtxVersion);
    for (name, arguments, result) in ToolsExt::SIGNATURES.iter().chain(Profiler::SIGNATURES) {
        let list: Vec<String> = arguments.iter().map(usize::to_string).collect();
        claim(name, format!("sizes(&{name}, {result}, {{{}}})", list.join(", ")));
    }
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
        claim(name, format!("same<{theirs}, {ours}>"));
    }
}
