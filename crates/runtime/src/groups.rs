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
    /// Expert parallel: ranks that hold the experts of a layer between them.
    pub ep: Arc<dyn Communicator>,
    /// Expert tensor parallel, for layers: ranks that share each expert's matrices. The tensor-parallel ones, or one.
    pub etp: Arc<dyn Communicator>,
    /// Expert data parallel, for gradients: ranks with the same experts.
    pub edp: Arc<dyn Communicator>,
    /// Those of them that share one optimizer's state, for gradients.
    pub edp_instance: Arc<dyn Communicator>,
    /// The same ranks, for parameters.
    pub edp_instance_params: Arc<dyn Communicator>,
    /// Pipeline stages.
    pub pp: Pipeline,
    /// First and last stage, which share the word embedding; one rank where it is not shared.
    pub embedding: Arc<dyn Communicator>,
    /// All ranks.
    pub world: Arc<dyn Communicator>,
}

/// One rank's place in a pipeline, and its edges. Each directed edge between two stages has a communicator of its own:
/// where a send ends only when it was received (HCCL, NCCL), a ring of chunks that sends and receives on one queue waits
/// for itself.
#[derive(Clone)]
pub struct Pipeline {
    stage: usize,
    stages: usize,
    /// Activations, towards the last stage (and from it to the first, between chunks).
    pub forward: PipelineEdges,
    /// Their gradients, the other way.
    pub backward: PipelineEdges,
}

/// A stage's edges of one direction. Rank 0 of an edge sends, rank 1 receives.
#[derive(Clone, Default)]
pub struct PipelineEdges {
    /// Where messages come from; none at the end of the pipeline.
    pub from: Option<Arc<dyn Communicator>>,
    /// Where messages go.
    pub to: Option<Arc<dyn Communicator>>,
}

impl Pipeline {
    /// A pipeline of one stage.
    pub fn solo() -> Pipeline {
        Pipeline { stage: 0, stages: 1, forward: PipelineEdges::default(), backward: PipelineEdges::default() }
    }

    /// This stage.
    pub fn rank(&self) -> usize {
        self.stage
    }

    /// Stages.
    pub fn size(&self) -> usize {
        self.stages
    }

    /// The edges of stage `stage` of the pipeline of these global ranks, a ring when stages have several chunks. Edges are
    /// made in one order on all ranks, neighbouring pairs beside each other.
    fn new(stage: usize, ranks: &[usize], ring: bool, make: Make<'_>) -> Result<Pipeline> {
        let n = ranks.len();
        let mut p = Pipeline { stage, stages: n, ..Pipeline::solo() };
        let edges = if n == 1 { 0 } else { n - usize::from(!ring) };
        for edge in (0..edges).step_by(2).chain((1..edges).step_by(2)) {
            let (a, b) = (edge, (edge + 1) % n);
            if stage != a && stage != b {
                continue;
            }
            let forward = make(&format!("pp {a}>{b}"), "forward", &[ranks[a], ranks[b]])?;
            let backward = make(&format!("pp {b}>{a}"), "backward", &[ranks[b], ranks[a]])?;
            if stage == a {
                (p.forward.to, p.backward.from) = (Some(forward), Some(backward));
            } else {
                (p.forward.from, p.backward.to) = (Some(forward), Some(backward));
            }
        }
        Ok(p)
    }
}

/// Makes the communicator of a name and purpose with these global ranks.
type Make<'a> = &'a dyn Fn(&str, &str, &[usize]) -> Result<Arc<dyn Communicator>>;

