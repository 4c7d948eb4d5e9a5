//! Writes a C++ file that compiles only if the vendor's nccl.h agrees with our constants, sizes, offsets, and with every
//! function's number and sizes of arguments. `cargo xtask cuda-check` runs it with headers from 2.14 to the newest.

use ferrotron_dynlib::{HeaderCheck, header_layout};
use ferrotron_nccl_sys::{CONSTANTS, NCCL_CONFIG_MAGIC, Nccl, OLDEST, ncclConfig_v21400, ncclUniqueId};

fn main() {
    // 2.14 knows bfloat16 only where CUDA's header for it was read before
    let mut check = HeaderCheck::of(&["cuda_bf16.h", "nccl.h"]);
    check.constants(CONSTANTS);
    check.claim("the oldest version", &format!("NCCL_VERSION_CODE >= {OLDEST}"));
    header_layout!(check, ncclUniqueId, internal as internal);
    // the struct of the oldest version is the beginning of every later one, which has another name
    check.line("typedef ncclConfig_t Config;");
    for (field, at) in [
        ("size", std::mem::offset_of!(ncclConfig_v21400, size)),
        ("magic", std::mem::offset_of!(ncclConfig_v21400, magic)),
        ("version", std::mem::offset_of!(ncclConfig_v21400, version)),
        ("blocking", std::mem::offset_of!(ncclConfig_v21400, blocking)),
    ] {
        check.claim(&format!("ncclConfig_t.{field}"), &format!("offsetof(Config, {field}) == {at}"));
    }
    check.line("#if NCCL_VERSION_CODE < 21700");
    header_layout!(check, ncclConfig_v21400);
    check.line("#endif");
    check.line("constexpr Config initial = NCCL_CONFIG_INITIALIZER;");
    check.claim("the magic number", &format!("initial.magic == {NCCL_CONFIG_MAGIC}u"));
    check.functions(Nccl::SIGNATURES);
    print!("{check}");
}
