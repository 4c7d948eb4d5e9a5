//! The mesh of ranks: which ranks form which group, as Megatron-LM's `parallel_state.py` lays them out.
//!
//! A global rank is a mixed-radix number over the axes of an [`Order`], the leftmost axis varying fastest. Attention and
//! dense layers live on one grid (tp, cp, dp, pp), expert layers on a second one over the same ranks (etp, ep, expert
//! dp, pp); both must have the same pipelines. A group over some axes lists its members with its leftmost axis fastest,
//! and the groups of a kind are listed with the leftmost of the *other* axes fastest: the order in which Megatron
//! creates them.

use std::fmt;

/// Axes of the mesh, from the one that varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `tp-cp-ep-dp-pp`: the default. Pipeline stages are the farthest apart.
    TpCpEpDpPp,
    /// `tp-cp-pp-ep-dp`: `--use-tp-pp-dp-mapping`. Data-parallel replicas are the farthest apart.
    TpCpPpEpDp,
}

/// An axis of the mesh. On the expert grid `Tp` is expert tensor parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Tensor parallel.
    Tp,
    /// Context parallel: parts of a sequence.
    Cp,
    /// Expert parallel.
    Ep,
    /// Data parallel.
    Dp,
    /// Pipeline stages.
    Pp,
}

use Axis::{Cp, Dp, Ep, Pp, Tp};

impl Order {
    fn axes(self) -> [Axis; 5] {
        match self {
            Order::TpCpEpDpPp => [Tp, Cp, Ep, Dp, Pp],
            Order::TpCpPpEpDp => [Tp, Cp, Pp, Ep, Dp],
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::TpCpEpDpPp => "tp-cp-ep-dp-pp",
            Order::TpCpPpEpDp => "tp-cp-pp-ep-dp",
        })
    }
}

/// Kinds of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Ranks that share a layer's matrices.
    Tensor,
    /// Ranks that share a sequence.
    Context,
    /// Stages of one pipeline, first to last.
    Pipeline,
    /// Replicas of the same parameters on other samples.
    Data,
    /// As `Data`, with the parts of a sequence: the ranks over which dense gradients are summed.
    DataContext,
    /// Tensor x pipeline: one copy of the model (of one sequence part).
    Model,
    /// Tensor x context.
    TensorContext,
    /// Tensor x data.
    TensorData,
    /// Tensor x data x context: all ranks of a stage.
    TensorDataContext,
    /// First and last stage of each pipeline, which share the word embedding; the one stage if there is only one.
    Embedding,
    /// First stage of each pipeline, which holds the position embedding.
    PositionEmbedding,
    /// Ranks that hold the experts of one layer between them.
    Expert,
    /// Ranks that share an expert's matrices.
    ExpertTensor,
    /// Expert tensor x expert.
    ExpertTensorExpert,
    /// Expert tensor x expert x pipeline: one copy of all expert parameters.
    ExpertModel,
    /// Replicas of the same experts.
    ExpertData,
    /// One instance's part of a `DataContext` group, when there are several optimizer instances.
    PartialDataContext,
    /// One instance's part of an `ExpertData` group.
    PartialExpertData,
    /// Ranks at the same place in each optimizer instance: they own the same shards, of dense and of expert parameters.
    AcrossInstances,
    /// All ranks of one optimizer instance.
    OptimizerInstance,
}

impl GroupKind {
    /// All kinds.
    pub const ALL: [GroupKind; 20] = [
        GroupKind::Tensor,
        GroupKind::Context,
        GroupKind::Pipeline,
        GroupKind::Data,
        GroupKind::DataContext,
        GroupKind::Model,
        GroupKind::TensorContext,
        GroupKind::TensorData,
        GroupKind::TensorDataContext,
        GroupKind::Embedding,
        GroupKind::PositionEmbedding,
        GroupKind::Expert,
        GroupKind::ExpertTensor,
        GroupKind::ExpertTensorExpert,
        GroupKind::ExpertModel,
        GroupKind::ExpertData,
        GroupKind::PartialDataContext,
        GroupKind::PartialExpertData,
        GroupKind::AcrossInstances,
        GroupKind::OptimizerInstance,
    ];
}

