//! The backend `cuda`.

use std::ffi::OsString;
use std::sync::Arc;

use ferrotron_device::{Backend, Device, DeviceInfo, Error, ProbeError, Result};

use crate::{Cuda, CudaDevice, Environment, KernelOptions};

/// Finds CUDA devices through the driver of an environment.
#[derive(Clone, Debug)]
pub struct CudaBackend {
    /// Where the libraries are looked for.
    pub environment: Environment,
    /// How devices get their kernels, or why what the variables say makes no sense: told when a device is opened.
    pub kernels: std::result::Result<KernelOptions, String>,
}

impl CudaBackend {
    /// With the libraries of an environment; kernels in any form, and nothing that is compiled is kept.
    pub fn new(environment: Environment) -> CudaBackend {
        CudaBackend { environment, kernels: Ok(KernelOptions::default()) }
    }

    /// As the process's variables say, which `get` reads.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> CudaBackend {
        let kernels = KernelOptions::from_variables(&get);
        CudaBackend { environment: Environment::from_variables(get), kernels }
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn probe(&self) -> std::result::Result<Vec<DeviceInfo>, ProbeError> {
        let cuda = Cuda::load(&self.environment)?;
        // memory is known when the device is opened: the driver makes a context first, which takes a second
        let info = |i| DeviceInfo { name: format!("cuda:{i}"), model: cuda.model(i), memory: 0, computes: true };
        Ok((0..cuda.devices()?).map(info).collect())
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        let failed = |what: String| Error::Device { device: format!("cuda:{ordinal}"), what };
        let kernels = self.kernels.as_ref().map_err(|why| failed(why.clone()))?;
        let cuda = Cuda::load(&self.environment).map_err(|e| failed(e.to_string()))?;
        Ok(Arc::new(CudaDevice::open_with(Arc::new(cuda), ordinal, None, kernels)?))
    }
}
