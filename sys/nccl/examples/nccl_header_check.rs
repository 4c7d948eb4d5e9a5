//! Writes a C++ file that compiles only if the vendor's nccl.h agrees with our constants, sizes, offsets, and with every
//! function's number and sizes of arguments. `cargo xtask cuda-check` runs it with headers from 2.14 to the newest.

use std::ffi::c_int;

use ferrotron_dynlib::{HeaderCheck, header_layout};
use ferrotron_nccl_sys::*;

/// Functions that came after the oldest version.
const LATER: [(&str, c_int); 1] = [("ncclCommSplit", FIRST_WITH_SPLIT)];

/// The fields of a struct of ours, where they stand in the header's `ncclConfig_t`.
macro_rules! config {
    ($check:expr, $ty:ident: $($field:ident)*) => {$(
        let (field, at) = (stringify!($field), std::mem::offset_of!($ty, $field));
        $check.claim(&format!("{}.{field}", stringify!($ty)), &format!("offsetof(ncclConfig_t, {field}) == {at}"));
    )*};
}

fn main() {
    // 2.14 knows bfloat16 only where CUDA's header for it was read before
    let mut check = HeaderCheck::of(&["cuda_bf16.h", "nccl.h"]);
    check.constants(CONSTANTS);
    check.claim("the oldest version", &format!("NCCL_VERSION_CODE >= {OLDEST}"));
    header_layout!(check, ncclUniqueId, internal as internal);

    // each struct is the beginning of every later one; the library goes by size and version
    config!(check, ncclConfig_v21400: size magic version blocking);
    check.line("#if NCCL_VERSION_CODE < 21700");
    header_layout!(check, ncclConfig_v21400);
    check.line("#endif");
    check.line(&format!("#if NCCL_VERSION_CODE >= {FIRST_WITH_SPLIT}"));
    config!(check, ncclConfig_v21800:
        size magic version blocking cgaClusterSize minCTAs maxCTAs netName splitShare);
    check.constants(&[
        ("NCCL_CONFIG_UNDEF_INT", NCCL_CONFIG_UNDEF_INT.into()),
        ("NCCL_SPLIT_NOCOLOR", NCCL_SPLIT_NOCOLOR.into()),
    ]);
    check.line("#endif");
    check.line(&format!("#if NCCL_VERSION_CODE >= {FIRST_WITH_SPLIT} && NCCL_VERSION_CODE < 22500"));
    let bytes = size_of::<ncclConfig_v21800>();
    check.claim("ncclConfig_v21800", &format!("sizeof(ncclConfig_t) == {bytes}"));
    check.line("#endif");
    check.line("constexpr ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;");
    check.claim("the magic number", &format!("initial.magic == {NCCL_CONFIG_MAGIC}u"));

    for function in Nccl::SIGNATURES {
        let from = LATER.iter().find(|(name, _)| *name == function.0).map_or(OLDEST, |(_, version)| *version);
        check.line(&format!("#if NCCL_VERSION_CODE >= {from}"));
        check.functions(&[*function]);
        check.line("#endif");
    }
    print!("{check}");
}
