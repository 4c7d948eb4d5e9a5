//! The backend `cuda`.

use std::sync::Arc;

use ferrotron_device::{Backend, Device, DeviceInfo, Error, ProbeError, Result};

use crate::{Cuda, CudaDevice, Environment};

/// Finds CUDA devices through the driver of an environment.
#[derive(Clone, Debug, Default)]
pub struct CudaBackend {
    /// Where the libraries are looked for.
    pub environment: Environment,
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
        let failed = |e: ProbeError| Error::Device { device: format!("cuda:{ordinal}"), what: e.to_string() };
        let cuda = Cuda::load(&self.environment).map_err(failed)?;
        Ok(Arc::new(CudaDevice::open(Arc::new(cuda), ordinal, None)?))
    }
}
