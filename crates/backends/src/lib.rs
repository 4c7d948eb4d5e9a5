//! The registry of devices: the only crate with features for CUDA and Ascend.

use std::sync::Arc;

use ferrotron_cpu::CpuBackend;
pub use ferrotron_cpu::CpuConfig;
use ferrotron_device::{Backend, Device, DeviceInfo, ProbeError};

/// Names that `--device` takes, in the order in which `auto` tries them.
pub const NAMES: [&str; 3] = ["npu", "cuda", "cpu"];

/// A backend that this build does not have.
struct Absent {
    name: &'static str,
    vendor: &'static str,
}

impl Absent {
    fn why(&self) -> ProbeError {
        ProbeError {
            backend: self.name,
            reason: format!("this version of Ferrotron has no {} device yet", self.vendor),
            searched: vec![],
            remedy: "use --device cpu; README.md says what works and what comes next".into(),
        }
    }
}

impl Backend for Absent {
    fn name(&self) -> &'static str {
        self.name
    }
    fn probe(&self) -> Result<Vec<DeviceInfo>, ProbeError> {
        Err(self.why())
    }
    fn open(&self, _: usize) -> ferrotron_device::Result<Arc<dyn Device>> {
        Err(ferrotron_device::Error::Device { device: self.name.into(), what: self.why().to_string() })
    }
}

/// All backends, in the order of [`NAMES`].
pub fn all(cpu: CpuConfig) -> Vec<Box<dyn Backend>> {
    vec![
        Box::new(Absent { name: "npu", vendor: "Ascend" }),
        Box::new(Absent { name: "cuda", vendor: "CUDA" }),
        Box::new(CpuBackend { config: cpu }),
    ]
}

/// The backend of that name, or with `auto` the first that has a device. An asked-for backend without a device is an
/// error: nothing ever falls back silently.
pub fn select(name: &str, cpu: CpuConfig) -> Result<Box<dyn Backend>, ProbeError> {
    let mut backends = all(cpu);
    if name == "auto" {
        let found = backends.iter().position(|b| b.probe().is_ok_and(|devices| !devices.is_empty()));
        return found.map(|i| backends.swap_remove(i)).ok_or_else(|| unknown("auto: no backend has a device"));
    }
    let i = backends.iter().position(|b| b.name() == name);
    let backend = backends.swap_remove(i.ok_or_else(|| unknown(&format!("no backend is called {name}")))?);
    backend.probe()?;
    Ok(backend)
}

fn unknown(reason: &str) -> ProbeError {
    ProbeError {
        backend: "training",
        reason: reason.into(),
        searched: NAMES.map(String::from).to_vec(),
        remedy: "use --device auto, cpu, npu or cuda".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_finds_the_cpu_and_the_absent_say_why() {
        assert_eq!(select("auto", CpuConfig::default()).unwrap().name(), "cpu");
        let e = select("npu", CpuConfig::default()).err().unwrap().to_string();
        assert!(e.contains("no Ascend device yet") && e.contains("--device cpu"), "{e}");
        assert!(select("tpu", CpuConfig::default()).is_err());
    }
}
