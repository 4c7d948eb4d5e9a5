//! Errors of the device arrive in words, with the operators launched last, and end the stream that they belong to.

#![allow(clippy::unwrap_used)] // a test

mod common;

use std::sync::Arc;

use ferrotron_device::pool::persistent;
use ferrotron_device::{DType, Device, Pool, StreamRole};
use ferrotron_tests::mock::faults;

const ADD: &str = "aclnnAdd in add([32]:0, [32]:0, [32]:0)";

#[test]
fn a_kernel_that_fails_is_told_with_what_was_launched() {
    let told =
        ["npu:2: aclrtSynchronizeStream: ", "the runtime says: EZ9999: Inner Error", "aclnnAdd was made to fail"];
    let [start, inner, made] = told;
    let cases: [(i32, &[&str]); 3] = [
        (507015, &[start, inner, made, "507015 AICORE_EXCEPTION: a kernel stopped on an error"]),
        (507035, &[start, inner, made, "507035 VECTOR_CORE_EXCEPTION: a kernel stopped on an error"]),
        (507053, &[start, inner, made, "507053 DEVICE_MEM_ERROR: a kernel touched memory that is not there"]),
    ];
    common::with("kernel", |npu| faults::a_kernel_fails(npu, 2, "aclnnAdd", &cases, ADD));
}

#[test]
fn a_kernel_that_fails_is_told_at_a_stream_that_waits_for_it() {
    let fill = "aclnnInplaceFillScalar in fill([32]:0)";
    common::with("waits", |npu| {
        faults::a_kernel_fails_and_another_stream_is_asked(npu, 0, "task:aclnnAdd#1=507015", [ADD, fill]);
    });
}

#[test]
fn with_waiting_after_every_operator_the_one_that_failed_is_the_last() {
    let home = common::home("blocking");
    let cann = Arc::new(ferrotron_ascend::Cann::load(&ferrotron_ascend::Environment::only(&home)).unwrap());
    let control = common::control();
    // 100 launches, the 50th fails
    let run = |ordinal: usize, blocking: bool| {
        let options = ferrotron_ascend::Options { blocking, ..Default::default() };
        let device = ferrotron_ascend::AscendDevice::open_with(cann.clone(), ordinal, options).unwrap();
        let device: Arc<dyn Device> = Arc::new(device);
        let s = device.stream(StreamRole::Compute).unwrap();
        let pool = Pool::new(device.clone(), s.clone(), 8 << 20, true).unwrap();
        let mut y = pool.alloc(DType::F32, [8]).unwrap();
        control.faults(ordinal as u32, "task:aclnnInplaceFillScalar#50=507015");
        let failed = (0..100).find_map(|i| device.ops().fill(&s, i as f32, &mut y).err());
        let e = failed.or_else(|| s.synchronize().err()).unwrap().to_string();
        (e.lines().count(), e.contains("ASCEND_LAUNCH_BLOCKING=1"), e)
    };
    let (lines, hinted, e) = run(6, false);
    assert!(hinted && e.contains("launches since this stream was last known to be idle") && lines > 20, "{e}");
    let (_, hinted, e) = run(7, true);
    assert!(!hinted && e.ends_with("aclnnInplaceFillScalar in fill([8]:0)"), "{e}");
    common::remove(&home);
}

#[test]
fn determinism_is_asked_for_on_the_context_of_the_device() {
    let home = common::home("determinism");
    let cann = Arc::new(ferrotron_ascend::Cann::load(&ferrotron_ascend::Environment::only(&home)).unwrap());
    // SAFETY: two numbers.
    let option = |d| unsafe { (common::control().own.ferrotronMockOption)(d, 0) };
    let options = ferrotron_ascend::Options { deterministic: true, ..Default::default() };
    let device = ferrotron_ascend::AscendDevice::open_with(cann, 1, options).unwrap();
    assert_eq!((device.deterministic(), option(1), option(0)), (true, 1, -1));
    assert!(device.describe().iter().any(|l| l.contains("deterministic operators on")));
    common::remove(&home);
}

#[test]
fn out_of_memory_is_told_as_such() {
    common::with("memory", |npu| {
        let faults::Rig { device, s, .. } = faults::out_of_memory(npu, 3, "aclrtMallocPhysical#1=207001");
        // who comes to a device that is in use is told
        let says = |l: &String| l.contains("were in use before this program");
        let warned = || common::open(&npu.0, 3, None).describe().iter().any(says);
        assert!(!warned());
        let held = persistent(&*device, &s, "parameters", DType::F32, 256 << 20).unwrap();
        assert!(warned());
        drop(held);
    });
}

#[test]
fn host_jobs_run_in_order_and_their_errors_are_the_streams() {
    common::with("host", |npu| faults::host_jobs(npu, 4));
}

#[test]
fn many_threads_use_one_device() {
    common::with("threads", |npu| faults::many_threads(npu, 5));
}
