//! The C interface of HCCL: constants, structs, the table of functions, and where the libraries are.
//!
//! Written by hand like `ferrotron-acl-sys`, from the same sources. Collectives are in libhccl; since CANN 8.5 the
//! management of communicators is in libhcomm: every function is looked for in the first, then in the second.
#![allow(non_camel_case_types, non_snake_case)]

mod config;
mod table;
mod types;

pub use config::{CommConfig, ConfigError};
pub use table::{Hccl, searches};
pub use types::*;
