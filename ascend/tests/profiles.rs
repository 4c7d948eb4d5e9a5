//! Releases of CANN differ in what they have: without any optional function of the runtime the device works, and an op
//! whose operator is missing says which.

mod common;

use std::sync::Arc;

use ferrotron_ascend::{AscendDevice, Cann, Environment};
use ferrotron_conformance::{run_cases, suite};
use ferrotron_device::ops::Activation;
use ferrotron_device::{DType, Device, Error, Pool, StreamRole};

#[test]
fn without_optional_functions_memory_is_taken_at_once_and_ops_conform() {
    let home = common::home("old");
    let mut cann = Cann::load(&Environment::only(&home)).unwrap();
    let acl = &mut cann.acl;
    acl.aclrtReserveMemAddress = None;
    acl.aclrtReleaseMemAddress = None;
    acl.aclrtMallocPhysical = None;
    acl.aclrtFreePhysical = None;
    acl.aclrtMapMem = None;
    acl.aclrtUnmapMem = None;
    acl.aclrtMemGetAllocationGranularity = None;
    acl.aclrtLaunchHostFunc = None;
    acl.aclrtSetStreamFailureMode = None;
    acl.aclrtSynchronizeStreamWithTimeout = None;
    let device = AscendDevice::open(Arc::new(cann), 0, None).unwrap();
    let device: Arc<dyn Device> = Arc::new(device);
    let mut cases = suite();
    cases.retain(|c| ["rms_norm", "column_sum"].contains(&c.op) || (c.op == "dropout" && c.name.contains("T=3 C=7")));
    run_cases(&device, &cases).unwrap().assert_passed();
    let s = device.stream(StreamRole::Compute).unwrap();
    match s.enqueue(Box::new(|| Ok(()))) {
        Err(Error::Unsupported { op: "host job", why, .. }) => assert!(why.contains("no aclrtLaunchHostFunc"), "{why}"),
        other => panic!("{other:?}"),
    }
    // all of the pool is taken when it is made: too much is said then
    match Pool::new(device.clone(), s, 5 << 30, false).map(|_| ()) {
        Err(Error::OutOfMemory { what: "the activation pool", limit, .. }) => assert_eq!(limit, 4 << 30),
        other => panic!("{other:?}"),
    }
    drop(device);
    let control = common::control();
    assert_eq!((control.report(0).as_str(), control.memory(0)), ("", 0));
    common::remove(&home);
}

#[test]
fn an_op_whose_operator_is_missing_names_it_and_others_go_on() {
    let home = common::home("missing-op");
    let mut cann = Cann::load(&Environment::only(&home)).unwrap();
    cann.ops.aclnnSwiGlu = None;
    let device = AscendDevice::open(Arc::new(cann), 1, None).unwrap();
    assert_eq!(device.lacking(), ["aclnnSwiGlu"]);
    let device: Arc<dyn Device> = Arc::new(device);
    let s = device.stream(StreamRole::Compute).unwrap();
    let pool = Pool::new(device.clone(), s.clone(), 8 << 20, true).unwrap();
    let (mut x, mut y) = (pool.alloc(DType::BF16, [2, 8]).unwrap(), pool.alloc(DType::BF16, [2, 4]).unwrap());
    device.ops().fill(&s, 1.0, &mut x).unwrap();
    match device.ops().glu(&s, Activation::Silu, &x, &mut y) {
        Err(Error::Unsupported { op: "glu", device, why }) => {
            assert_eq!((device.as_str(), why.contains("has no aclnnSwiGlu")), ("npu:1", true), "{why}");
        }
        other => panic!("{other:?}"),
    }
    device.ops().glu(&s, Activation::Gelu, &x, &mut y).unwrap();
    s.synchronize().unwrap();
    common::remove(&home);
}
