//! The CUDA device: streams, memory and kernels over the driver, matrix products by cublasLt, communicators over NCCL.
//!
//! The driver's traps, and where they are met: a context belongs to a thread, so every call makes ours current first
//! (`shared`); reserved addresses are backed page by page and must be opened to the device, and unmapping waits for nobody
//! (`memory`); a copy is asynchronous only with pinned host memory, so host bytes pass through pinned staging (`ferrotron_device::staging`);
//! errors of kernels show at a later call, so each error carries the kernels launched last (`stream`); cublasLt takes 256
//! bytes of alignment for granted unless it is told what there is, and its proposals are worth keeping (`blas`); more than
//! 48 KiB of shared memory must be asked for (`launch`).
//!
//! The kernels (`../kernels`) ship as machine code for some chips and as PTX for all others; `kernels` says what is tried where
//! a driver takes neither.

mod backend;
mod blas;
mod device;
mod event;
mod explain;
mod graph;
mod kernels;
mod launch;
mod library;
mod memory;
mod nccl;
mod ops;
mod ranges;
mod shared;
mod stream;

pub use backend::CudaBackend;
pub use device::CudaDevice;
pub use explain::explain;
pub use ferrotron_cuda_sys::Environment;
pub use ferrotron_nvtx_sys::{NoNvtx, Nvtx};
pub use kernels::{Compiled, Compiler, KernelForm, KernelOptions, Target};
pub use library::Cuda;
pub use nccl::NcclLinker;
pub use ranges::nvtx;
pub use shared::Omit;
