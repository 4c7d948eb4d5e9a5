//! Ranks as threads, each with a device of the mock, a stream and a communicator.

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use ferrotron_acl_sys::{self as acl, Acl, Environment};
use ferrotron_dynlib::Library;
use ferrotron_hccl_sys::{CommConfig, Hccl, HcclComm, HcclResult, HcclRootInfo, searches};

/// One rank.
pub struct Rank {
    pub acl: Acl,
    pub hccl: Hccl,
    pub rank: usize,
    pub stream: acl::aclrtStream,
    pub comm: HcclComm,
}

/// The tables, from an installation.
pub fn tables(home: &Path) -> (Acl, Hccl) {
    let e = Environment::only(home);
    let open = |s: ferrotron_dynlib::Search| Arc::new(s.open().unwrap());
    let acl = Acl::load(&[open(e.runtime())]).unwrap();
    let libraries: Vec<Arc<Library>> = searches(&e).iter().filter_map(|s| s.open().ok().map(Arc::new)).collect();
    // SAFETY: null means the defaults; a second call is refused and harms nothing.
    unsafe { (acl.aclInit)(std::ptr::null()) };
    (acl, Hccl::load(&libraries).unwrap())
}

impl Rank {
    /// Sets the device up and joins the communicator.
    pub fn join(home: &Path, ranks: usize, rank: usize, info: &HcclRootInfo) -> Result<Rank, HcclResult> {
        let (acl, hccl) = tables(home);
        let (mut stream, mut comm) = (std::ptr::null_mut(), std::ptr::null_mut());
        let config = CommConfig { buffer_mib: Some(64), name: "test".into(), ..CommConfig::default() };
        // SAFETY: no arguments.
        let capability = unsafe { hccl.HcclGetCommConfigCapability.unwrap()() };
        let config = config.layout(8, capability).unwrap();
        let init = hccl.HcclCommInitRootInfoConfig.unwrap();
        // SAFETY: out-parameters and a configuration of version 8.
        unsafe {
            assert_eq!((acl.aclrtSetDevice)(rank as i32), 0);
            assert_eq!((acl.aclrtCreateStreamWithConfig)(&mut stream, 0, 1), 0);
            match init(ranks as u32, info, rank as u32, config.as_ptr(), &mut comm) {
                0 => Ok(Rank { acl, hccl, rank, stream, comm }),
                e => {
                    let text = (acl.aclGetRecentErrMsg)();
                    if !text.is_null() {
                        println!("{}", std::ffi::CStr::from_ptr(text).to_string_lossy());
                    }
                    Err(e)
                }
            }
        }
    }

    /// Device memory with these values.
    pub fn put(&self, values: &[f32]) -> *mut c_void {
        let (mut at, n) = (std::ptr::null_mut(), size_of_val(values));
        // SAFETY: an out-parameter; the block has `n` bytes.
        unsafe {
            assert_eq!((self.acl.aclrtMalloc)(&mut at, n, 0), 0);
            let kind = acl::ACL_MEMCPY_HOST_TO_DEVICE;
            assert_eq!((self.acl.aclrtMemcpy)(at, n, values.as_ptr().cast(), n, kind), 0);
        }
        at
    }

    /// Waits for the stream, then reads device memory.
    pub fn get(&self, at: *mut c_void, n: usize) -> Result<Vec<f32>, i32> {
        let mut values = vec![f32::NAN; n];
        // SAFETY: the block has `n` floats.
        unsafe {
            match (self.acl.aclrtSynchronizeStream)(self.stream) {
                0 => {}
                e => return Err(e),
            }
            let kind = acl::ACL_MEMCPY_DEVICE_TO_HOST;
            assert_eq!((self.acl.aclrtMemcpy)(values.as_mut_ptr().cast(), 4 * n, at, 4 * n, kind), 0);
        }
        Ok(values)
    }

    /// An error that came after the call.
    pub fn async_error(&self) -> HcclResult {
        let mut error = -1;
        // SAFETY: an out-parameter.
        assert_eq!(unsafe { self.hccl.HcclGetCommAsyncError.unwrap()(self.comm, &mut error) }, 0);
        error
    }
}

/// What rank 0 sends to the others.
pub fn root_info(home: &Path) -> HcclRootInfo {
    let (acl, hccl) = tables(home);
    let mut info = HcclRootInfo { internal: [0; ferrotron_hccl_sys::HCCL_ROOT_INFO_BYTES] };
    // SAFETY: an out-parameter; the device is set first, as the interface asks.
    unsafe {
        assert_eq!((acl.aclrtSetDevice)(0), 0);
        assert_eq!((hccl.HcclGetRootInfo)(&mut info), 0);
    }
    info
}

/// Runs `f` as every rank of a communicator.
pub fn run<T: Send>(home: &Path, ranks: usize, f: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    let info = root_info(home);
    std::thread::scope(|scope| {
        let (f, info) = (&f, &info);
        let body = move |rank| {
            let r = Rank::join(home, ranks, rank, info).unwrap();
            let out = f(&r);
            // SAFETY: the communicator and stream are this rank's, and this is their last use.
            unsafe {
                assert_eq!((r.hccl.HcclCommDestroy)(r.comm), 0);
                assert_eq!((r.acl.aclrtDestroyStream)(r.stream), 0);
            }
            out
        };
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}
