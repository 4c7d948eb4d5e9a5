//! The registry of devices: the only crate that names them.
//!
//! No vendor's library is needed to build: each backend looks for its own at run time, and says what it looked for.

mod collectives;
mod ranges;
mod self_test;

use std::sync::Arc;

pub use collectives::Collectives;
use ferrotron_ascend::AscendBackend;
use ferrotron_cpu::CpuBackend;
pub use ferrotron_cpu::CpuConfig;
use ferrotron_cuda::CudaBackend;
pub use ferrotron_cuda::NoNvtx;
use ferrotron_device::{Backend, Device, DeviceInfo, Error, ProbeError};
pub use ranges::Ranges;
pub use self_test::self_test;

/// Names that `--device` takes, in the order in which `auto` tries them.
pub const NAMES: [&str; 3] = ["npu", "cuda", "cpu"];

/// How devices are opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOptions {
    /// Threads of the CPU.
    pub cpu: CpuConfig,
    /// Sums in a fixed order, on devices that are faster without. The CPU's always are.
    pub deterministic: bool,
}

/// One line for each code of a vendor in the words, which may be a whole message: those of CANN and HCCL, of CUDA, NCCL and
/// the GPU's driver.
pub fn explain<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let words: Vec<&str> = words.into_iter().collect();
    let mut lines = ferrotron_ascend::explain(words.iter().copied());
    lines.extend(ferrotron_cuda::explain(words));
    lines
}

/// All backends, in the order of [`NAMES`].
pub fn all(o: &DeviceOptions) -> Vec<Box<dyn Backend>> {
    let get = |name: &str| std::env::var_os(name);
    vec![
        Box::new(AscendBackend::from_variables(get, o.deterministic)),
        Box::new(CudaBackend::from_variables(get)),
        Box::new(CpuBackend { config: o.cpu }),
    ]
}

/// A backend that has a device, and why it was taken.
pub struct Choice {
    backend: Box<dyn Backend>,
    /// Its devices.
    pub devices: Vec<DeviceInfo>,
    /// One line for each backend that `auto` looked at, the one taken last. Empty when the user named one.
    pub why: Vec<String>,
}

impl Choice {
    /// `npu`, `cuda` or `cpu`.
    pub fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// The device of the rank with this number on its host: one each; the CPU is shared by all.
    pub fn open(&self, local_rank: usize) -> ferrotron_device::Result<Arc<dyn Device>> {
        if self.name() == "cpu" {
            return self.backend.open(0);
        }
        let (name, n) = (self.name(), self.devices.len());
        if local_rank >= n {
            let what = format!(
                "rank {local_rank} of this host has no device of its own, for {n} are visible; start at most {n} ranks \
                 on a host, and show every rank all of its host's devices (ASCEND_RT_VISIBLE_DEVICES, \
                 CUDA_VISIBLE_DEVICES)"
            );
            return Err(Error::Device { device: format!("{name}:{local_rank}"), what });
        }
        self.backend.open(local_rank)
    }
}

/// The backend of that name, or with `auto` the first that has a device. An asked-for backend without a device is an
/// error: nothing ever falls back silently.
pub fn select(name: &str, o: &DeviceOptions) -> Result<Choice, ProbeError> {
    choose(name, all(o))
}

fn choose(name: &str, backends: Vec<Box<dyn Backend>>) -> Result<Choice, ProbeError> {
    if name != "auto" {
        let named = backends.into_iter().find(|b| b.name() == name);
        let backend = named.ok_or_else(|| unknown(&format!("no backend is called {name}")))?;
        let devices = backend.probe()?;
        return Ok(Choice { backend, devices, why: vec![] });
    }
    let mut why = vec![];
    for backend in backends {
        match backend.probe() {
            Ok(devices) if !devices.is_empty() => {
                let models = devices.first().map_or("", |d| d.model.as_str());
                why.push(format!("--device auto takes {}: {} of {models}", backend.name(), devices.len()));
                return Ok(Choice { backend, devices, why });
            }
            Ok(_) => why.push(format!("--device auto passes over {}: there is none", backend.name())),
            Err(e) => {
                let reason = e.reason.lines().next().unwrap_or_default();
                let searched = match e.searched.len() {
                    0 => String::new(),
                    n => format!(" ({n} places searched; --device {} lists them)", backend.name()),
                };
                why.push(format!("--device auto passes over {}: {reason}{searched}", backend.name()));
            }
        }
    }
    Err(unknown(&why.join("; ")))
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
    use ferrotron_ascend::Environment;

    use super::*;

    fn cpu_only() -> Vec<Box<dyn Backend>> {
        let mut backends = all(&DeviceOptions::default());
        backends[0] =
            Box::new(AscendBackend { environment: Environment::only("/nowhere/cann"), ..AscendBackend::default() });
        backends[1] = Box::new(CudaBackend::new(ferrotron_cuda::Environment::only("/nowhere/cuda")));
        backends
    }

    #[test]
    fn auto_finds_the_cpu_and_says_why_not_the_others() {
        let choice = choose("auto", cpu_only()).unwrap();
        assert_eq!((choice.name(), choice.why.len()), ("cpu", 3));
        assert!(
            choice.why[0].starts_with(
                "--device auto passes over npu: cannot load libascendcl.so or libacl_rt.so (2 places searched"
            ),
            "{:?}",
            choice.why
        );
        assert!(choice.why[1].contains("passes over cuda: cannot load libcuda.so.1 (1 places searched"));
        assert!(choice.why[2].starts_with("--device auto takes cpu: 1 of "), "{:?}", choice.why);
    }

    #[test]
    fn an_absent_device_that_was_asked_for_is_an_error() {
        let e = choose("npu", cpu_only()).err().unwrap().to_string();
        assert!(e.contains("searched /nowhere/cann/lib64/libascendcl.so") && e.contains("set_env.sh"), "{e}");
        let e = choose("cuda", cpu_only()).err().unwrap().to_string();
        assert!(e.contains("searched /nowhere/cuda/lib64/libcuda.so.1") && e.contains("driver for CUDA 12.0"), "{e}");
        assert!(choose("tpu", cpu_only()).is_err());
    }

    #[test]
    fn ranks_share_the_cpu_and_nothing_else() {
        let choice = choose("cpu", cpu_only()).unwrap();
        assert_eq!(choice.open(5).unwrap().info().name, "cpu:0");
        let absent = cpu_only().remove(1);
        let two = DeviceInfo { name: "cuda:0".into(), model: String::new(), memory: 0, computes: true };
        let choice = Choice { backend: absent, devices: vec![two.clone(), two], why: vec![] };
        let e = choice.open(2).err().unwrap().to_string();
        assert!(e.contains("cuda:2: rank 2 of this host") && e.contains("2 are visible"), "{e}");
    }
}
