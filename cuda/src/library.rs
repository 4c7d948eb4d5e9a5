//! The driver and cublasLt, loaded.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use ferrotron_cuda_sys::{CublasLt, Driver, Environment, Profiler, code};
use ferrotron_device::ProbeError;
use ferrotron_dynlib::{Library, Search};

const INSTALL: &str = "install NVIDIA's driver for CUDA 12.0 or later (525) and cublasLt of CUDA 12 or 13 (cuda-libraries, or \
     pip install nvidia-cublas and its folder in LD_LIBRARY_PATH), or set CUDA_HOME; docs/cuda.md has the steps. \
     --device cpu needs nothing";
/// The oldest CUDA that a driver must serve: the PTX of the kernels is of this version.
const OLDEST_CUDA: i32 = 12000;
/// The oldest cublasLt.
const OLDEST_CUBLAS: usize = 120000;

/// The tables of functions, and what is known of the installation.
pub struct Cuda {
    /// The driver.
    pub driver: Driver,
    /// Matrix products.
    pub blas: CublasLt,
    /// The driver's switch for profilers, where it has one.
    pub profiler: Option<Profiler>,
    /// Newest CUDA that the driver serves: 13000 is 13.0.
    pub version: i32,
    /// Where the libraries were looked for, and others are.
    pub environment: Environment,
}

fn absent(reason: String, searched: Vec<String>) -> ProbeError {
    ProbeError { backend: "cuda", reason, searched, remedy: INSTALL.into() }
}

fn open(search: &Search) -> Result<Arc<Library>, ProbeError> {
    search.open().map(Arc::new).map_err(|e| {
        absent(format!("cannot load {}", e.names.join(" or ")), e.tried.iter().map(|t| t.to_string()).collect())
    })
}

/// 12.4 of 12040.
fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl Cuda {
    /// Loads the libraries, checks their versions and initialises the driver. Never panics.
    pub fn load(environment: &Environment) -> Result<Cuda, ProbeError> {
        let library = open(&environment.driver())?;
        let profiler = Profiler::load(std::slice::from_ref(&library)).ok();
        let driver = Driver::load(&[library]).map_err(|e| absent(e.to_string(), vec![]))?;
        let mut version = 0;
        // SAFETY: the one call that needs no initialisation; an out-parameter.
        let status = unsafe { (driver.cuDriverGetVersion)(&mut version) };
        if status != code::SUCCESS || version < OLDEST_CUDA {
            let (has, wants) = (dotted(version), dotted(OLDEST_CUDA));
            return Err(absent(format!("the driver serves CUDA {has}, {wants} is the first that serves"), vec![]));
        }
        // SAFETY: no arguments but flags, which are 0.
        let status = unsafe { (driver.cuInit)(0) };
        if status != code::SUCCESS {
            return Err(absent(format!("cuInit fails: {}", explain(&driver, status)), vec![]));
        }
        let blas = open(&environment.cublas_lt())?;
        let blas = CublasLt::load(&[blas]).map_err(|e| absent(e.to_string(), vec![]))?;
        // SAFETY: no arguments.
        let found = unsafe { (blas.cublasLtGetVersion)() };
        if found < OLDEST_CUBLAS {
            return Err(absent(
                format!("cublasLt is of version {found}, {OLDEST_CUBLAS} is the first that serves"),
                vec![],
            ));
        }
        Ok(Cuda { driver, blas, profiler, version, environment: environment.clone() })
    }

    /// Devices visible to this process.
    pub fn devices(&self) -> Result<usize, ProbeError> {
        let mut count = 0;
        // SAFETY: an out-parameter.
        let status = unsafe { (self.driver.cuDeviceGetCount)(&mut count) };
        if status != code::SUCCESS || count <= 0 {
            let status = if status == code::SUCCESS { code::NO_DEVICE } else { status };
            return Err(absent(format!("no device is visible: {}", explain(&self.driver, status)), vec![]));
        }
        Ok(count.unsigned_abs() as usize)
    }

    /// The model of a device, with its compute capability and the driver's CUDA.
    pub fn model(&self, ordinal: usize) -> String {
        let (mut device, mut name) = (0, [0u8; 128]);
        // SAFETY: out-parameters, a buffer of its size.
        let named = unsafe {
            (self.driver.cuDeviceGet)(&mut device, ordinal as i32) == code::SUCCESS
                && (self.driver.cuDeviceGetName)(name.as_mut_ptr().cast(), 128, device) == code::SUCCESS
        };
        let name = CStr::from_bytes_until_nul(&name).ok().filter(|_| named);
        let name = name.map_or("a GPU".into(), |n| n.to_string_lossy());
        let (major, minor) = self.capability(device);
        format!("{name} (compute capability {major}.{minor}, CUDA {})", dotted(self.version))
    }

    /// Compute capability of a device.
    pub fn capability(&self, device: i32) -> (i32, i32) {
        use ferrotron_cuda_sys as sys;
        let major = self.attribute(device, sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        (major, self.attribute(device, sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
    }

    /// A number that the driver knows of a device, 0 when it does not tell.
    pub fn attribute(&self, device: i32, attribute: i32) -> i32 {
        let mut value = 0;
        // SAFETY: an out-parameter.
        let status = unsafe { (self.driver.cuDeviceGetAttribute)(&mut value, attribute, device) };
        if status == code::SUCCESS { value } else { 0 }
    }
}

/// A code in the driver's words and ours.
pub(crate) fn explain(driver: &Driver, status: i32) -> String {
    let text = |get: unsafe extern "C" fn(i32, *mut *const c_char) -> i32| {
        let mut text = std::ptr::null();
        // SAFETY: an out-parameter; the driver gives a C string that lives as long as it, or leaves null.
        unsafe {
            let known = get(status, &mut text) == code::SUCCESS && !text.is_null();
            known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    let name = text(driver.cuGetErrorName).unwrap_or_else(|| "an unknown code".into());
    let words = text(driver.cuGetErrorString).map_or(String::new(), |w| format!(" ({w})"));
    format!("{status} {name}{words}: {}", code::advice(status))
}
