//! All ranks of a run, as one of them sees them.

use std::sync::Arc;

use ferrotron_base::DType;
use ferrotron_comm::{Fabric, Options, ThreadWorld};
use ferrotron_config::settings::ParallelConfig;
use ferrotron_device::Device;
use ferrotron_runtime::{Ctx, Groups};
use ferrotron_schedule::{Axis, Layout, Mesh, Order};

use crate::{Error, Result};

/// This rank, its way to the others, and the mesh they form.
#[derive(Clone)]
pub struct World {
    /// The way to the others.
    pub fabric: Arc<dyn Fabric>,
    /// The mesh.
    pub mesh: Mesh,
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
            etp: p.tp,
            order: Order::TpCpEpDpPp,
            optimizer_instances: 1,
        };
        let mesh = Mesh::new(layout).map_err(|e| Error::Setting(e.to_string()))?;
        Ok(World { fabric, mesh })
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
    pub fn groups(&self, device: &Arc<dyn Device>) -> Result<Groups> {
        if self.size() == 1 {
            return Ok(Groups::solo(device));
        }
        Ok(Groups::of_mesh(&*self.fabric, &self.mesh, device)?)
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
