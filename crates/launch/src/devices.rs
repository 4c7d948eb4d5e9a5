//! How many ranks a node gets for `--nproc-per-node auto`, `gpu`, `npu` or `cpu`.

use std::path::Path;

/// The devices that a node shows, counted without any vendor library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ascend dies (`/dev/davinci<N>`, or what `ASCEND_RT_VISIBLE_DEVICES` leaves).
    pub npus: usize,
    /// NVIDIA devices (`/dev/nvidia<N>`, or what `CUDA_VISIBLE_DEVICES` leaves).
    pub gpus: usize,
    /// Processors this process may use.
    pub cpus: usize,
}

impl Counts {
    /// Looks at the device files in `dev` and at the variables that restrict them.
    pub fn of_node(dev: &Path, env: &dyn Fn(&str) -> Option<String>) -> Counts {
        let names: Vec<String> = match dev.read_dir() {
            Ok(entries) => entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect(),
            Err(_) => Vec::new(), // no such folder: no devices
        };
        let count = |prefix: &str, variable: &str| {
            let numbered = |n: &&String| {
                let digits = n.strip_prefix(prefix).unwrap_or_default();
                !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
            };
            let present = names.iter().filter(numbered).count();
            match env(variable) {
                Some(list) => list.split(',').filter(|d| !d.trim().is_empty()).count().min(present),
                None => present,
            }
        };
        Counts {
            npus: count("davinci", "ASCEND_RT_VISIBLE_DEVICES"),
            gpus: count("nvidia", "CUDA_VISIBLE_DEVICES"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
        }
    }

    /// Ranks if each accelerator gets one, 0 without accelerators.
    pub fn accelerators(&self) -> usize {
        if self.npus > 0 { self.npus } else { self.gpus }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_counted_by_number() {
        let dev = std::env::temp_dir().join(format!("ferrotron-devices-{}", std::process::id()));
        std::fs::create_dir_all(&dev).unwrap();
        for name in ["davinci0", "davinci1", "davinci_manager", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia10"] {
            std::fs::write(dev.join(name), "").unwrap();
        }
        let all = Counts::of_node(&dev, &|_| None);
        assert_eq!((all.npus, all.gpus, all.accelerators()), (2, 2, 2));
        let some = Counts::of_node(&dev, &|n| (n == "ASCEND_RT_VISIBLE_DEVICES").then(|| "1".to_string()));
        assert_eq!((some.npus, some.gpus), (1, 2));
        let none = Counts::of_node(&dev.join("nowhere"), &|_| None);
        assert_eq!((none.npus, none.gpus, none.accelerators()), (0, 0, 0));
        assert!(none.cpus >= 1);
        std::fs::remove_dir_all(dev).unwrap();
    }
}
