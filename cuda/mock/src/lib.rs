//! The CUDA driver, cublasLt, NCCL and NVRTC on the host, stricter than the hardware: for tests of the CUDA device without a GPU.
//!
//! A shared library with the vendor's C functions over `ferrotron-mock`: streams run late on their own threads, unordered
//! accesses are found by vector clocks, memory is guarded and poisoned. Rules that the vendor documents and that a real
//! device may let pass are errors here: a context on every thread, pinned memory for asynchronous copies, access rights of
//! mapped memory, shared memory beyond 48 KiB that was not asked for, alignment that cublasLt was told, workspace that an
//! algorithm needs (it is filled with NaN before and after). Kernels are the real ones, run by `ferrotron-cuda-emulator`,
//! in another order of threads at every launch.
//!
//! `FERROTRON_MOCK_SEED` seeds delays and orders, `FERROTRON_MOCK_FAULTS=device:site#n=code` makes faults
//! (sites are functions, `task:name`, forms of kernels as `module:fatbin`, `module:ptx`, `module:cubin`, and `nvrtc:compile`),
//! `FERROTRON_MOCK_LOUD` tells of every broken rule on standard error: for programs that a test starts. Functions that a
//! test calls beside the vendor's stand in [`control`].
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod blas;
mod clients;
pub mod control;
mod cubin;
mod driver;
mod graph;
mod image;
mod launch;
mod memory;
mod module;
mod nccl;
mod nvrtc;
mod nvtx;
mod world;
