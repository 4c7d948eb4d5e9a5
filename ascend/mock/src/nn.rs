//! Objects that operators take.

use std::ffi::c_void;

use ferrotron_acl_sys as acl;
use half::{bf16, f16};

use crate::tensor::Tensor;
use crate::world::{Answer, Object, answer, lock, refuse, world};

/// A C array.
///
/// # Safety
/// `p` points to `n` values, or `n` is 0.
unsafe fn slice<'a, T>(p: *const T, n: u64) -> &'a [T] {
    if n == 0 || p.is_null() {
        return &[];
    }
    // SAFETY: the contract above.
    unsafe { std::slice::from_raw_parts(p, n as usize) }
}

/// Runs `make`; null with an error text when it is refused.
fn make<T>(name: &str, body: impl FnOnce() -> Answer<Object>) -> *mut T {
    let mut made = 0;
    answer(name, |w| {
        made = w.add(body()?);
        Ok(())
    });
    made as *mut T
}

fn destroy(name: &str, handle: usize, right: fn(&Object) -> bool) -> acl::aclnnStatus {
    answer(name, |w| match w.remove(handle) {
        Ok(o) if right(&o) => Ok(()),
        _ => refuse(acl::code::NN_NULLPTR, format!("EZ1001: {name} of something else, or twice")),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateTensor(
    view_dims: *const i64,
    view_dims_num: u64,
    dtype: acl::aclDataType,
    strides: *const i64,
    offset: i64,
    format: acl::aclFormat,
    storage_dims: *const i64,
    storage_dims_num: u64,
    data: *mut c_void,
) -> *mut acl::aclTensor {
    make("aclCreateTensor", || {
        if format != acl::ACL_FORMAT_ND {
            return refuse(acl::code::NN_INVALID, format!("EZ1001: format {format}: the mock has ND only"));
        }
        // SAFETY: the caller gives arrays of these lengths.
        let (dims, strides, storage) = unsafe {
            (slice(view_dims, view_dims_num), slice(strides, view_dims_num), slice(storage_dims, storage_dims_num))
        };
        Ok(Object::Tensor(Tensor::new(dims, strides, offset, dtype, storage, data as usize)?.into()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyTensor(tensor: *const acl::aclTensor) -> acl::aclnnStatus {
    destroy("aclDestroyTensor", tensor as usize, |o| matches!(o, Object::Tensor(_)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateScalar(value: *mut c_void, dtype: acl::aclDataType) -> *mut acl::aclScalar {
    make("aclCreateScalar", || {
        if value.is_null() {
            return refuse(acl::code::NN_NULLPTR, "EZ1001: the scalar's value is null");
        }
        // SAFETY: the caller gives a value of that type.
        let v = unsafe {
            match dtype {
                acl::ACL_FLOAT => f64::from(value.cast::<f32>().read_unaligned()),
                acl::ACL_DOUBLE => value.cast::<f64>().read_unaligned(),
                acl::ACL_FLOAT16 => value.cast::<f16>().read_unaligned().to_f64(),
                acl::ACL_BF16 => value.cast::<bf16>().read_unaligned().to_f64(),
                acl::ACL_INT32 => f64::from(value.cast::<i32>().read_unaligned()),
                acl::ACL_INT64 => value.cast::<i64>().read_unaligned() as f64,
                _ => return refuse(acl::code::NN_INVALID, format!("EZ1001: a scalar of dtype {dtype}")),
            }
        };
        Ok(Object::Scalar(v))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyScalar(scalar: *const acl::aclScalar) -> acl::aclnnStatus {
    destroy("aclDestroyScalar", scalar as usize, |o| matches!(o, Object::Scalar(_)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateIntArray(values: *const i64, size: u64) -> *mut acl::aclIntArray {
    // SAFETY: the caller gives an array of this length.
    make("aclCreateIntArray", || Ok(Object::IntArray(unsafe { slice(values, size) }.into())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyIntArray(array: *const acl::aclIntArray) -> acl::aclnnStatus {
    destroy("aclDestroyIntArray", array as usize, |o| matches!(o, Object::IntArray(_)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclCreateBoolArray(values: *const bool, size: u64) -> *mut acl::aclBoolArray {
    // SAFETY: the caller gives an array of this length.
    make("aclCreateBoolArray", || Ok(Object::BoolArray(unsafe { slice(values, size) }.into())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyBoolArray(array: *const acl::aclBoolArray) -> acl::aclnnStatus {
    destroy("aclDestroyBoolArray", array as usize, |o| matches!(o, Object::BoolArray(_)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclDestroyAclOpExecutor(executor: *mut acl::aclOpExecutor) -> acl::aclnnStatus {
    answer("aclDestroyAclOpExecutor", |_| match lock(&world().executors).remove(&(executor as usize)) {
        Some(_) => Ok(()),
        None => refuse(561103, "EZ9999: the executor was used or destroyed before"),
    })
}
