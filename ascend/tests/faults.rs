//! Errors of the device arrive in words, with the operators launched last, and end the stream that they belong to.

mod common;

use std::sync::Arc;

use ferrotron_device::{DType, Device, Error, Pool, Stream, StreamRole, host, pool::persistent};

struct Rig {
    device: Arc<dyn Device>,
    s: Stream,
    pool: Arc<Pool>,
}

fn rig(home: &std::path::Path, ordinal: usize) -> Rig {
    let device: Arc<dyn Device> = Arc::new(common::open(home, ordinal, None));
    let s = device.stream(StreamRole::Compute).expect("a stream");
    let pool = Pool::new(device.clone(), s.clone(), 8 << 20, true).expect("a pool");
    Rig { device, s, pool }
}

#[test]
fn a_kernel_that_fails_is_told_with_what_was_launched() {
    let home = common::home("kernel");
    let Rig { device, s, pool } = rig(&home, 2);
    let control = common::control();
    for (code, words) in [
        (507015, "507015 AICORE_EXCEPTION: a kernel stopped on an error"),
        (507035, "507035 VECTOR_CORE_EXCEPTION: a kernel stopped on an error"),
        (507053, "507053 DEVICE_MEM_ERROR: a kernel touched memory that is not there"),
    ] {
        let t = device.stream(StreamRole::Compute).unwrap();
        t.wait(&s.record());
        let (x, mut y) = (pool.alloc(DType::F32, [4, 8]).unwrap(), pool.alloc(DType::F32, [4, 8]).unwrap());
        control.faults(2, &format!("task:aclnnAdd#1={code}"));
        device.ops().add(&t, &x, &x, &mut y).unwrap();
        let e = t.synchronize().unwrap_err().to_string();
        assert!(e.starts_with("npu:2: aclrtSynchronizeStream: ") && e.contains(words), "{e}");
        assert!(e.contains("the runtime says: EZ9999: Inner Error") && e.contains("aclnnAdd was made to fail"), "{e}");
        assert!(e.contains("oldest first:\n") && e.ends_with("aclnnAdd in add([32]:0, [32]:0, [32]:0)"), "{e}");
        // every later call reports the first error
        assert_eq!(device.ops().fill(&t, 1.0, &mut y).unwrap_err().to_string(), e);
        // x and y go back to the pool, whose stream must not run ahead of what t had begun
        drop(t);
    }
    s.synchronize().unwrap();
    common::remove(&home);
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
    let option = |d| unsafe { (common::control().ferrotronMockOption)(d, 0) };
    let options = ferrotron_ascend::Options { deterministic: true, ..Default::default() };
    let device = ferrotron_ascend::AscendDevice::open_with(cann, 1, options).unwrap();
    assert_eq!((device.deterministic(), option(1), option(0)), (true, 1, -1));
    assert!(device.describe().iter().any(|l| l.contains("deterministic operators on")));
    common::remove(&home);
}

#[test]
fn out_of_memory_is_told_as_such() {
    let home = common::home("memory");
    let Rig { device, s, .. } = rig(&home, 3);
    common::control().faults(3, "aclrtMallocPhysical#1=207001");
    match persistent(&*device, &s, "parameters", DType::F32, 1000) {
        Err(Error::OutOfMemory { what: "parameters", wanted: 2_097_152, limit, .. }) => assert_eq!(limit, 4 << 30),
        other => panic!("{other:?}"),
    }
    // and when it really is too much
    match persistent(&*device, &s, "parameters", DType::F32, 2 << 30) {
        Err(Error::OutOfMemory { wanted, .. }) => assert_eq!(wanted, 8 << 30),
        other => panic!("{other:?}"),
    }
    persistent(&*device, &s, "parameters", DType::F32, 1000).unwrap();
    // who comes to a device that is in use is told
    let warned =
        || common::open(&home, 3, None).describe().iter().any(|l| l.contains("were in use before this program"));
    assert!(!warned());
    let held = persistent(&*device, &s, "parameters", DType::F32, 256 << 20).unwrap();
    assert!(warned());
    drop(held);
    common::remove(&home);
}

#[test]
fn host_jobs_run_in_order_and_their_errors_are_the_streams() {
    let home = common::home("host");
    let Rig { device, s, pool } = rig(&home, 4);
    let mut x = pool.alloc(DType::F32, [3]).unwrap();
    host::write_f32(&*device, &s, &[1.0, 2.0, 3.0], &mut x).unwrap();
    let at = x.ptr().0;
    s.enqueue(Box::new(move || {
        // SAFETY: the mock's device memory is host memory, and the job runs in stream order.
        unsafe { *(at as *mut f32) += 10.0 };
        Ok(())
    }))
    .unwrap();
    assert_eq!(host::read_f32(&*device, &s, &x).unwrap(), [11.0, 2.0, 3.0]);
    s.enqueue(Box::new(|| Err(Error::Data("no such token".into())))).unwrap();
    assert_eq!(s.synchronize().unwrap_err().to_string(), "no such token");
    assert_eq!(device.ops().fill(&s, 0.0, &mut x).unwrap_err().to_string(), "no such token");
    let t = device.stream(StreamRole::Copy).unwrap();
    t.enqueue(Box::new(|| panic!("a mistake"))).unwrap();
    assert!(t.synchronize().unwrap_err().to_string().contains("a host job panicked"));
    common::remove(&home);
}

#[test]
fn many_threads_use_one_device() {
    let home = common::home("threads");
    let Rig { device, .. } = rig(&home, 5);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let s = device.stream(StreamRole::Compute).unwrap();
                let pool = Pool::new(device.clone(), s.clone(), 8 << 20, true).unwrap();
                for _ in 0..20 {
                    let (mut a, mut b) = (pool.alloc(DType::F32, [8]).unwrap(), pool.alloc(DType::F32, [8]).unwrap());
                    device.ops().fill(&s, i as f32, &mut a).unwrap();
                    device.ops().add(&s, &a, &a, &mut b).unwrap();
                    assert_eq!(host::read_f32(&**device, &s, &b).unwrap(), [2.0 * i as f32; 8]);
                }
            });
        }
    });
    assert_eq!(common::control().report(5), "");
    common::remove(&home);
}
