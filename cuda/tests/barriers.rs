//! Every barrier of the kernels is needed: whichever is left out, a case fails. Alone in its process: barriers are left out
//! of all launches.

mod common;

use std::sync::Arc;

use ferrotron_conformance::{Case, run_cases, suite};
use ferrotron_device::Device;

/// Cases that reach every barrier, with more than one warp, tile and row.
const CASES: [(&str, &str); 7] = [
    ("layer_norm", "T=3 H=7 F32 w F32 plus_one=false"),
    ("layer_norm_backward", "T=33 H=64 F32 w F32 plus_one=false dw"),
    ("embedding_backward", "T=500 V=29 H=40 first=29 F32"),
    ("ce_stats", "R=33 V=160 first=320 spread=1"),
    ("sort_by_expert", "T=33 E=9 K=3"),
    ("attention", "N=4 G=2 D=33 cu_q=[0, 3, 3, 20] cu_k=[0, 3, 3, 20] causal=false window=None p=0.2 F32"),
    ("attention_backward", "N=4 G=2 D=33 cu_q=[0, 3, 3, 20] cu_k=[0, 3, 3, 20] causal=false window=None p=0.2 F32"),
];

fn cases() -> Vec<Case> {
    let cases: Vec<Case> = suite().into_iter().filter(|c| CASES.contains(&(c.op, &*c.name))).collect();
    let found: Vec<_> = cases.iter().map(|c| (c.op, &*c.name)).collect();
    assert_eq!(cases.len(), CASES.len(), "{found:?}");
    cases
}

#[test]
fn whichever_barrier_is_left_out_is_missed() {
    if !common::kernels() {
        return;
    }
    let home = common::home("barriers");
    let control = common::control();
    let device: Arc<dyn Device> = Arc::new(common::open(&home, 0, None));
    let before = run_cases(&device, &cases()).unwrap();
    before.assert_passed();
    assert_eq!(control.report(0), "");
    let barriers = control.own.barriers();
    let sources = ["attention.cu", "attention_backward.cu", "embedding.cu", "moe.cu", "prelude.cuh"];
    for source in sources {
        let text = std::fs::read_to_string(ferrotron_cuda_emulator::kernels_folder().join(source)).unwrap();
        let written = text.lines().filter(|l| l.contains("__syncthreads")).count();
        let reached = barriers.iter().filter(|b| b.starts_with(&format!("{source}:"))).count();
        assert_eq!(reached, written, "barriers of {source} that the cases reach: {barriers:?}");
    }
    for barrier in &barriers {
        control.own.omit_barrier(barrier);
        let report = run_cases(&device, &cases()).unwrap();
        control.own.omit_barrier("");
        let told = control.report(0);
        println!("{barrier}: {}", told.lines().next().unwrap_or(""));
        assert!(!report.failures.is_empty(), "{barrier} is not missed");
        assert!(told.contains(": block ("), "{barrier}: {told}");
    }
    // in another order of threads at every launch, the same bits
    let after = run_cases(&device, &cases()).unwrap();
    after.assert_passed();
    assert_eq!(after.fingerprints, before.fingerprints);
    drop(device);
    common::remove(&home);
}
