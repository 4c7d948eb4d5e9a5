//! Whatever the device leaves out of what the runtime asks for is noticed: for each kind of omission a short workload
//! fails, gives a wrong number, or is reported by the mock. Without omissions it does none of the three.

mod common;

use std::sync::Arc;

use ferrotron_ascend::{AscendDevice, Omit};
use ferrotron_conformance::reference::dropout as reference;
use ferrotron_device::ops::{AttentionArgs, AttentionDims, DropSite, Gemm};
use ferrotron_device::pool::persistent;
use ferrotron_device::{DType, Device, Error, Ops, Pool, Result, Stream, StreamRole, host};

const ALL: [Omit; 16] = [
    Omit::Context,
    Omit::EventWait,
    Omit::EventFlag,
    Omit::WorkspaceSize,
    Omit::ScratchApart,
    Omit::StagingWait,
    Omit::Pinned,
    Omit::DownloadWait,
    Omit::WaitBeforeUnmap,
    Omit::WaitBeforeFree,
    Omit::DestroyExecutor,
    Omit::CopyAlignment,
    Omit::EventHold,
    Omit::MaskOrder,
    Omit::Hide,
    Omit::StableSort,
];

/// Uploads on one stream, kernels on another, downloads on the first, as training does; then what is freed while it is
/// in use, and a launch that fails between its phases. `Ok(false)`: a number is wrong.
fn workload(device: Arc<AscendDevice>, control: &common::Control) -> Result<bool> {
    let dyn_device: Arc<dyn Device> = device.clone();
    let ops: &dyn Ops = device.ops();
    let (compute, copy) = (device.stream(StreamRole::Compute)?, device.stream(StreamRole::Copy)?);
    let pool = Pool::new(dyn_device.clone(), compute.clone(), 16 << 20, true)?;
    let mut right = true;

    // 64 uploads in a row through staging; y = a b^T + bias in bf16, products in scratch
    let n = 64;
    let (mut a, mut b) = (pool.alloc(DType::BF16, [n, n])?, pool.alloc(DType::BF16, [n, n])?);
    let (mut bias, mut y) = (pool.alloc(DType::F32, [n])?, pool.alloc(DType::F32, [n, n])?);
    copy.wait(&compute.record());
    for row in 0..n {
        // a = i, b = the unit matrix: y[i][j] = i + j
        let mut unit = vec![0.0; n];
        unit[row] = 1.0;
        host::write_f32(&*device, &copy, &vec![row as f32; n], &mut a.rows_view(row, 1))?;
        host::write_f32(&*device, &copy, &unit, &mut b.rows_view(row, 1))?;
    }
    host::write_f32(&*device, &copy, &(0..n).map(|j| j as f32).collect::<Vec<_>>(), &mut bias)?;
    compute.wait(&copy.record());
    ops.gemm(&compute, Gemm::NT, &a, &b, Some(&bias), &mut y)?;
    copy.wait(&compute.record());
    for _ in 0..4 {
        let got = host::read_f32(&*device, &copy, &y)?;
        right &= (0..n * n).all(|i| got[i] == (i / n + i % n) as f32);
        ops.gemm(&compute, Gemm::NT, &a, &b, Some(&bias), &mut y)?;
        copy.wait(&compute.record());
    }
    compute.wait(&copy.record());
    (a, b) = (b, a);

    right &= masks(&device, &compute, &pool)?;
    right &= slots(&device, &compute, &pool)?;

    // memory that goes while work on it is queued
    let mut x = persistent(&*device, &compute, "a test", DType::F32, 1000)?;
    ops.fill(&compute, 1.0, &mut x)?;
    drop(x);
    // a stream that goes with work in its queue, and its scratch with it
    let short = device.stream(StreamRole::Compute)?;
    short.wait(&compute.record());
    ops.gemm(&short, Gemm::NN, &a, &b, None, &mut y)?;
    let done = short.record();
    drop(short);
    compute.wait(&done);

    // no memory for the workspace, between the phases of an operator
    let fresh = device.stream(StreamRole::Compute)?;
    fresh.wait(&compute.record());
    control.faults(0, "aclrtMalloc#1=207001");
    let refused = ops.fill(&fresh, 2.0, &mut y);
    right &= matches!(refused, Err(Error::OutOfMemory { .. }));
    // the copy engine's alignment is checked by us, not by the stream's death
    let odd = y.view(1, [16]);
    let refused = device.copy_aligned(&compute, odd.ptr(), y.ptr(), 64);
    right &= matches!(refused, Err(Error::Mismatch { .. }));
    compute.synchronize()?;
    Ok(right)
}

