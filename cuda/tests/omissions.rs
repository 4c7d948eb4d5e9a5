//! Whatever the device leaves out of what the driver asks for is noticed: for each kind of omission a short workload fails,
//! gives a wrong number, or is reported by the mock. Without omissions it does none of the three.

mod common;

use std::sync::Arc;

use ferrotron_cuda::{CudaDevice, Omit};
use ferrotron_device::ops::{AttentionArgs, AttentionDims, Gemm};
use ferrotron_device::pool::persistent;
use ferrotron_device::{DType, Device, Ops, Pool, Result, StreamRole, host};

const ALL: [Omit; 17] = [
    Omit::Context,
    Omit::EventWait,
    Omit::KernelStream,
    Omit::ProductStream,
    Omit::CopyStream,
    Omit::StagingWait,
    Omit::Pinned,
    Omit::DownloadWait,
    Omit::WaitBeforeUnmap,
    Omit::WaitBeforeFree,
    Omit::Access,
    Omit::Alignment,
    Omit::Workspace,
    Omit::SharedMemory,
    Omit::GraphBefore,
    Omit::GraphAfter,
    Omit::GraphMarks,
];

/// Uploads on one stream, kernels and products on others, downloads on the first, as training does; then what is freed
/// while it is in use, matrices at odd addresses, and a head that needs much shared memory. `Ok(false)`: a number is wrong.
fn workload(device: Arc<CudaDevice>) -> Result<bool> {
    let dyn_device: Arc<dyn Device> = device.clone();
    let ops: &dyn Ops = device.ops();
    let (copy, compute) = (device.stream(StreamRole::Copy)?, device.stream(StreamRole::Compute)?);
    let pool = Pool::new(dyn_device.clone(), compute.clone(), 16 << 20, true)?;
    let mut right = true;

    // 64 uploads in a row through staging; y = a b^T + bias, a = i, b = the unit matrix
    let n = 64;
    let (a, b) = (pool.alloc(DType::BF16, [n, n])?, pool.alloc(DType::BF16, [n, n])?);
    let (mut bias, mut y) = (pool.alloc(DType::F32, [n])?, pool.alloc(DType::F32, [n, n])?);
    copy.wait(&compute.record());
    for row in 0..n {
        let mut unit = vec![0.0; n];
        unit[row] = 1.0;
        host::write_f32(&*device, &copy, &vec![row as f32; n], &mut a.rows_view(row, 1))?;
        host::write_f32(&*device, &copy, &unit, &mut b.rows_view(row, 1))?;
    }
    host::write_f32(&*device, &copy, &(0..n).map(|j| j as f32).collect::<Vec<_>>(), &mut bias)?;
    compute.wait(&copy.record());
    for _ in 0..4 {
        ops.gemm(&compute, Gemm::NT, &a, &b, Some(&bias), &mut y)?;
        let doubled = y.clone();
        ops.add(&compute, &doubled, &doubled, &mut y)?;
        copy.wait(&compute.record());
        let got = host::read_f32(&*device, &copy, &y)?;
        right &= (0..n * n).all(|i| got[i] == 2.0 * (i / n + i % n) as f32);
        compute.wait(&copy.record());
    }

    // matrices at addresses that are multiples of two bytes only
    let odd = [1, 3].map(|skip| a.view(skip, [8, 8]));
    let mut out = y.view(1, [8, 8]);
    ops.gemm(&compute, Gemm::NN, &odd[0], &odd[1], None, &mut out)?;

    // a head of 256, whose tiles are more than a kernel may have unasked
    let dims = AttentionDims {
        heads: 1,
        groups: 1,
        head_dim: 256,
        causal: false,
        window: None,
        scale: 1.0,
        max_len: 1,
        first_head: 0,
    };
    let q = a.view(0, [1, 1, 256]);
    let mut cu = pool.alloc(DType::I32, [2])?;
    copy.wait(&compute.record());
    host::write_i32(&*device, &copy, &[0, 1], &mut cu)?;
    compute.wait(&copy.record());
    let (mut o, mut lse) = (pool.alloc(DType::BF16, [1, 1, 256])?, pool.alloc(DType::F32, [1])?);
    let args = AttentionArgs { dims, q: &q, k: &q, v: &q, cu_q: &cu, cu_k: &cu, host_cu: None, drop: None };
    ops.attention(&compute, args, &mut o, &mut lse)?;

    // a graph between work of the same streams that nothing but their own order separates: upload, (upload, double), download
    let mut doubled = pool.alloc(DType::F32, [n])?;
    for round in 0..2 {
        copy.wait(&compute.record());
        host::write_f32(&*device, &copy, &vec![1.0; n], &mut bias)?;
        let graphs = device.graphs().expect("a CUDA device has graphs");
        graphs.of(&compute, || {
            compute.wait(&copy.record());
            ops.add(&compute, &bias, &bias, &mut doubled)?;
            copy.wait(&compute.record());
            host::write_f32(&*device, &copy, &vec![round as f32; n], &mut bias)
        })?;
        right &= host::read_f32(&*device, &copy, &bias)? == vec![round as f32; n];
        right &= host::read_f32(&*device, &compute, &doubled)? == vec![2.0; n];
    }

    // memory that goes while work on it is queued
    let mut x = persistent(&*device, &compute, "a test", DType::F32, 1000)?;
    ops.fill(&compute, 1.0, &mut x)?;
    drop(x);
    // a stream that goes with work in its queue, and its workspace with it
    let short = device.stream(StreamRole::Compute)?;
    short.wait(&compute.record());
    ops.gemm(&short, Gemm::NN, &a, &b, None, &mut y)?;
    let done = short.record();
    drop(short);
    compute.wait(&done);
    compute.synchronize()?;
    Ok(right)
}

/// What is noticed, or nothing.
fn noticed(home: &std::path::Path, control: &common::Control, omit: Option<Omit>) -> Option<String> {
    // opened on one thread, used on another: a rank's streams, loader and checkpointer are threads of their own
    let device = Arc::new(common::open(home, 0, omit));
    let result = std::thread::scope(|scope| scope.spawn(|| workload(device)).join());
    let report = control.report(0);
    match result {
        Err(_) => Some("a panic".into()),
        Ok(Err(e)) => Some(e.to_string()),
        Ok(Ok(false)) => Some(format!("a wrong number; {report}")),
        Ok(Ok(true)) if !report.is_empty() => Some(report),
        Ok(Ok(true)) => None,
    }
}

#[test]
fn every_omission_is_noticed_and_nothing_else() {
    if !common::kernels() {
        return;
    }
    let home = common::home("omissions");
    let control = common::control();
    for _ in 0..3 {
        assert_eq!(noticed(&home, &control, None), None);
    }
    for omit in ALL {
        let found = noticed(&home, &control, Some(omit));
        let first = found.as_deref().and_then(|f| f.lines().next()).unwrap_or("");
        println!("{omit:?}: {first}");
        assert!(found.is_some(), "{omit:?} was not noticed");
    }
    assert_eq!(noticed(&home, &control, None), None);
    common::remove(&home);
}
