//! Scalars, handles, constants and structs of AscendCL.

use std::ffi::{c_char, c_void};

/// Status of a runtime call, 0 when it went well. See [`crate::code`].
pub type aclError = i32;
/// Status of an aclnn call, 0 when it went well.
pub type aclnnStatus = i32;
/// A stream; null is the default stream of the current context.
pub type aclrtStream = *mut c_void;
/// An event.
pub type aclrtEvent = *mut c_void;
/// A context: the device and default stream of the threads that made it current.
pub type aclrtContext = *mut c_void;
/// Physical memory, to be mapped.
pub type aclrtDrvMemHandle = *mut c_void;
/// Function run on the host when a stream reaches it.
pub type aclrtHostFunc = unsafe extern "C" fn(args: *mut c_void);

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    /// Description of a tensor: view, storage, dtype, format and address.
    aclTensor;
    /// A host scalar of some dtype. Creating one copies the value.
    aclScalar;
    /// An array of int64 on the host. Creating one copies the values.
    aclIntArray;
    /// An array of bool on the host.
    aclBoolArray;
    /// Tensors. Destroying the list destroys them.
    aclTensorList;
    /// A planned call of an operator: phase one makes it, phase two uses it up.
    aclOpExecutor;
}

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $value:ident = $number:expr,)* })*) => {
        $($(#[$doc])* pub type $name = $repr;)*
        $($($(#[$vdoc])* #[allow(missing_docs)] pub const $value: $name = $number;)*)*
        /// Every constant above with its name in C and its value: for checks against headers.
        pub const CONSTANTS: &[(&str, i64)] = &[$($((stringify!($value), $value as i64),)*)*];
    };
}

constants! {
    /// Element type (not HCCL's numbers).
    aclDataType: i32 {
        ACL_DT_UNDEFINED = -1, ACL_FLOAT = 0, ACL_FLOAT16 = 1, ACL_INT8 = 2, ACL_INT32 = 3, ACL_UINT8 = 4,
        ACL_INT16 = 6, ACL_UINT16 = 7, ACL_UINT32 = 8, ACL_INT64 = 9, ACL_UINT64 = 10, ACL_DOUBLE = 11, ACL_BOOL = 12,
        ACL_STRING = 13, ACL_COMPLEX64 = 16, ACL_COMPLEX128 = 17, ACL_BF16 = 27, ACL_INT4 = 29, ACL_UINT1 = 30,
        ACL_COMPLEX32 = 33, ACL_HIFLOAT8 = 34, ACL_FLOAT8_E5M2 = 35, ACL_FLOAT8_E4M3FN = 36, ACL_FLOAT8_E8M0 = 37,
        ACL_FLOAT6_E3M2 = 38, ACL_FLOAT6_E2M3 = 39, ACL_FLOAT4_E2M1 = 40, ACL_FLOAT4_E1M2 = 41,
    }
    /// Memory format of a tensor. We use ND only.
    aclFormat: i32 {
        ACL_FORMAT_UNDEFINED = -1, ACL_FORMAT_NCHW = 0, ACL_FORMAT_NHWC = 1, ACL_FORMAT_ND = 2,
        ACL_FORMAT_NC1HWC0 = 3, ACL_FORMAT_FRACTAL_Z = 4, ACL_FORMAT_FRACTAL_NZ = 29,
    }
    /// Direction of a copy.
    aclrtMemcpyKind: i32 {
        ACL_MEMCPY_HOST_TO_HOST = 0, ACL_MEMCPY_HOST_TO_DEVICE = 1, ACL_MEMCPY_DEVICE_TO_HOST = 2,
        ACL_MEMCPY_DEVICE_TO_DEVICE = 3, ACL_MEMCPY_DEFAULT = 4,
    }
    /// Which pages `aclrtMalloc` takes. Huge pages are 2 MiB.
    aclrtMemMallocPolicy: i32 {
        ACL_MEM_MALLOC_HUGE_FIRST = 0, ACL_MEM_MALLOC_HUGE_ONLY = 1, ACL_MEM_MALLOC_NORMAL_ONLY = 2,
        ACL_MEM_MALLOC_HUGE_FIRST_P2P = 3, ACL_MEM_MALLOC_HUGE_ONLY_P2P = 4, ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5,
    }
    /// A kind of memory, to be asked for or counted.
    aclrtMemAttr: i32 {
        ACL_DDR_MEM = 0, ACL_HBM_MEM = 1, ACL_DDR_MEM_HUGE = 2, ACL_DDR_MEM_NORMAL = 3, ACL_HBM_MEM_HUGE = 4,
        ACL_HBM_MEM_NORMAL = 5,
    }
    /// Flags of `aclrtCreateEventExWithFlag`, to be joined.
    aclrtEventFlag: u32 {
        /// May be waited for by streams.
        ACL_EVENT_SYNC = 1,
        /// May be asked how far a stream is.
        ACL_EVENT_CAPTURE_STREAM_PROGRESS = 2,
        /// Has a time. Slower.
        ACL_EVENT_TIME_LINE = 8,
    }
    /// Whether an event has happened.
    aclrtEventRecordedStatus: i32 { ACL_EVENT_RECORDED_STATUS_NOT_READY = 0, ACL_EVENT_RECORDED_STATUS_COMPLETE = 1, }
    /// Whether a stream has done all of its work.
    aclrtStreamStatus: i32 { ACL_STREAM_STATUS_COMPLETE = 0, ACL_STREAM_STATUS_NOT_READY = 1, }
    /// Flags of `aclrtCreateStreamWithConfig`, to be joined.
    aclrtStreamFlag: u32 {
        ACL_STREAM_FAST_LAUNCH = 1, ACL_STREAM_FAST_SYNC = 2, ACL_STREAM_PERSISTENT = 4, ACL_STREAM_HUGE = 8,
    }
    /// What a stream does after a task failed.
    aclrtStreamFailureMode: u64 { ACL_CONTINUE_ON_FAILURE = 0, ACL_STOP_ON_FAILURE = 1, }
    /// Options of `aclrtSetSysParamOpt`.
    aclSysParamOpt: i32 {
        /// 0 off, 1 deterministic, 2 strong, 3 the same for any batch.
        ACL_OPT_DETERMINISTIC = 0,
        ACL_OPT_ENABLE_DEBUG_KERNEL = 1,
        ACL_OPT_STRONG_CONSISTENCY = 2,
    }
    /// Where memory is.
    aclrtMemLocationType: i32 { ACL_MEM_LOCATION_TYPE_HOST = 0, ACL_MEM_LOCATION_TYPE_DEVICE = 1, }
    /// Granularity asked for.
    aclrtMemGranularityOptions: i32 {
        ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM = 0, ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
    }
}

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct aclrtMemLocation {
    /// Device.
    pub id: u32,
    /// Host or device.
    pub type_: aclrtMemLocationType,
}

/// Properties of physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct aclrtPhysicalMemProp {
    /// 0: cannot be exported.
    pub handleType: i32,
    /// 0: pinned, the only one.
    pub allocationType: i32,
    /// Kind of memory.
    pub memAttr: aclrtMemAttr,
    /// Where.
    pub location: aclrtMemLocation,
    /// 0.
    pub reserve: u64,
}

/// Version of a package.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct aclCANNPackageVersion {
    pub version: [c_char; 128],
    pub majorVersion: [c_char; 64],
    pub minorVersion: [c_char; 64],
    pub releaseVersion: [c_char; 64],
    pub patchVersion: [c_char; 64],
    pub reserved: [c_char; 128],
}

/// `cubeMathType` of matrix products: the inputs' precision is kept.
pub const KEEP_DTYPE: i8 = 0;

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    /// Sizes and offsets as g++ 12 gives them for the vendor's headers on x86-64 and, LP64 too, aarch64.
    #[test]
    fn layouts_are_those_of_the_vendors_headers() {
        assert_eq!((size_of::<aclCANNPackageVersion>(), align_of::<aclCANNPackageVersion>()), (512, 1));
        assert_eq!((size_of::<aclrtMemLocation>(), align_of::<aclrtMemLocation>()), (8, 4));
        assert_eq!(offset_of!(aclrtMemLocation, type_), 4);
        assert_eq!((size_of::<aclrtPhysicalMemProp>(), align_of::<aclrtPhysicalMemProp>()), (32, 8));
        assert_eq!(offset_of!(aclrtPhysicalMemProp, allocationType), 4);
        assert_eq!(offset_of!(aclrtPhysicalMemProp, memAttr), 8);
        assert_eq!(offset_of!(aclrtPhysicalMemProp, location), 12);
        assert_eq!(offset_of!(aclrtPhysicalMemProp, reserve), 24);
    }

    #[test]
    fn no_two_element_types_share_a_number() {
        let types = CONSTANTS.iter().take_while(|(name, _)| *name != "ACL_FORMAT_UNDEFINED");
        let numbers: Vec<i64> = types.map(|(_, n)| *n).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b) && !numbers.contains(&5), "{numbers:?}");
        assert_eq!(numbers.len(), 28);
    }
}
