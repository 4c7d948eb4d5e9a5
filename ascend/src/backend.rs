//! The backend `npu`.

use std::ffi::OsString;
use std::sync::Arc;

use ferrotron_device::{Backend, Device, DeviceInfo, Error, ProbeError, Result};

use crate::{AscendDevice, Cann, Environment, Options};

/// Finds Ascend devices through the CANN of an environment.
#[derive(Clone, Debug, Default)]
pub struct AscendBackend {
    /// Where CANN is looked for.
    pub environment: Environment,
    /// How devices are opened.
    pub options: Options,
}

impl AscendBackend {
    /// As the process's variables say: where CANN is, whether the host waits after every operator (ASCEND_LAUNCH_BLOCKING),
    /// and whether attention is composed even where fused operators suit (FERROTRON_NPU_ATTENTION=composed).
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>, deterministic: bool) -> AscendBackend {
        let blocking = get("ASCEND_LAUNCH_BLOCKING").is_some_and(|v| v == "1");
        let composed_attention = get("FERROTRON_NPU_ATTENTION").is_some_and(|v| v == "composed");
        let options = Options { deterministic, blocking, composed_attention, ..Options::default() };
        AscendBackend { environment: Environment::from_variables(get), options }
    }
}

impl Backend for AscendBackend {
    fn name(&self) -> &'static str {
        "npu"
    }

    fn probe(&self) -> std::result::Result<Vec<DeviceInfo>, ProbeError> {
        let cann = Cann::load(&self.environment)?;
        let chip = cann.chip();
        let cann_version = cann.version.as_deref().unwrap_or("of unknown version");
        let model = format!("{chip} (CANN {cann_version})");
        // memory is known when the device is opened: asking sets it up, which takes seconds
        let info = |i| DeviceInfo { name: format!("npu:{i}"), model: model.clone(), memory: 0, computes: true };
        Ok((0..cann.devices()?).map(info).collect())
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        let failed = |e: ProbeError| Error::Device { device: format!("npu:{ordinal}"), what: e.to_string() };
        let cann = Cann::load(&self.environment).map_err(failed)?;
        Ok(Arc::new(AscendDevice::open_with(Arc::new(cann), ordinal, self.options)?))
    }
}
