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
    /// Data parallel, for gradients: ranks with the same parameters and other samples.
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

    /// The groups of the fabric's rank in a mesh.
    pub fn of_mesh(fabric: &dyn Fabric, mesh: &Mesh, device: &Arc<dyn Device>) -> Result<Groups> {
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
        Ok(Groups {
            tp: of(GroupKind::Tensor, "tp", "layers")?,
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
}
