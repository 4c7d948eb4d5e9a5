//! The groups of ranks that layers, the executor and the optimizer speak to.

use std::sync::Arc;

use ferrotron_comm::{Communicator, Fabric, Solo};
use ferrotron_device::{Device, Error, Result};
use ferrotron_schedule::{GroupKind, Mesh};

/// A rank's communicators. Collectives of one communicator run in the order of its calls; what may run beside each
/// other has a communicator of its own.
#[derive(Clone)]
pub struct Groups {
    /// Tensor parallel.
    pub tp: Arc<dyn Communicator>,
    /// Tensor-parallel ranks whose queries read the same KV group, where there are fewer groups than ranks.
    pub kv: Arc<dyn Communicator>,
    /// Context parallel: ranks with other parts of the same samples.
    pub cp: Arc<dyn Communicator>,
    /// Data and context parallel, for gradients: ranks with the same parameters and other tokens.
    pub dp: Arc<dyn Communicator>,
    /// Those of them that share one optimizer's state, for gradients: all, unless there are several instances of the
    /// distributed optimizer.
    pub instance: Arc<dyn Communicator>,
    /// The same ranks, for parameters.
    pub instance_params: Arc<dyn Communicator>,
    /// Ranks that own the same shards in other instances; this rank alone when there is one instance.
    pub across: Arc<dyn Communicator>,
    /// Pipeline stages, for activations (messages towards the last stage).
    pub pp: Arc<dyn Communicator>,
    /// The same ranks, for gradients of activations (messages towards the first).
    pub pp_back: Arc<dyn Communicator>,
    /// First and last stage, which share the word embedding; one rank where it is not shared.
    pub embedding: Arc<dyn Communicator>,
    /// All ranks.
    pub world: Arc<dyn Communicator>,
}

impl Groups {
    /// Groups of one rank.
    pub fn solo(device: &Arc<dyn Device>) -> Groups {
        let solo = |name| Arc::new(Solo::new(name, device.clone())) as Arc<dyn Communicator>;
        Groups {
            tp: solo("tp"),
            kv: solo("kv"),
            cp: solo("cp"),
            dp: solo("dp"),
            instance: solo("dp"),
            instance_params: solo("dp"),
            across: solo("across"),
            pp: solo("pp"),
            pp_back: solo("pp"),
            embedding: solo("embedding"),
            world: solo("world"),
        }
    }

    /// The groups of the fabric's rank in a mesh, for a model whose attention has `kv_groups` groups of keys and values.
    pub fn of_mesh(fabric: &dyn Fabric, mesh: &Mesh, kv_groups: usize, device: &Arc<dyn Device>) -> Result<Groups> {
        let rank = fabric.rank();
        let members = |kind| mesh.group_of(kind, rank).unwrap_or_else(|| vec![rank]);
        let make = |name: &str, purpose: &str, ranks: &[usize]| fabric.group(device, name, purpose, ranks);
        let missing = |kind: GroupKind| Error::mismatch("mesh", "members of a group", "at least this rank", kind);
        let of = |kind: GroupKind, name: &str, purpose: &str| {
            let ranks = members(kind);
            if ranks.is_empty() { Err(missing(kind)) } else { make(name, purpose, &ranks) }
        };
        let all: Vec<usize> = (0..fabric.size()).collect();
        let dp = of(GroupKind::DataContext, "dp", "grads")?;
        let instance = match mesh.layout().optimizer_instances {
            1 => dp.clone(),
            _ => of(GroupKind::PartialDataContext, "instance", "grads")?,
        };
        let tensor = members(GroupKind::Tensor);
        let sharers = kv_sharers(tensor.len(), kv_groups);
        let place = tensor.iter().position(|r| *r == rank).unwrap_or(0);
        let kv = &tensor[place / sharers * sharers..][..sharers];
        Ok(Groups {
            tp: of(GroupKind::Tensor, "tp", "layers")?,
            kv: make("kv", "grads", kv)?,
            cp: of(GroupKind::Context, "cp", "layers")?,
            dp,
            instance,
            instance_params: of(GroupKind::PartialDataContext, "dp", "params")?,
            across: of(GroupKind::AcrossInstances, "across", "grads")?,
            pp: of(GroupKind::Pipeline, "pp", "forward")?,
            pp_back: of(GroupKind::Pipeline, "pp", "backward")?,
            embedding: of(GroupKind::Embedding, "embedding", "grads")?,
            world: make("world", "steps", &all)?,
        })
    }

    /// This rank's place among those that read other samples, and their number: data parallel without context parallel,
    /// whose ranks are neighbours in [`Groups::dp`].
    pub fn readers(&self) -> (usize, usize) {
        (self.dp.rank() / self.cp.size(), self.dp.size() / self.cp.size())
    }
}

/// How many consecutive tensor-parallel ranks read each KV group: more than one where there are fewer groups than ranks.
pub fn kv_sharers(tp: usize, kv_groups: usize) -> usize {
    if kv_groups > 0 && tp.is_multiple_of(kv_groups) { tp / kv_groups } else { 1 }
}