/// Sizes of the mesh, as the flags give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks in all.
    pub world: usize,
    /// `--tensor-model-parallel-size`.
    pub tp: usize,
    /// `--pipeline-model-parallel-size`.
    pub pp: usize,
    /// `--context-parallel-size`.
    pub cp: usize,
    /// `--expert-model-parallel-size`.
    pub ep: usize,
    /// `--expert-tensor-parallel-size`; Megatron's default is `tp`.
    pub etp: usize,
    /// Order of the axes.
    pub order: Order,
    /// `--num-distributed-optimizer-instances`.
    pub optimizer_instances: usize,
}

impl Layout {
    /// One rank.
    pub fn single() -> Layout {
        Layout { world: 1, tp: 1, pp: 1, cp: 1, ep: 1, etp: 1, order: Order::TpCpEpDpPp, optimizer_instances: 1 }
    }
}

/// Why a layout is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// A size is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The sizes of a grid do not divide the world.
    #[error("world size {world} is not a multiple of {product} = {terms}")]
    NotDivisible {
        /// Ranks in all.
        world: usize,
        /// Product of the sizes.
        product: usize,
        /// The product with the names of its factors.
        terms: String,
    },
    /// Dense and expert layers would be replicated differently in an order that cannot have that.
    #[error(
        "with order {order} and {pp} pipeline stages, dense and expert layers need the same data-parallel size, \
         but it is {dense} and {expert}: drop --use-tp-pp-dp-mapping, or choose tp x cp = etp x ep"
    )]
    DataSizes {
        /// Order of the axes.
        order: Order,
        /// Pipeline stages.
        pp: usize,
        /// Data-parallel size of dense layers.
        dense: usize,
        /// Data-parallel size of expert layers.
        expert: usize,
    },
    /// Dense and expert layers would lie in different pipelines.
    #[error(
        "with order {order} the pipelines of dense layers (first: {dense:?}) are not those of expert layers \
         (first: {expert:?}): drop --use-tp-pp-dp-mapping, or choose tp x cp = etp with ep = 1"
    )]
    Pipelines {
        /// Order of the axes.
        order: Order,
        /// First pipeline of the dense grid that differs.
        dense: Vec<usize>,
        /// The expert grid's in its place.
        expert: Vec<usize>,
    },
    /// The optimizer instances do not divide the replicas.
    #[error("--num-distributed-optimizer-instances {instances} does not divide the {what} of {size} ranks")]
    Instances {
        /// Instances asked for.
        instances: usize,
        /// The group they must divide.
        what: &'static str,
        /// Its size.
        size: usize,
    },
}

/// Sizes of the five axes on one grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    order: Order,
    tp: usize,
    cp: usize,
    ep: usize,
    dp: usize,
    pp: usize,
}

impl Grid {
    fn size(&self, a: Axis) -> usize {
        match a {
            Tp => self.tp,
            Cp => self.cp,
            Ep => self.ep,
            Dp => self.dp,
            Pp => self.pp,
        }
    }

    /// Ranks between neighbours on the axis.
    fn stride(&self, axis: Axis) -> usize {
        self.order.axes().into_iter().take_while(|a| *a != axis).map(|a| self.size(a)).product()
    }

    /// Ranks at all places of the given axes, the others at zero; leftmost axis fastest.
    fn offsets(&self, within: impl Fn(Axis) -> bool) -> Vec<usize> {
        let mut out = vec![0];
        for axis in self.order.axes().into_iter().filter(|a| within(*a)) {
            let stride = self.stride(axis);
            out = (0..self.size(axis)).flat_map(|i| out.iter().map(move |o| o + i * stride)).collect();
        }
        out
    }

