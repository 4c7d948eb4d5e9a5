//! All ranks of a run, as one of them sees them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ferrotron_base::DType;
use ferrotron_comm::{Fabric, Options, ThreadWorld};
use ferrotron_config::settings::ParallelConfig;
use ferrotron_device::Device;
use ferrotron_runtime::{Ctx, GroupNeeds, Groups};
use ferrotron_schedule::{Axis, Layout, Mesh, Order};

use crate::{Error, Result};

/// This rank, its way to the others, and the mesh they form.
#[derive(Clone)]
pub struct World {
    /// The way to the others.
    pub fabric: Arc<dyn Fabric>,
    /// The mesh.
    pub mesh: Mesh,
    /// Where this rank is in its run.
    pub at: Arc<At>,
}

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Building model, optimizer and data.
    Start,
    /// Reading a checkpoint.
    Load,
    /// Reading a batch.
    Data,
    /// Forward and backward.
    ForwardBackward,
    /// Waiting for gradients of other ranks.
    GradSync,
    /// Summing the step's numbers over all ranks, and judging them.
    Numbers,
    /// Updating parameters.
    Optimizer,
    /// Evaluating.
    Evaluate,
    /// Writing a checkpoint.
    Save,
}

/// Phases in the order of their numbers, with their names in reports.
const PHASES: [(Phase, &str); 9] = [
    (Phase::Start, "starting"),
    (Phase::Load, "loading"),
    (Phase::Data, "reading data"),
    (Phase::ForwardBackward, "forward-backward"),
    (Phase::GradSync, "gradient sync"),
    (Phase::Numbers, "step numbers"),
    (Phase::Optimizer, "optimizer"),
    (Phase::Evaluate, "evaluating"),
    (Phase::Save, "saving"),
];

/// Where a rank is in its run: kept up to date by the loop, read by whoever reports how the rank ended.
#[derive(Debug, Default)]
pub struct At {
    iteration: AtomicU64,
    phase: AtomicU8,
}

impl At {
    /// Takes note of a phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Takes note of the iteration that begins, from 1.
    pub fn begin(&self, iteration: u64) {
        self.iteration.store(iteration, Ordering::Relaxed);
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.iteration.load(Ordering::Relaxed);
        if n > 0 {
            write!(f, "iteration {n}, ")?;
        }
        f.write_str(PHASES[usize::from(self.phase.load(Ordering::Relaxed))].1)
    }
}

impl World {
    /// A rank of a fabric in the mesh that the configuration describes.
    pub fn new(fabric: Arc<dyn Fabric>, p: &ParallelConfig) -> Result<World> {
        let layout = Layout {
            world: fabric.size(),
            tp: p.tp,
            pp: p.pp,
            cp: p.cp,
            ep: p.ep,
            etp: p.etp,
            order: Order::TpCpEpDpPp,
            optimizer_instances: p.optimizer_instances,
        };
        let mesh = Mesh::new(layout).map_err(|e| Error::Setting(e.to_string()))?;
        Ok(World { fabric, mesh, at: Arc::default() })
    }

    /// A world of one rank.
    pub fn alone(p: &ParallelConfig) -> Result<World> {
        World::new(Arc::new(ThreadWorld::new(1, Options::default()).rank(0)), p)
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.fabric.rank()
    }

    /// Ranks in all.
    pub fn size(&self) -> usize {
        self.fabric.size()
    }

    /// The rank that prints training lines, as in Megatron: the last.
    pub fn logs(&self) -> bool {
        self.rank() + 1 == self.size()
    }

    /// Place on an axis.
    pub fn place(&self, axis: Axis) -> usize {
        self.mesh.place(self.rank(), axis)
    }

    /// Communicators of this rank.
    pub fn groups(&self, needs: GroupNeeds, device: &Arc<dyn Device>) -> Result<Groups> {
        if self.size() == 1 {
            return Ok(Groups::solo(device));
        }
        Ok(Groups::of_mesh(&*self.fabric, &self.mesh, needs, device)?)
    }
}

impl World {
    /// This rank's communicators of its device's library, and the memory that they take there.
    pub fn links_line(&self) -> Option<String> {
        let links = self.fabric.links();
        let (n, mib) = (links.len(), links.iter().map(|l| l.bytes).sum::<usize>() >> 20);
        let names: Vec<String> = links.iter().map(|l| format!("{} of {}", l.group, l.ranks)).collect();
        let line =
            || format!("communicators of rank {}: {n}, {mib} MiB of its device: {}", self.rank(), names.join(", "));
        (n > 0).then(line)
    }
}

/// A whole number of rank 0, given to all ranks: a host sync.
pub fn agree(cx: &Ctx, number: u32) -> Result<u32> {
    let world = &cx.groups.world;
    if world.size() == 1 {
        return Ok(number);
    }
    let mut t = cx.pool.alloc(DType::I32, [1])?;
    ferrotron_device::host::write_i32(&*cx.device, &cx.stream, &[number as i32], &mut t)?;
    let t = world.broadcast(&cx.stream, t, 0)?.wait();
    let mut bytes = [0u8; 4];
    cx.device.download(&cx.stream, &t, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_have_their_names() {
        for (i, (phase, _)) in PHASES.iter().enumerate() {
            assert_eq!(*phase as usize, i);
        }
        let at = At::default();
        assert_eq!(at.to_string(), "starting");
        at.begin(7);
        at.enter(Phase::Save);
        assert_eq!(at.to_string(), "iteration 7, saving");
    }
}
