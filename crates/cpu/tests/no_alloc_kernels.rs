//! Kernels never allocate: no op but matrix products and attention (which have a test of their own) touches the heap
//! on an inline stream, on any thread of the team.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::ops::{Activation, AdamConfig, DropSite, QkvDims, RopeDims, RouteGrads};
use ferrotron_device::{DType, Device, Ops, Pool, Result, Stream, StreamRole};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs an op until a run allocates nothing. One that allocates does so each time; threads that are still starting,
/// and the test harness, allocate once in a while.
fn count(what: &str, op: &mut dyn FnMut() -> Result<()>) {
    let allocations = (0..5).map(|_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        op().expect("the op is called as its contract says");
        ALLOCATIONS.load(Ordering::Relaxed) - before
    });
    assert_eq!(allocations.min(), Some(0), "allocations in {what}");
}

// The only test of this file: another one would allocate meanwhile.
#[test]
fn no_kernel_allocates() {
    let config = CpuConfig { threads: 3, streams: StreamMode::Inline };
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(config).unwrap());
    let s = device.stream(StreamRole::Compute).unwrap();
    let pool = Pool::new(device.clone(), s.clone(), 64 << 20, false).unwrap();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        families(device.ops(), &s, &pool, dtype);
    }
}

fn families(ops: &dyn Ops, s: &Stream, pool: &Arc<Pool>, dtype: DType) {
    // Enough rows and columns for several tasks of every op.
    let (t, h) = (300, 512);
    let new = |dtype, shape: &[usize]| {
        let mut x = pool.alloc(dtype, shape).expect("room in the pool");
        if dtype == DType::I32 {
            let mut zeros = pool.alloc(DType::F32, shape).expect("room in the pool");
            ops.fill(s, 0.0, &mut zeros).expect("fill");
            let bytes = zeros.bytes();
            // SAFETY: both tensors have `bytes` bytes of CPU memory, and the inline stream is idle.
            unsafe { std::ptr::copy_nonoverlapping(zeros.ptr().0 as *const u8, x.ptr().0 as *mut u8, bytes) };
        } else {
            ops.fill(s, 0.5, &mut x).expect("fill");
        }
        x
    };
    let act = |shape: &[usize]| new(dtype, shape);
    let f32s = |shape: &[usize]| new(DType::F32, shape);
    let (x, w, dy, mut y) = (act(&[t, h]), act(&[h]), act(&[t, h]), act(&[t, h]));
    let (mut row, mut row2, mut row3, mut stats) = (f32s(&[t]), f32s(&[t]), f32s(&[t]), f32s(&[2, t]));
    let (mut dw, mut db, mut one) = (f32s(&[h]), f32s(&[h]), f32s(&[1]));
    let ids = new(DType::I32, &[t]);

    count("rms_norm", &mut || ops.rms_norm(s, 1e-5, false, &x, &w, &mut y, &mut row));
    count("rms_norm_backward", &mut || ops.rms_norm_backward(s, false, &x, &w, &row, &dy, &mut y, Some(&mut dw)));
    count("layer_norm", &mut || ops.layer_norm(s, 1e-5, false, &x, &w, &w, &mut y, &mut stats));
    count("layer_norm_backward", &mut || {
        ops.layer_norm_backward(s, false, &x, &w, &stats, &dy, &mut y, Some((&mut dw, &mut db)))
    });
    let (cos, sin, mut heads) = (f32s(&[4, 32]), f32s(&[4, 32]), act(&[t, h / 64, 64]));
    let d = RopeDims { rot: 64, interleaved: false };
    count("rope", &mut || ops.rope(s, d, false, &cos, &sin, &ids, &mut heads));
    let d = QkvDims { heads: 4, groups: 2, head_dim: 64 };
    let (mut q, mut k, mut v) = (act(&[t, 256]), act(&[t, 128]), act(&[t, 128]));
    count("qkv_split", &mut || ops.qkv_split(s, d, &x, &mut q, &mut k, &mut v));
    count("qkv_merge", &mut || ops.qkv_merge(s, d, &q, &k, &v, &mut y));
    let mut narrow = act(&[t, h / 2]);
    for f in [Activation::Gelu, Activation::Silu] {
        count("activation", &mut || ops.activation(s, f, &x, &mut y));
        count("activation_backward", &mut || ops.activation_backward(s, f, &x, &dy, &mut y));
        count("glu", &mut || ops.glu(s, f, &x, &mut narrow));
        count("glu_backward", &mut || ops.glu_backward(s, f, &x, &narrow, &mut y));
    }
    let site = DropSite { p: 0.1, key: 1 };
    count("dropout", &mut || ops.dropout(s, site, 0, &ids, &ids, &x, Some(&dy), &mut y));
    count("embedding", &mut || ops.embedding(s, &ids, 0, &x, true, &mut y));
    let mut table = f32s(&[4, h]);
    count("embedding_backward", &mut || ops.embedding_backward(s, &ids, 0, &dy, &mut table));

    let (z, mut loss) = (f32s(&[t, h]), f32s(&[t]));
    count("ce_stats", &mut || ops.ce_stats(s, &z, &ids, 0, &mut row, &mut row2, &mut row3));
    count("ce_rescale", &mut || ops.ce_rescale(s, &row, &row3, &mut row2));
    let mut lse = f32s(&[t]);
    count("ce_loss", &mut || ops.ce_loss(s, &row, &row2, &row3, &mut lse, &mut loss));
    let scale = f32s(&[1]);
    count("ce_backward", &mut || ops.ce_backward(s, &z, &ids, 0, &lse, &row3, &scale, &mut y));

    let (e, k) = (8, 2);
    let (logits, mut scores, mut experts) = (f32s(&[t, e]), f32s(&[t, e]), new(DType::I32, &[t, k]));
    let (mut w, mut d_w, mut counts) = (f32s(&[t, k]), f32s(&[t, k]), f32s(&[e]));
    count("route", &mut || ops.route(s, true, &logits, &mut scores, &mut lse, &mut experts, &mut w));
    let (mut slots, mut place) = (new(DType::I32, &[t * k]), new(DType::I32, &[t, k]));
    count("sort_by_expert", &mut || ops.sort_by_expert(s, &experts, &mut counts, &mut slots, &mut place));
    let mut slope = f32s(&[e]);
    count("load_balance", &mut || ops.load_balance(s, &scores, &counts, t, k, &mut slope, &mut one));
    let (mut expert_rows, mut d_rows) = (act(&[t * k, h]), act(&[t * k, h]));
    count("gather_rows", &mut || ops.gather_rows(s, &x, &slots, k, &mut expert_rows));
    count("combine", &mut || ops.combine(s, &expert_rows, &place, Some(&w), &mut y));
    count("combine_backward", &mut || {
        ops.combine_backward(s, &dy, &expert_rows, &slots, &place, &w, &mut d_rows, &mut d_w)
    });
    let mut dz = f32s(&[t, e]);
    count("route_backward", &mut || {
        let (scores, lse, experts, weights, d_weights) = (&scores, &lse, &experts, &w, &d_w);
        let (slope, scale, after_choice, balance, z_slope) = (&slope, &scale, true, 0.1, 0.1);
        let g = RouteGrads { after_choice, scores, lse, experts, weights, d_weights, slope, balance, z_slope, scale };
        ops.route_backward(s, g, &mut dz)
    });

    let (scalars, grad) = (f32s(&[8]), f32s(&[t * h]));
    let (mut master, mut m, mut v, mut param) = (f32s(&[t * h]), f32s(&[t * h]), f32s(&[t * h]), act(&[t * h]));
    let c = AdamConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
    count("adam", &mut || ops.adam(s, c, 1.0, 1.0, &scalars, &grad, &mut master, &mut m, &mut v, Some(&mut param)));
    count("sgd", &mut || ops.sgd(s, 0.9, 1.0, 1.0, &scalars, &grad, &mut master, &mut m, Some(&mut param)));
    count("sum_squares", &mut || ops.sum_squares(s, &x, &mut one));
    count("count_zeros", &mut || ops.count_zeros(s, &x, &mut one));

    count("fill", &mut || ops.fill(s, 1.0, &mut y));
    count("copy", &mut || ops.copy(s, &x, &mut y));
    let mut wide = f32s(&[t, h]);
    count("copy to f32", &mut || ops.copy(s, &x, &mut wide));
    count("add", &mut || ops.add(s, &x, &dy, &mut y));
    count("axpy", &mut || ops.axpy(s, 0.5, &x, &mut wide));
    count("scale", &mut || ops.scale(s, &scale, &mut y));
    count("column_sum", &mut || ops.column_sum(s, &x, &mut dw));
    count("weighted_sum", &mut || ops.weighted_sum(s, &z, &grad, &mut one));
}