/// What of the model and its schedule decides which groups there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupNeeds {
    /// Chunks of each stage.
    pub chunks: usize,
    /// Groups of keys and values of the model's attention.
    pub kv_groups: usize,
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
            ep: solo("ep"),
            etp: solo("etp"),
            edp: solo("edp"),
            edp_instance: solo("edp"),
            edp_instance_params: solo("edp"),
            pp: Pipeline::solo(),
            embedding: solo("embedding"),
            world: solo("world"),
        }
    }

    /// The groups of the fabric's rank in a mesh.
    pub fn of_mesh(fabric: &dyn Fabric, mesh: &Mesh, needs: GroupNeeds, device: &Arc<dyn Device>) -> Result<Groups> {
        let rank = fabric.rank();
        let members = |kind| mesh.group_of(kind, rank).unwrap_or_else(|| vec![rank]);
        let make = |name: &str, purpose: &str, ranks: &[usize]| fabric.group(device, name, purpose, ranks);
        let missing = |kind: GroupKind| Error::mismatch("mesh", "members of a group", "at least this rank", kind);
        let of = |kind: GroupKind, name: &str, purpose: &str| {
            let ranks = members(kind);
            if ranks.is_empty() { Err(missing(kind)) } else { make(name, purpose, &ranks) }
        };
        let all: Vec<usize> = (0..fabric.size()).collect();
        let stages = members(GroupKind::Pipeline);
        let stage = stages.iter().position(|r| *r == rank).ok_or_else(|| missing(GroupKind::Pipeline))?;
        // Of two kinds with the same ranks the second is the first again: fewer connections.
        let alike = |a, b| members(a) == members(b);
        let or = |kind, name: &str, purpose: &str, other: (GroupKind, &Arc<dyn Communicator>)| {
            if alike(kind, other.0) { Ok(other.1.clone()) } else { of(kind, name, purpose) }
        };
        let tp = of(GroupKind::Tensor, "tp", "layers")?;
        let dp = of(GroupKind::DataContext, "dp", "grads")?;
        let instance_params = of(GroupKind::PartialDataContext, "dp", "params")?;
        let edp = or(GroupKind::ExpertData, "edp", "grads", (GroupKind::DataContext, &dp))?;
        let (instance, edp_instance) = match mesh.layout().optimizer_instances {
            1 => (dp.clone(), edp.clone()),
            _ => {
                let instance = of(GroupKind::PartialDataContext, "instance", "grads")?;
                let dense = (GroupKind::PartialDataContext, &instance);
                let experts = or(GroupKind::PartialExpertData, "expert-instance", "grads", dense)?;
                (instance, experts)
            }
        };
        let tensor = members(GroupKind::Tensor);
        let sharers = kv_sharers(tensor.len(), needs.kv_groups);
        let place = tensor.iter().position(|r| *r == rank).unwrap_or(0);
        let kv = &tensor[place / sharers * sharers..][..sharers];
        let dense = (GroupKind::PartialDataContext, &instance_params);
        Ok(Groups {
            kv: make("kv", "grads", kv)?,
            cp: of(GroupKind::Context, "cp", "layers")?,
            across: of(GroupKind::AcrossInstances, "across", "grads")?,
            ep: of(GroupKind::Expert, "ep", "layers")?,
            etp: or(GroupKind::ExpertTensor, "etp", "layers", (GroupKind::Tensor, &tp))?,
            edp_instance_params: or(GroupKind::PartialExpertData, "edp", "params", dense)?,
            edp,
            edp_instance,
            tp,
            dp,
            instance,
            instance_params,
            pp: Pipeline::new(stage, &stages, needs.chunks > 1, &make)?,
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

impl Groups {
    /// Ranks with the same experts, or with the same other parameters.
    pub fn replicas(&self, experts: bool) -> &Arc<dyn Communicator> {
        if experts { &self.edp } else { &self.dp }
    }

    /// Those of them that share one optimizer's state, for gradients.
    pub fn instance_of(&self, experts: bool) -> &Arc<dyn Communicator> {
        if experts { &self.edp_instance } else { &self.instance }
    }

    /// The same ranks, for parameters.
    pub fn instance_params_of(&self, experts: bool) -> &Arc<dyn Communicator> {
        if experts { &self.edp_instance_params } else { &self.instance_params }
    }
}
