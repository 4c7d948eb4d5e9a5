//! Errors of the device arrive in words, with the kernels launched last, and end the stream that they belong to.

#![allow(clippy::unwrap_used)] // a test

mod common;

use ferrotron_device::DType;
use ferrotron_device::ops::Gemm;
use ferrotron_tests::mock::faults::{self, Rig};

const ADD: &str = "add<1x1>(F32[32], F32[32], F32[32])";

#[test]
fn a_kernel_that_fails_is_told_with_what_was_launched() {
    let start = "cuda:2: cuStreamSynchronize: ";
    let cases: [(i32, &[&str]); 3] = [
        (700, &[start, "700 CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory that is not its own"]),
        (214, &[start, "214 CUDA_ERROR_ECC_UNCORRECTABLE: the GPU's memory or links have an error: drain the host"]),
        (719, &[start, "719 CUDA_ERROR_LAUNCH_FAILED: a kernel failed: look for an Xid in dmesg"]),
    ];
    common::with("kernel", |gpu| faults::a_kernel_fails(gpu, 2, "add", &cases, ADD));
}

#[test]
fn a_kernel_that_fails_is_told_at_a_stream_that_waits_for_it() {
    let fill = "fill<1x1>(F32[32])";
    common::with("waits", |gpu| {
        faults::a_kernel_fails_and_another_stream_is_asked(gpu, 7, "task:add#1=719", [ADD, fill]);
    });
}

#[test]
fn out_of_memory_is_told_as_such() {
    common::with("memory", |gpu| drop(faults::out_of_memory(gpu, 3, "cuMemCreate#1=2")));
}

#[test]
fn a_matrix_product_that_is_refused_is_told_in_words() {
    common::with("product", |gpu| {
        let Rig { device, s, pool } = Rig::new(gpu, 4);
        let (a, mut c) = (pool.alloc(DType::BF16, [16, 16]).unwrap(), pool.alloc(DType::BF16, [16, 16]).unwrap());
        common::control().faults(4, "cublasLtMatmul#1=14");
        let e = device.ops().gemm(&s, Gemm::NN, &a, &a, None, &mut c).unwrap_err().to_string();
        let words = ["cuda:4: cublasLtMatmul: status 14 ", "product Shape { m: 16, n: 16"];
        assert!(e.starts_with(words[0]) && e.contains(words[1]), "{e}");
    });
}

#[test]
fn host_jobs_run_in_order_and_their_errors_are_the_streams() {
    common::with("host", |gpu| faults::host_jobs(gpu, 5));
}

#[test]
fn many_threads_use_one_device() {
    common::with("threads", |gpu| faults::many_threads(gpu, 6));
}