/// Dropout, whose mask the host draws in stream order, and causal attention, whose first row sees one key.
fn masks(device: &AscendDevice, s: &Stream, pool: &Arc<Pool>) -> Result<bool> {
    let (t, c) = (9, 33);
    let site = DropSite { p: 0.4, key: 77 };
    let ids: Vec<i32> = (0..t as i32).collect();
    let (mut sample, mut x) = (pool.alloc(DType::I32, [t])?, pool.alloc(DType::F32, [t, c])?);
    host::write_i32(device, s, &ids, &mut sample)?;
    let values: Vec<f32> = (0..t * c).map(|i| 1.0 + i as f32).collect();
    host::write_f32(device, s, &values, &mut x)?;
    let mut y = pool.alloc(DType::F32, [t, c])?;
    device.ops().dropout(s, site, 5, &sample, &sample, &x, None, &mut y)?;
    let got = host::read_f32(device, s, &y)?;
    let values: Vec<f64> = values.into_iter().map(f64::from).collect();
    let want = reference::dropout(site, 5, &ids, &ids, &values, None);
    let mut right = got.iter().zip(&want).all(|(got, want)| (f64::from(*got) - want).abs() <= 1e-4);

    let mut cu = pool.alloc(DType::I32, [2])?;
    host::write_i32(device, s, &[0, t as i32], &mut cu)?;
    let dims = AttentionDims {
        heads: 1,
        groups: 1,
        head_dim: c,
        causal: true,
        window: None,
        scale: 0.1,
        max_len: t,
        first_head: 0,
    };
    let a = AttentionArgs { dims, q: &x, k: &x, v: &x, cu_q: &cu, cu_k: &cu, host_cu: None, drop: None };
    let mut lse = pool.alloc(DType::F32, [1, t])?;
    device.ops().attention(s, a, &mut y, &mut lse)?;
    let got = host::read_f32(device, s, &y)?;
    right &= (0..c).all(|i| got[i] == 1.0 + i as f32);
    Ok(right)
}

/// Slots by expert, of which several have the same.
fn slots(device: &AscendDevice, s: &Stream, pool: &Arc<Pool>) -> Result<bool> {
    let (mut experts, mut counts) = (pool.alloc(DType::I32, [3, 2])?, pool.alloc(DType::F32, [3])?);
    let (mut slots, mut place) = (pool.alloc(DType::I32, [6])?, pool.alloc(DType::I32, [3, 2])?);
    host::write_i32(device, s, &[2, 0, 0, 2, 2, 0], &mut experts)?;
    device.ops().sort_by_expert(s, &experts, &mut counts, &mut slots, &mut place)?;
    let (mut numbers, mut sorted) = (pool.alloc(DType::F32, [6, 1])?, pool.alloc(DType::F32, [6, 1])?);
    host::write_f32(device, s, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &mut numbers)?;
    device.ops().gather_rows(s, &numbers, &slots, 1, &mut sorted)?;
    let right = host::read_f32(device, s, &sorted)? == [1.0, 2.0, 5.0, 0.0, 3.0, 4.0];
    Ok(right && host::read_f32(device, s, &counts)? == [3.0, 0.0, 3.0])
}

/// What is noticed, or nothing.
fn noticed(home: &std::path::Path, control: &common::Control, omit: Option<Omit>) -> Option<String> {
    // opened on one thread, used on another: a rank's streams, loader and checkpointer are threads of their own
    let device = Arc::new(common::open(home, 0, omit));
    let result = std::thread::scope(|scope| scope.spawn(|| workload(device, control)).join());
    let report = control.report(0);
    control.no_faults(0);
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
