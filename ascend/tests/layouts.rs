//! Layouts of ranks on the Ascend device over the mocks of CANN and HCCL: each trains to one CPU rank's numbers, within the
//! bounds that CPU layouts have, with streams late by seeded chance, sends that end only when they were received, and no
//! rule of the vendor broken.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::sync::Arc;

use ferrotron_ascend::{Environment, HcclLinker, HcclOptions};
use ferrotron_tests::layouts::{self, Trains};
use ferrotron_tests::ranks::train_on;

/// Runs layouts on the device.
fn on_npu(name: &str, run: fn(&str, Trains<'_>)) {
    let _alone = ferrotron_tests::alone();
    let home = common::home(name);
    run("npu", &|c, dtype, r, steps| {
        let hccl = HcclOptions { buffer_mib: Some(16), ..HcclOptions::default() };
        let linker = Arc::new(HcclLinker::new(Environment::only(&home), hccl));
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
    on_npu("layouts", layouts::dense);
}

#[test]
fn recomputed_layers_give_the_numbers_of_kept_ones() {
    on_npu("layouts-recomputed", layouts::recomputed);
}

#[test]
fn experts_train_to_one_cpu_ranks_numbers() {
    on_npu("layouts-experts", layouts::experts);
}

#[test]
fn bf16_layouts_stay_close() {
    on_npu("layouts-bf16", layouts::bf16);
}
