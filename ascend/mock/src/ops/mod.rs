//! The operators, by family.

mod elementwise;
mod flash;
mod indexing;
mod layers;
mod matmul;

/// Declares both phases of operators. The body of the first gives the plan.
macro_rules! operators {
    ($($name:ident, $plan:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $plan(
            $($arg: $ty,)* workspace_size: *mut u64, executor: *mut *mut acl::aclOpExecutor,
        ) -> acl::aclnnStatus {
            crate::plan::plan(stringify!($name), || $body, workspace_size, executor)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            workspace: *mut std::ffi::c_void, size: u64, executor: *mut acl::aclOpExecutor, stream: acl::aclrtStream,
        ) -> acl::aclnnStatus {
            crate::plan::run(stringify!($name), workspace, size, executor, stream)
        }
    )*};
}
pub(crate) use operators;

use std::sync::Arc;

use ferrotron_acl_sys as acl;

use crate::tensor::{Tensor, is_float};
use crate::world::{Answer, refuse};

/// An argument is refused, with the vendor's code.
pub fn wrong<T>(what: impl AsRef<str>) -> Answer<T> {
    refuse(acl::code::NN_INVALID, format!("EZ1001: {}", what.as_ref()))
}

/// Checks that tensors have these dims and this dtype.
pub fn alike(dims: &[usize], dtype: acl::aclDataType, all: &[&Arc<Tensor>]) -> Answer<()> {
    for t in all {
        if t.dims != dims || t.dtype != dtype {
            return wrong(format!("{:?} of dtype {} where {dims:?} of dtype {dtype} is wanted", t.dims, t.dtype));
        }
    }
    Ok(())
}

/// Checks that a tensor is of a float type.
pub fn float(t: &Tensor) -> Answer<()> {
    if is_float(t.dtype) { Ok(()) } else { wrong(format!("dtype {} is no float type", t.dtype)) }
}

/// An output that shares memory with an input of an operator that is not in place.
pub fn apart(out: &Tensor, inputs: &[&Arc<Tensor>]) -> Answer<()> {
    if inputs.iter().any(|i| out.overlaps(i)) {
        return wrong("an output shares memory with an input");
    }
    Ok(())
}
