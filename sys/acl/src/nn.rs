//! Objects that aclnn operators take: libnnopbase.

use std::ffi::c_void;

use crate::types::*;

ferrotron_dynlib::table! {
    /// Functions that make and end the operators' arguments.
    pub struct Nn {
        required {
            /// A tensor: view dims, strides and offset (in elements) in a storage of some dims at an address.
            fn aclCreateTensor(
                view_dims: *const i64, view_dims_num: u64, dtype: aclDataType, strides: *const i64, offset: i64,
                format: aclFormat, storage_dims: *const i64, storage_dims_num: u64, data: *mut c_void,
            ) -> *mut aclTensor;
            /// Ends a tensor's description, not its memory.
            fn aclDestroyTensor(tensor: *const aclTensor) -> aclnnStatus;
            /// Copies a value of some dtype.
            fn aclCreateScalar(value: *mut c_void, dtype: aclDataType) -> *mut aclScalar;
            /// Ends a scalar.
            fn aclDestroyScalar(scalar: *const aclScalar) -> aclnnStatus;
            /// Copies int64 values.
            fn aclCreateIntArray(values: *const i64, size: u64) -> *mut aclIntArray;
            /// Ends an array.
            fn aclDestroyIntArray(array: *const aclIntArray) -> aclnnStatus;
            /// Copies bools.
            fn aclCreateBoolArray(values: *const bool, size: u64) -> *mut aclBoolArray;
            /// Ends an array.
            fn aclDestroyBoolArray(array: *const aclBoolArray) -> aclnnStatus;
            /// Ends an executor whose second phase is not called, or a repeatable one.
            fn aclDestroyAclOpExecutor(executor: *mut aclOpExecutor) -> aclnnStatus;
        }
        optional {
            /// The executor may be used again, until it is destroyed.
            fn aclSetAclOpExecutorRepeatable(executor: *mut aclOpExecutor) -> aclnnStatus;
            /// Owns its tensors.
            fn aclCreateTensorList(tensors: *const *const aclTensor, size: u64) -> *mut aclTensorList;
            /// Ends the list and its tensors.
            fn aclDestroyTensorList(list: *const aclTensorList) -> aclnnStatus;
        }
    }
}
