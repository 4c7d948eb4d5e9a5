//! The hosts and devices of a run given deepspeed's way, and the ranks of a node given anybody's.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{MAX_NODES, Reader};
use crate::hosts::{self, HostSlots, MAX_SLOTS};

/// Hosts of a deepspeed command line.
pub(super) struct Pool {
    /// In the order of node ranks.
    pub list: Vec<HostSlots>,
    /// Whether they are reached from here, or each has a launcher of its own (`--no-ssh`).
    pub reached: bool,
}

impl Reader<'_> {
    /// The hosts of the run, if it is given deepspeed's way.
    pub(super) fn hosts(&mut self) -> Option<Pool> {
        let deepspeed = self.typed.has("deepspeed");
        let file = self.typed.get("hostfile").map(PathBuf::from);
        let default = PathBuf::from("/job/hostfile");
        let file = file.or_else(|| (deepspeed && default.exists()).then_some(default));
        let filtered = self.typed.get("include").is_some() || self.typed.get("exclude").is_some();
        if file.is_none() && !filtered {
            return None;
        }
        let from_file = file.is_some();
        let list = match file {
            Some(path) => self.read_hostfile(&path)?,
            None => {
                let devices = self.ranks_per_node(true).ok()?;
                vec![HostSlots { name: "localhost".to_string(), devices: (0..devices).collect() }]
            }
        };
        let list = match hosts::filter(list, self.typed.get("include"), self.typed.get("exclude")) {
            Ok(list) => list,
            Err(faults) => {
                self.faults.extend(faults);
                return None;
            }
        };
        let list = if from_file { self.shorten(list)? } else { list };
        let reached = !self.typed.has("no-ssh") && from_file && (list.len() > 1 || self.typed.has("force-multi"));
        Some(Pool { list, reached })
    }

    pub(super) fn read_hostfile(&mut self, path: &Path) -> Option<Vec<HostSlots>> {
        let label = path.display().to_string();
        let mut text = String::new();
        let read = std::fs::File::open(self.around.cwd.join(path))
            .and_then(|f| f.take(hosts::MAX_HOSTFILE).read_to_string(&mut text));
        if let Err(e) = read {
            self.fault(&["--hostfile"], format!("cannot read the hostfile {label}: {e}"), "lines `name slots=N`");
            return None;
        }
        match hosts::parse_hostfile(&label, &text) {
            Ok(list) => Some(list),
            Err(faults) => {
                self.faults.extend(faults);
                None
            }
        }
    }

    /// `--num-nodes` and `--num-gpus` over a hostfile.
    pub(super) fn shorten(&mut self, mut list: Vec<HostSlots>) -> Option<Vec<HostSlots>> {
        let nodes = self.number("num-nodes", 1..=MAX_NODES);
        let devices = self.number("num-gpus", 1..=MAX_SLOTS);
        if let Ok(Some(n)) = nodes {
            if n > list.len() {
                let what = format!("--num-nodes {n} asks for more hosts than the {} there are", list.len());
                self.fault(&["--num-nodes", "--hostfile"], what, &format!("1 to {}", list.len()));
            }
            list.truncate(n);
        }
        if let Ok(Some(n)) = devices {
            if let Some(host) = list.iter().filter(|h| h.devices.len() < n).min_by_key(|h| h.devices.len()) {
                let what = format!("--num-gpus {n}, but {} has {} slots", host.name, host.devices.len());
                self.fault(&["--num-gpus", "--hostfile"], what, &format!("1 to {}", host.devices.len()));
            }
            list.iter_mut().for_each(|h| h.devices.truncate(n));
        }
        (nodes.is_ok() && devices.is_ok()).then_some(list)
    }

    /// Ranks of this node by the flags of all launchers. `all_devices`: the default of deepspeed.
    pub(super) fn ranks_per_node(&mut self, all_devices: bool) -> Result<usize, ()> {
        let counts = self.around.counts;
        let named = ["nproc-per-node", "num-gpus", "local-worker-num"];
        let given: Vec<(&str, &str)> = named.iter().filter_map(|n| Some((*n, self.typed.get(n)?))).collect();
        if let Some((name, _)) = given.iter().find(|(_, v)| *v != given[0].1) {
            let what = format!("--{} {} and --{name} disagree", given[0].0, given[0].1);
            self.fault(&["--nproc-per-node"], what, "one of them");
            return Err(());
        }
        let Some((name, text)) = given.first().copied() else {
            if let Some(wrong) = named.iter().find(|n| self.typed.has(n) || self.typed.is_broken(n)) {
                return self.number(wrong, 1..=MAX_SLOTS).and(Err(()));
            }
            if !all_devices {
                return Ok(1);
            }
            if counts.accelerators() == 0 {
                self.notices.push("no accelerator is found, so there is one rank; --num-gpus N starts N".to_string());
            }
            return Ok(counts.accelerators().max(1));
        };
        let label = format!("--{name}");
        let some = |n: usize, what: &str, reader: &mut Self| {
            if n > 0 {
                return Ok(n);
            }
            reader.fault(&[&label], format!("{label} {text}: this node shows no {what}"), "a number, auto, or cpu");
            Err(())
        };
        match text {
            "auto" if counts.accelerators() > 0 => Ok(counts.accelerators()),
            "auto" | "cpu" => Ok(counts.cpus.min(MAX_SLOTS)),
            "gpu" | "cuda" => some(counts.accelerators(), "accelerator", self),
            "npu" => some(counts.npus, "Ascend device", self),
            number => self.check(&label, number, 1..=MAX_SLOTS).ok_or(()),
        }
    }
}
