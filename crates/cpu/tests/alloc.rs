//! Kernels on inline streams allocate nothing (tested with a counting allocator).

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Rig, numbers};
use ferrotron_cpu::{Isa, StreamMode};
use ferrotron_device::ops::attention::AttentionDims;
use ferrotron_device::ops::{AttentionArgs, Gemm};
use ferrotron_device::{DType, Device};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's; this only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test only: another thread of the test harness would be counted too.
#[test]
fn products_and_attention_allocate_nothing() {
    let rig = Rig::new(2, StreamMode::Inline, Isa::detect());
    for dtype in [DType::F32, DType::BF16] {
        let (n, d, t) = (4, 32, 150);
        let x = rig.tensor(dtype, [t, n, d], &numbers(t * n * d, 1));
        let dout = rig.tensor(dtype, [t, n, d], &numbers(t * n * d, 3));
        let w = rig.tensor(dtype, [300, n * d], &numbers(300 * n * d, 2));
        let mut y = rig.tensor(dtype, [t, 300], &vec![0.0; t * 300]);
        let like = || rig.tensor(dtype, [t, n, d], &vec![0.0; t * n * d]);
        let (mut o, mut dq, mut dk, mut dv) = (like(), like(), like(), like());
        let stats = || rig.tensor(DType::F32, [n, t], &vec![0.0; n * t]);
        let (mut lse, mut delta, cu) = (stats(), stats(), rig.ints(&[0, 100, t as i32]));
        let dims = AttentionDims {
            heads: n,
            groups: n,
            head_dim: d,
            causal: true,
            window: None,
            scale: 0.2,
            max_len: 100,
            first_head: 0,
        };
        let args = AttentionArgs { dims, q: &x, k: &x, v: &x, cu_q: &cu, cu_k: &cu, host_cu: None, drop: None };
        let mut step = |dev: &dyn Device| {
            let (ops, s) = (dev.ops(), &rig.s);
            ops.gemm(s, Gemm::NT, &x, &w, None, &mut y).expect("a product");
            ops.attention(s, args, &mut o, &mut lse).expect("forward");
            ops.attention_backward(s, args, &o, &lse, &dout, &mut delta, &mut dq, &mut dk, &mut dv).expect("backward");
        };
        // What is made once (a thread's own handle, the harness's) may be made in any round, on a busy machine late; a
        // kernel that allocates does so in each.
        let rounds = (0..10).map(|_| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            step(&*rig.dev);
            ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        assert_eq!(rounds.min(), Some(0), "{dtype}");
    }
}
