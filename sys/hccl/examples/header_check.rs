//! Writes a C++ file that compiles only if the vendor's headers agree with our constants, sizes, offsets, and with
//! every function's number and sizes of arguments. `docs/ascend.md` tells how to run it.

use std::mem::{align_of, offset_of, size_of};

use ferrotron_acl_sys::{self as acl, Acl, aclrtMemLocation, aclrtPhysicalMemProp};
use ferrotron_hccl_sys::{self as hccl, CommConfig, Hccl, HcclRootInfo, HcclSendRecvItem};

const PREAMBLE: &str = r#"#include <cstddef>
#include <initializer_list>
#include "acl/acl.h"
#include "acl/acl_rt.h"
#include "hccl/hccl.h"
template <class T> struct bytes_of { static constexpr size_t value = sizeof(T); };
template <> struct bytes_of<void> { static constexpr size_t value = 0; };
template <class R, class... A>
constexpr bool sizes(R (*)(A...), size_t result, std::initializer_list<size_t> want) {
  const size_t have[] = {sizeof(A)..., 0};
  size_t i = 0;
  for (size_t w : want)
    if (i >= sizeof...(A) || have[i++] != w) return false;
  return i == sizeof...(A) && bytes_of<R>::value == result;
}"#;

fn claim(what: String, condition: String) {
    println!("static_assert({condition}, \"{what}\");");
}

fn main() {
    println!("{PREAMBLE}");
    for (name, value) in acl::CONSTANTS.iter().chain(hccl::CONSTANTS) {
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
    layout!(aclrtMemLocation, id as id, type_ as type);
    layout!(
        aclrtPhysicalMemProp,
        handleType as handleType,
        allocationType as allocationType,
        memAttr as memAttr,
        location as location,
        reserve as reserve
    );
    layout!(HcclRootInfo);
    layout!(
        HcclSendRecvItem,
        sendRecvType as sendRecvType,
        buf as buf,
        count as count,
        dataType as dataType,
        remoteRank as remoteRank
    );
    let offsets =
        [("hcclBufferSize", 24), ("hcclDeterministic", 28), ("hcclCommName", 32), ("hcclOpExpansionMode", 288)];
    for (field, at) in offsets {
        claim(format!("HcclCommConfig.{field}"), format!("offsetof(HcclCommConfig, {field}) == {at}"));
    }
    for version in [8, 10, 11] {
        let bytes = CommConfig::default().layout(version, 0).map_or(0, |l| l.bytes().len());
        claim(
            format!("HcclCommConfig version {version}"),
            format!("HCCL_COMM_CONFIG_VERSION != {version} || sizeof(HcclCommConfig) == {bytes}"),
        );
    }
    for (name, arguments, result) in Acl::SIGNATURES.iter().chain(Hccl::SIGNATURES) {
        let list: Vec<String> = arguments.iter().map(usize::to_string).collect();
        claim(name.to_string(), format!("sizes(&{name}, {result}, {{{}}})", list.join(", ")));
    }
}
