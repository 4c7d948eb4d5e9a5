//! NVTX: its library is looked for where CUDA's are.

use std::ffi::OsString;

use ferrotron_cuda_sys::Environment;
use ferrotron_nvtx_sys::{INJECTION_VARIABLE, LIBRARIES, NoNvtx, Nvtx};

/// The way to the profiler that started this process, from variables that `get` reads. It needs no device.
///
/// # Errors
/// Nobody would hear: why, and what to do.
pub fn nvtx(get: impl Fn(&str) -> Option<OsString>) -> Result<Nvtx, NoNvtx> {
    let libraries = Environment::from_variables(&get).search(&LIBRARIES);
    Nvtx::open(&libraries, get(INJECTION_VARIABLE))
}