    /// The group over these axes that a rank of the grid is in.
    fn group_of(&self, axes: &[Axis], rank: usize) -> Vec<usize> {
        let across = self.order.axes().into_iter().filter(|a| !axes.contains(a));
        let first: usize = across.map(|a| rank / self.stride(a) % self.size(a) * self.stride(a)).sum();
        self.offsets(|a| axes.contains(&a)).into_iter().map(|w| first + w).collect()
    }

    fn groups(&self, axes: &[Axis]) -> Vec<Vec<usize>> {
        let within = self.offsets(|a| axes.contains(&a));
        let firsts = self.offsets(|a| !axes.contains(&a));
        firsts.into_iter().map(|f| within.iter().map(|w| f + w).collect()).collect()
    }
}

/// A legal layout, with its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    layout: Layout,
    dense: Grid,
    expert: Grid,
}

fn share(world: usize, terms: [(&'static str, usize); 3]) -> Result<usize, MeshError> {
    if let Some((name, _)) = terms.iter().find(|t| t.1 == 0) {
        return Err(MeshError::Zero(name));
    }
    let product = terms.iter().try_fold(1usize, |p, t| p.checked_mul(t.1)).unwrap_or(usize::MAX);
    if world == 0 {
        return Err(MeshError::Zero("world size"));
    }
    if !world.is_multiple_of(product) {
        let terms: Vec<_> = terms.iter().map(|(name, n)| format!("{name} {n}")).collect();
        return Err(MeshError::NotDivisible { world, product, terms: terms.join(" x ") });
    }
    Ok(world / product)
}

impl Mesh {
    /// Checks a layout.
    pub fn new(layout: Layout) -> Result<Mesh, MeshError> {
        let Layout { world, tp, pp, cp, ep, etp, order, optimizer_instances: instances } = layout;
        let dp = share(world, [("tp", tp), ("cp", cp), ("pp", pp)])?;
        let edp = share(world, [("etp", etp), ("ep", ep), ("pp", pp)])?;
        if order == Order::TpCpPpEpDp && pp > 1 && dp != edp {
            return Err(MeshError::DataSizes { order, pp, dense: dp, expert: edp });
        }
        let dense = Grid { order, tp, cp, ep: 1, dp, pp };
        let expert = Grid { order, tp: etp, cp: 1, ep, dp: edp, pp };
        let unlike = dense.groups(&[Pp]).into_iter().zip(expert.groups(&[Pp])).find(|(d, e)| d != e);
        if let Some((dense, expert)) = unlike {
            return Err(MeshError::Pipelines { order, dense, expert });
        }
        if instances == 0 {
            return Err(MeshError::Zero("--num-distributed-optimizer-instances"));
        }
        for (what, size) in [("data-parallel groups (with context)", dp * cp), ("expert data-parallel groups", edp)] {
            if size % instances != 0 {
                return Err(MeshError::Instances { instances, what, size });
            }
        }
        Ok(Mesh { layout, dense, expert })
    }

    /// The sizes it was made from.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Data-parallel size of dense layers.
    pub fn dp(&self) -> usize {
        self.dense.dp
    }

    /// Data-parallel size of expert layers.
    pub fn expert_dp(&self) -> usize {
        self.expert.dp
    }

    /// Place of a rank on an axis of the dense grid (`Ep`: of the expert grid).
    pub fn place(&self, rank: usize, axis: Axis) -> usize {
        let grid = if axis == Ep { &self.expert } else { &self.dense };
        rank / grid.stride(axis) % grid.size(axis)
    }

    /// The grid and the axes of the kinds whose groups are whole slices of a grid.
    fn slices(&self, kind: GroupKind) -> Option<(&Grid, &'static [Axis])> {
        let (dense, expert) = (&self.dense, &self.expert);
        Some(match kind {
            GroupKind::Tensor => (dense, &[Tp][..]),
            GroupKind::Context => (dense, &[Cp]),
            GroupKind::Pipeline => (dense, &[Pp]),
            GroupKind::Data => (dense, &[Dp]),
            GroupKind::DataContext => (dense, &[Dp, Cp]),
            GroupKind::Model => (dense, &[Tp, Pp]),
            GroupKind::TensorContext => (dense, &[Tp, Cp]),
            GroupKind::TensorData => (dense, &[Tp, Dp]),
            GroupKind::TensorDataContext => (dense, &[Tp, Dp, Cp]),
            GroupKind::Expert => (expert, &[Ep]),
            GroupKind::ExpertTensor => (expert, &[Tp]),
            GroupKind::ExpertTensorExpert => (expert, &[Tp, Ep]),
            GroupKind::ExpertModel => (expert, &[Tp, Ep, Pp]),
            GroupKind::ExpertData => (expert, &[Dp]),
            GroupKind::Embedding
            | GroupKind::PositionEmbedding
            | GroupKind::PartialDataContext
            | GroupKind::PartialExpertData
            | GroupKind::AcrossInstances
            | GroupKind::OptimizerInstance => return None,
        })
    }

    /// All groups of a kind. Members are global ranks in group order.
    pub fn groups(&self, kind: GroupKind) -> Vec<Vec<usize>> {
        if let Some((grid, axes)) = self.slices(kind) {
            return grid.groups(axes);
        }
        let (dense, expert) = (&self.dense, &self.expert);
        match kind {
            GroupKind::Embedding => dense.groups(&[Pp]).iter().map(|p| ends(p)).collect(),
            GroupKind::PositionEmbedding => dense.groups(&[Pp]).iter().map(|p| p[..1].to_vec()).collect(),
            GroupKind::PartialDataContext => self.parts(dense.groups(&[Dp, Cp])),
            GroupKind::PartialExpertData => self.parts(expert.groups(&[Dp])),
            GroupKind::AcrossInstances => expert.groups(&[Dp]).iter().flat_map(|g| self.across(g)).collect(),
            _ => {
                let replicas = expert.groups(&[Tp, Ep, Pp]);
                replicas.chunks(expert.dp / self.layout.optimizer_instances).map(|c| c.concat()).collect()
            }
        }
    }

    /// The group of a kind that `rank` is in; `None` for a rank outside all of them (embedding groups).
    pub fn group_of(&self, kind: GroupKind, rank: usize) -> Option<Vec<usize>> {
        if rank >= self.layout.world {
            return None;
        }
        if let Some((grid, axes)) = self.slices(kind) {
            return Some(grid.group_of(axes, rank));
        }
        let (pipeline, replicas) = (self.dense.group_of(&[Pp], rank), self.expert.group_of(&[Dp], rank));
        let own = |groups: Vec<Vec<usize>>| groups.into_iter().find(|g| g.contains(&rank));
        match kind {
            GroupKind::Embedding => own(vec![ends(&pipeline)]),
            GroupKind::PositionEmbedding => own(vec![pipeline[..1].to_vec()]),
            GroupKind::PartialDataContext => own(self.parts(vec![self.dense.group_of(&[Dp, Cp], rank)])),
            GroupKind::PartialExpertData => own(self.parts(vec![replicas])),
            GroupKind::AcrossInstances => own(self.across(&replicas)),
            _ => own(self.groups(kind)),
        }
    }

    /// Of ranks with the same experts, those at the same place in each optimizer instance.
    fn across(&self, replicas: &[usize]) -> Vec<Vec<usize>> {
        let part = self.expert.dp / self.layout.optimizer_instances;
        (0..part).map(|i| replicas.iter().skip(i).step_by(part).copied().collect()).collect()
    }

    /// Each group cut in as many parts as there are optimizer instances.
    fn parts(&self, groups: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
        let parts = self.layout.optimizer_instances;
        groups.iter().flat_map(|g| g.chunks(g.len() / parts).map(<[usize]>::to_vec)).collect()
    }
}

/// First and last, or the only one.
fn ends(pipeline: &[usize]) -> Vec<usize> {
    match pipeline {
        [first, .., last] => vec![*first, *last],
        other => other.to_vec(),
    }
}
