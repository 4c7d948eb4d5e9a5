//! CUDA kernels on the host: a strict emulator for g++ (`include/emulator.h` says what it checks), how it is built, and
//! its library as Rust sees it.

mod build;
mod library;

pub use build::{
    BuildError, build, default_folder, fingerprint, kernel_names, kernels_folder, say_not_run, single_source,
};
pub use library::{Emulator, Kernel};
