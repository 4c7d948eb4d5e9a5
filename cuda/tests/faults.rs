//! Errors of the device arrive in words, with the kernels launched last, and end the stream that they belong to.

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
    if !common::kernels() {
        return;
    }
    let home = common::home("kernel");
    let Rig { device, s, pool } = rig(&home, 2);
    let control = common::control();
    for (code, words) in [
        (700, "700 CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory that is not its own"),
        (214, "214 CUDA_ERROR_ECC_UNCORRECTABLE: the GPU's memory or links have an error: drain the host"),
        (719, "719 CUDA_ERROR_LAUNCH_FAILED: a kernel failed: look for an Xid in dmesg"),
    ] {
        let t = device.stream(StreamRole::Compute).unwrap();
        t.wait(&s.record());
        let (x, mut y) = (pool.alloc(DType::F32, [4, 8]).unwrap(), pool.alloc(DType::F32, [4, 8]).unwrap());
        control.faults(2, &format!("task:add#1={code}"));
        device.ops().add(&t, &x, &x, &mut y).unwrap();
        let e = t.synchronize().unwrap_err().to_string();
        assert!(e.starts_with("cuda:2: cuStreamSynchronize: ") && e.contains(words), "{e}");
        assert!(e.contains("oldest first:\n") && e.ends_with("add<1x1>(F32[32], F32[32], F32[32])"), "{e}");
        // every later call reports the first error
        assert_eq!(device.ops().fill(&t, 1.0, &mut y).unwrap_err().to_string(), e);
        // x and y go back to the pool, whose stream must not run ahead of what t had begun
        drop(t);
    }
    s.synchronize().unwrap();
    common::remove(&home);
}

#[test]
fn out_of_memory_is_told_as_such() {
    if !common::kernels() {
        return;
    }
    let home = common::home("memory");
    let Rig { device, s, .. } = rig(&home, 3);
    common::control().faults(3, "cuMemCreate#1=2");
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
    common::remove(&home);
}

#[test]
fn a_matrix_product_that_is_refused_is_told_in_words() {
    if !common::kernels() {
        return;
    }
    let home = common::home("product");
    let Rig { device, s, pool } = rig(&home, 4);
    let (a, mut c) = (pool.alloc(DType::BF16, [16, 16]).unwrap(), pool.alloc(DType::BF16, [16, 16]).unwrap());
    common::control().faults(4, "cublasLtMatmul#1=14");
    let e = device.ops().gemm(&s, ferrotron_device::ops::Gemm::NN, &a, &a, None, &mut c).unwrap_err().to_string();
    assert!(e.starts_with("cuda:4: cublasLtMatmul: status 14 ") && e.contains("product Shape { m: 16, n: 16"), "{e}");
    common::remove(&home);
}

#[test]
fn host_jobs_run_in_order_and_their_errors_are_the_streams() {
    if !common::kernels() {
        return;
    }
    let home = common::home("host");
    let Rig { device, s, pool } = rig(&home, 5);
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
    if !common::kernels() {
        return;
    }
    let home = common::home("threads");
    let Rig { device, .. } = rig(&home, 6);
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
    assert_eq!(common::control().report(6), "");
    common::remove(&home);
}
