//! The C interface of AscendCL and aclnn: constants, structs, tables of functions, and where the libraries are.
//!
//! Written by hand from the published interface (API version 1.17.0 in the headers of the BSD package torch-npu, and
//! the documentation of CANN 8.0 to 9.x): the part we call is small, and C's names are kept so that the vendor's pages
//! can be searched for them. Nothing is generated, so nothing needs libclang. `docs/ascend.md` tells how to compare
//! this crate with the vendor's headers.
#![allow(non_camel_case_types, non_snake_case)]

pub mod code;
pub mod nn;
pub mod ops;
pub mod places;
pub mod rt;
pub mod types;

pub use nn::Nn;
pub use ops::OpApi;
pub use places::Environment;
pub use rt::Acl;
pub use types::*;

use ferrotron_dynlib::{Gate, Version};

/// The releases of CANN whose interface this crate states.
pub const CANN: Gate = Gate { what: "CANN", from: Version::new(8, 0, 0), below: Version::new(10, 0, 0) };
