//! The CPU device: fork-join team, streams (inline or chaotic), kernels.

pub mod attention;
pub mod device;
pub mod gemm;
pub mod isa;
pub mod kernels;
pub mod memory;
pub mod scratch;
pub mod stream;
pub mod team;
pub mod view;

pub use device::{CpuBackend, CpuConfig, CpuDevice, CpuOps};
pub use isa::Isa;
pub use stream::StreamMode;
