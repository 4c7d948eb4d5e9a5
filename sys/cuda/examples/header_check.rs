//! Writes a C++ file that compiles only if the vendor's cuda.h agrees with our constants, sizes, offsets, and with every
//! function's number and sizes of arguments. `cargo xtask cuda-check` runs it.

use std::mem::{align_of, offset_of, size_of};

use ferrotron_cuda_sys::{CONSTANTS, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, Driver};

const PREAMBLE: &str = r#"#include <cstddef>
#include <initializer_list>
#include "cuda.h"
template <class R, class... A>
constexpr bool sizes(R (*)(A...), size_t result, std::initializer_list<size_t> want) {
  const size_t have[] = {sizeof(A)..., 0};
  size_t i = 0;
  for (size_t w : want)
    if (i >= sizeof...(A) || have[i++] != w) return false;
  return i == sizeof...(A) && sizeof(R) == result;
}"#;

fn claim(what: String, condition: String) {
    println!("static_assert({condition}, \"{what}\");");
}

fn main() {
    println!("{PREAMBLE}");
    for (name, value) in CONSTANTS {
        claim(name.to_string(), format!("(long long)({name}) == {value}LL"));
    }
    macro_rules! layout {
        ($ty:ident $(, $field:ident as $theirs:ident)*) => {
            claim(stringify!($ty).into(), format!(
                "sizeof({0}) == {1} && alignof({0}) == {2}", stringify!($ty), size_of::<$ty>(), align_of::<$ty>()));
            $(claim(concat!(stringify!($ty), ".", stringify!($theirs)).into(), format!(
                "offsetof({}, {}) == {}", stringify!($ty), stringify!($theirs), offset_of!($ty, $field)));)*
        };
    }
    layout!(CUmemLocation, type_ as type, id as id);
    layout!(CUmemAccessDesc, location as location, flags as flags);
    layout!(
        CUmemAllocationProp,
        type_ as type,
        requestedHandleTypes as requestedHandleTypes,
        location as location,
        win32HandleMetaData as win32HandleMetaData,
        allocFlags as allocFlags
    );
    for (name, arguments, result) in Driver::SIGNATURES {
        let list: Vec<String> = arguments.iter().map(usize::to_string).collect();
        claim(name.to_string(), format!("sizes(&{name}, {result}, {{{}}})", list.join(", ")));
    }
}
