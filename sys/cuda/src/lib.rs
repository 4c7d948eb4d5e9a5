//! The C interface of the CUDA driver, cublasLt and NVRTC: constants, structs, tables of functions found at run time, error codes
//! in words, and where the libraries are. Safe devices stand on it in `ferrotron-cuda`.
//!
//! Names are the vendor's. Functions with `_v2` in the library have it here: the plain names are old ones.
#![allow(non_camel_case_types, non_snake_case)]

mod blas;
pub mod code;
mod driver;
mod nvrtc;
mod places;
mod profiler;
mod types;

pub use blas::*;
pub use driver::Driver;
pub use nvrtc::*;
pub use places::Environment;
pub use profiler::Profiler;
pub use types::*;
