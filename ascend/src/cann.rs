//! CANN, loaded.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use ferrotron_acl_sys::{self as acl, Acl, CANN, Environment, Nn, OpApi, code};
use ferrotron_device::ProbeError;
use ferrotron_dynlib::{Library, NotFound, Search};

const INSTALL: &str = "install CANN 8.0 or later (toolkit and the kernels package of the chip) and source its set_env.sh, \
     or set ASCEND_HOME_PATH; docs/ascend.md has the steps. --device cpu needs nothing";

/// The tables of CANN's functions, and what is known of the installation.
pub struct Cann {
    /// The runtime.
    pub acl: Acl,
    /// Objects of operators.
    pub nn: Nn,
    /// Operators.
    pub ops: OpApi,
    /// What the runtime calls its version, if it does.
    pub version: Option<String>,
}

fn absent(reason: String, searched: Vec<String>) -> ProbeError {
    ProbeError { backend: "npu", reason, searched, remedy: INSTALL.into() }
}

fn open(search: Search) -> Result<Arc<Library>, ProbeError> {
    let not_found = |e: NotFound| {
        absent(format!("cannot load {}", e.names.join(" or ")), e.tried.iter().map(|t| t.to_string()).collect())
    };
    search.open().map(Arc::new).map_err(not_found)
}

impl Cann {
    /// Loads the libraries, checks the version and initialises the runtime. Never panics.
    pub fn load(environment: &Environment) -> Result<Cann, ProbeError> {
        let runtime = open(environment.runtime())?;
        let acl = Acl::load(&[runtime]).map_err(|e| absent(e.to_string(), vec![]))?;
        let base = open(environment.nnopbase())?;
        let nn = Nn::load(&[base]).map_err(|e| absent(e.to_string(), vec![]))?;
        let operators: Vec<Arc<Library>> =
            environment.operators().iter().filter_map(|s| s.open().ok().map(Arc::new)).collect();
        if operators.is_empty() {
            let searched = environment.operators().iter().flat_map(Search::candidates).collect();
            return Err(absent("there is no library of operators".into(), searched));
        }
        let version = version(&acl);
        if let Some(v) = &version {
            CANN.check_text(v).map_err(|e| absent(e.to_string(), vec![]))?;
        }
        // SAFETY: null means the defaults.
        let status = unsafe { (acl.aclInit)(std::ptr::null()) };
        if status != code::OK && status != code::REPEAT_INITIALIZE {
            return Err(absent(format!("aclInit fails: {}", code::explain(status)), vec![]));
        }
        let cann = Cann { acl, nn, ops: OpApi::load(&operators), version };
        if status == code::REPEAT_INITIALIZE {
            cann.take_error(); // not ours to report, and it would stand before the next error's text
        }
        Ok(cann)
    }

    /// Devices visible to this process.
    pub fn devices(&self) -> Result<u32, ProbeError> {
        let mut count = 0;
        // SAFETY: an out-parameter.
        let status = unsafe { (self.acl.aclrtGetDeviceCount)(&mut count) };
        if status != code::OK {
            return Err(absent(format!("aclrtGetDeviceCount fails: {}", code::explain(status)), vec![]));
        }
        if count == 0 {
            return Err(absent("no device is visible: see npu-smi info and ASCEND_RT_VISIBLE_DEVICES".into(), vec![]));
        }
        Ok(count)
    }

    /// The chip, `Ascend910B3`.
    pub fn chip(&self) -> String {
        // SAFETY: the runtime gives a C string that lives as long as it, or null.
        text(unsafe { (self.acl.aclrtGetSocName)() }).unwrap_or_else(|| "Ascend".into())
    }

    /// This thread's error text, which the call clears.
    pub(crate) fn take_error(&self) -> Option<String> {
        // SAFETY: as above; the text lives until the next call on this thread.
        text(unsafe { (self.acl.aclGetRecentErrMsg)() })
    }
}

/// What the runtime calls its version. The function is not in every release.
fn version(acl: &Acl) -> Option<String> {
    let Some(get) = acl.aclsysGetVersionStr else { return older_version(acl) };
    let mut package = *b"runtime\0";
    let mut buffer = [0u8; 256];
    // SAFETY: a C string, and a buffer of twice the 128 bytes that the interface asks for.
    let status = unsafe { get(package.as_mut_ptr().cast::<c_char>(), buffer.as_mut_ptr().cast()) };
    let text = CStr::from_bytes_until_nul(&buffer).ok()?.to_str().ok()?;
    (status == code::OK && !text.is_empty()).then(|| text.to_string())
}

/// The same, from releases before 8.5.
fn older_version(acl: &Acl) -> Option<String> {
    let get = acl.aclsysGetCANNVersion?;
    // twice the struct: releases may have let it grow
    let mut buffer = [0u8; 2 * size_of::<acl::aclCANNPackageVersion>()];
    // SAFETY: an out-parameter with room to spare; 0 is CANN itself. The struct has bytes only.
    let status = unsafe { get(0, buffer.as_mut_ptr().cast()) };
    let text = CStr::from_bytes_until_nul(&buffer).ok()?.to_str().ok()?;
    (status == code::OK && !text.is_empty()).then(|| text.to_string())
}

fn text(p: *const c_char) -> Option<String> {
    if p.is_null() {
        return None;
    }
    // SAFETY: not null, and by the callers' contract a C string.
    Some(unsafe { CStr::from_ptr(p) }.to_string_lossy().trim().to_string())
}

/// aclnn's element type of ours.
pub(crate) fn element(dtype: ferrotron_device::DType) -> acl::aclDataType {
    use ferrotron_device::DType;
    match dtype {
        DType::F32 => acl::ACL_FLOAT,
        DType::BF16 => acl::ACL_BF16,
        DType::F16 => acl::ACL_FLOAT16,
        DType::F64 => acl::ACL_DOUBLE,
        DType::I64 => acl::ACL_INT64,
        DType::I32 => acl::ACL_INT32,
        DType::U8 => acl::ACL_UINT8,
    }
}
