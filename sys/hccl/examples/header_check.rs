//! Writes a C++ file that compiles only if the vendor's headers agree with our constants, sizes, offsets, and with
//! every function's number and sizes of arguments. `docs/ascend.md` tells how to run it.

use ferrotron_acl_sys::{self as acl, Acl, aclrtMemLocation, aclrtPhysicalMemProp};
use ferrotron_dynlib::{HeaderCheck, header_layout};
use ferrotron_hccl_sys::{self as hccl, CommConfig, Hccl, HcclRootInfo, HcclSendRecvItem};

fn main() {
    let mut check = HeaderCheck::of(&["acl/acl.h", "acl/acl_rt.h", "hccl/hccl.h"]);
    check.constants(acl::CONSTANTS);
    check.constants(hccl::CONSTANTS);
    header_layout!(check, aclrtMemLocation, id as id, type_ as type);
    header_layout!(
        check,
        aclrtPhysicalMemProp,
        handleType as handleType,
        allocationType as allocationType,
        memAttr as memAttr,
        location as location,
        reserve as reserve,
    );
    header_layout!(check, HcclRootInfo);
    header_layout!(
        check,
        HcclSendRecvItem,
        sendRecvType as sendRecvType,
        buf as buf,
        count as count,
        dataType as dataType,
        remoteRank as remoteRank,
    );
    let offsets =
        [("hcclBufferSize", 24), ("hcclDeterministic", 28), ("hcclCommName", 32), ("hcclOpExpansionMode", 288)];
    for (field, at) in offsets {
        check.claim(&format!("HcclCommConfig.{field}"), &format!("offsetof(HcclCommConfig, {field}) == {at}"));
    }
    for version in [8, 10, 11] {
        let bytes = CommConfig::default().layout(version, 0).map_or(0, |l| l.bytes().len());
        check.claim(
            &format!("HcclCommConfig version {version}"),
            &format!("HCCL_COMM_CONFIG_VERSION != {version} || sizeof(HcclCommConfig) == {bytes}"),
        );
    }
    check.functions(Acl::SIGNATURES);
    check.functions(Hccl::SIGNATURES);
    print!("{check}");
}
