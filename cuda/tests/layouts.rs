//! Layouts of ranks on the CUDA device over the mocks of the driver, cublasLt and NCCL and the emulated kernels: each trains
//! to one CPU rank's numbers, within the bounds that CPU layouts have, with streams late and threads of blocks in other
//! orders by seeded chance, and no rule of the vendor broken.

mod common;

use ferrotron_tests::layouts;

#[test]
fn layouts_train_to_one_cpu_ranks_numbers() {
    common::with("layouts", layouts::dense);
}

#[test]
fn recomputed_layers_give_the_numbers_of_kept_ones() {
    common::with("layouts-recomputed", layouts::recomputed);
}

#[test]
fn experts_train_to_one_cpu_ranks_numbers() {
    common::with("layouts-experts", layouts::experts);
}

#[test]
fn bf16_layouts_stay_close() {
    common::with("layouts-bf16", layouts::bf16);
}

#[test]
fn graphs_give_the_same_bits() {
    common::with("layouts-graphs", layouts::graphs);
}
