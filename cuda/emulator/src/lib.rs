//! CUDA kernels on the host: a strict emulator for g++ (`include/emulator.h` says what it checks), how it is built, and
//! its library as Rust sees it.

mod build;
mod library;

pub use build::{BuildError, build, default_folder, say_not_run};
pub use ferrotron_cuda_kernels::folder as kernels_folder;
pub use library::{Emulator, Kernel};
