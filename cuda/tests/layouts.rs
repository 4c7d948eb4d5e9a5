//! Layouts of ranks on the CUDA device over the mocks of the driver, cublasLt and NCCL and the emulated kernels: each trains
//! to one CPU rank's numbers, within the bounds that CPU layouts have, with streams late and threads of blocks in other
//! orders by seeded chance, and no rule of the vendor broken.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::sync::Arc;

use ferrotron_cuda::{Environment, NcclLinker};
use ferrotron_tests::layouts::{self, Trains};
use ferrotron_tests::ranks::train_on;

/// Runs layouts on the device.
fn on_cuda(name: &str, run: fn(&str, Trains<'_>)) {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home(name);
    run("cuda", &|c, dtype, r, steps| {
        let linker = Arc::new(NcclLinker::new(Environment::only(&home)));
        let out = train_on(c, dtype, r, steps, Some(linker), &|rank| Ok(Arc::new(common::open(&home, rank, None))));
        let control = common::control();
        for d in 0..r.world() as u32 {
            assert_eq!(control.report(d), "", "{r:?}: device {d}");
        }
        out
    });
    common::remove(&home);
}

#[test]
fn layouts_train_to_one_cpu_ranks_numbers() {
    on_cuda("layouts", layouts::dense);
}

#[test]
fn recomputed_layers_give_the_numbers_of_kept_ones() {
    on_cuda("layouts-recomputed", layouts::recomputed);
}

#[test]
fn experts_train_to_one_cpu_ranks_numbers() {
    on_cuda("layouts-experts", layouts::experts);
}

#[test]
fn bf16_layouts_stay_close() {
    on_cuda("layouts-bf16", layouts::bf16);
}

#[test]
fn graphs_give_the_same_bits() {
    on_cuda("layouts-graphs", layouts::graphs);
}
