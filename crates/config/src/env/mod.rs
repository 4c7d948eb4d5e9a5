//! The environment variables that a run reads, taken once at the top of the program and passed down.

mod variables;

use serde::Serialize;

pub use variables::{Role, Shape, VARIABLES, Variable, Vendor, suspicious};

use crate::settings::DeviceKind;
use crate::violation::{Severity, Violation};

/// Ranks and threads as a launcher states them (torchrun's names), and every known variable that is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// `WORLD_SIZE`, 1 when absent.
    pub world_size: usize,
    /// `RANK`, 0 when absent.
    pub rank: usize,
    /// `LOCAL_RANK`, 0 when absent.
    pub local_rank: usize,
    /// `MASTER_ADDR`.
    pub master_addr: Option<String>,
    /// `MASTER_PORT`.
    pub master_port: Option<u16>,
    /// `OMP_NUM_THREADS`: threads of the CPU device.
    pub omp_num_threads: Option<usize>,
    /// Known variables that are set and legal, in the order of [`VARIABLES`]: name and value.
    pub set: Vec<(&'static str, String)>,
}

impl Default for Environment {
    /// One rank.
    fn default() -> Environment {
        Environment {
            world_size: 1,
            rank: 0,
            local_rank: 0,
            master_addr: None,
            master_port: None,
            omp_num_threads: None,
            set: Vec::new(),
        }
    }
}

impl Environment {
    /// Reads the variables through `get` (in a program: `|name| std::env::var(name).ok()`); also returns what is wrong.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> (Environment, Vec<Violation>) {
        let mut faults = Vec::new();
        let mut set = Vec::new();
        for variable in VARIABLES {
            let name = variable.name;
            let Some(value) = get(name) else { continue };
            // Launchers and scripts export empty numbers for "not set"; an empty device list hides all devices.
            if value.trim().is_empty() && variable.shape != Shape::Devices {
                continue;
            }
            match variable.shape.fault(&value) {
                None => set.push((name, value)),
                Some(legal) => {
                    let what = format!("environment variable {name}='{value}' is not {legal}");
                    faults.push(Violation::new(Severity::Invalid, &[name], what).why(variable.help));
                }
            }
        }
        let mut environment = Environment { set, ..Environment::default() };
        let number = |name: &str| environment.value(name).and_then(|v| v.trim().parse::<usize>().ok());
        let (world_size, rank) = (number("WORLD_SIZE").unwrap_or(1), number("RANK").unwrap_or(0));
        let (local_rank, omp_num_threads) = (number("LOCAL_RANK").unwrap_or(0), number("OMP_NUM_THREADS"));
        let master_port = number("MASTER_PORT").and_then(|p| u16::try_from(p).ok());
        environment.master_addr = environment.value("MASTER_ADDR").map(str::to_string);
        (environment.world_size, environment.rank, environment.local_rank) = (world_size, rank, local_rank);
        (environment.omp_num_threads, environment.master_port) = (omp_num_threads, master_port);
        if rank >= world_size {
            let what = format!("RANK={rank} is not below WORLD_SIZE={world_size}");
            faults.push(Violation::new(Severity::Invalid, &["RANK", "WORLD_SIZE"], what));
        }
        (environment, faults)
    }

    /// The value of a known variable, if set.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
    }

    /// One line a variable that is set, with what it does on this device: for the log at start. Empty when none is set.
    ///
    /// `device` must be resolved; with [`DeviceKind::Auto`] a vendor's variables are said to go to its library.
    pub fn lines(&self, device: DeviceKind) -> Vec<String> {
        let line = |(name, value): &(&'static str, String)| {
            let variable = variables::find(name)?;
            let effect = match (variable.role, device) {
                (Role::Acts, _) => variable.help.to_string(),
                (Role::NoEffect(why), _) => format!("no effect: {why}"),
                (Role::Library(Vendor::Ascend), DeviceKind::Cpu | DeviceKind::Cuda) => {
                    "no effect on this device".to_string()
                }
                (Role::Library(Vendor::Nvidia), DeviceKind::Cpu | DeviceKind::Npu) => {
                    "no effect on this device".to_string()
                }
                (Role::Library(Vendor::Ascend), _) => format!("passed to CANN: {}", variable.help),
                (Role::Library(Vendor::Nvidia), _) => format!("passed to CUDA and NCCL: {}", variable.help),
            };
            Some(format!("environment: {name}={value} ({effect})"))
        };
        self.set.iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> (Environment, Vec<Violation>) {
        Environment::from_vars(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn reads_torchruns_names_and_reports_nonsense() {
        let (env, faults) =
            read(&[("WORLD_SIZE", "8"), ("RANK", "3"), ("MASTER_PORT", "29500"), ("OMP_NUM_THREADS", "0")]);
        assert_eq!((env.world_size, env.rank, env.master_port, env.omp_num_threads), (8, 3, Some(29500), None));
        assert!(faults.len() == 1 && faults[0].what.contains("OMP_NUM_THREADS='0'"));
        let (env, faults) = read(&[("RANK", "2"), ("WORLD_SIZE", "")]);
        assert_eq!((env.world_size, faults.len()), (1, 1));
        let (_, faults) =
            read(&[("HCCL_BUFFSIZE", "abc"), ("NCCL_DEBUG", "LOUD"), ("CUDA_DEVICE_MAX_CONNECTIONS", "x")]);
        assert_eq!(faults.len(), 3, "every one is reported");
        assert!(faults[0].what.contains("HCCL_BUFFSIZE='abc' is not a whole number from 1 to"), "{}", faults[0].what);
    }

    #[test]
    fn what_is_set_is_shown_with_its_effect() {
        let (env, faults) = read(&[
            ("HCCL_BUFFSIZE", "512"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
            ("OMP_NUM_THREADS", "2"),
            ("TASK_QUEUE_ENABLE", "1"),
        ]);
        assert_eq!(faults, []);
        assert_eq!(
            env.lines(DeviceKind::Cpu),
            [
                "environment: OMP_NUM_THREADS=2 (threads of the CPU device)",
                "environment: HCCL_BUFFSIZE=512 (no effect on this device)",
                "environment: TASK_QUEUE_ENABLE=1 (no effect: tunes torch_npu, which is not there)",
                "environment: CUDA_DEVICE_MAX_CONNECTIONS=1 (no effect on this device)",
            ]
        );
        assert!(env.lines(DeviceKind::Npu)[1].contains("passed to CANN: MB of a communicator's buffer"));
        assert!(env.lines(DeviceKind::Cuda)[3].contains("passed to CUDA and NCCL"));
    }
}
