//! The mesh against the groups that Megatron-core 0.16.1's `initialize_model_parallel` creates.

#![allow(clippy::unwrap_used)] // helpers of tests

use ferrotron_schedule::{Axis, GroupKind, Layout, Mesh, MeshError, Order};
use serde_json::Value;

/// Megatron's names of the kinds.
const NAMES: [(&str, GroupKind); 20] = [
    ("TENSOR_MODEL_PARALLEL_GROUP", GroupKind::Tensor),
    ("CONTEXT_PARALLEL_GROUP", GroupKind::Context),
    ("PIPELINE_MODEL_PARALLEL_GROUP", GroupKind::Pipeline),
    ("DATA_PARALLEL_GROUP", GroupKind::Data),
    ("DATA_PARALLEL_GROUP_WITH_CP", GroupKind::DataContext),
    ("MODEL_PARALLEL_GROUP", GroupKind::Model),
    ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", GroupKind::TensorContext),
    ("TENSOR_AND_DATA_PARALLEL_GROUP", GroupKind::TensorData),
    ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", GroupKind::TensorDataContext),
    ("EMBEDDING_GROUP", GroupKind::Embedding),
    ("POSITION_EMBEDDING_GROUP", GroupKind::PositionEmbedding),
    ("EXPERT_MODEL_PARALLEL_GROUP", GroupKind::Expert),
    ("EXPERT_TENSOR_PARALLEL_GROUP", GroupKind::ExpertTensor),
    ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", GroupKind::ExpertTensorExpert),
    ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", GroupKind::ExpertModel),
    ("EXPERT_DATA_PARALLEL_GROUP", GroupKind::ExpertData),
    ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", GroupKind::PartialDataContext),
    ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0", GroupKind::PartialExpertData),
    ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1", GroupKind::AcrossInstances),
    ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", GroupKind::OptimizerInstance),
];

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("golden/rank_groups.json")).unwrap()
}

fn layout(case: &Value) -> Layout {
    let n = |key: &str| case[key].as_u64().unwrap() as usize;
    let order = match case["order"].as_str().unwrap() {
        "tp-cp-ep-dp-pp" => Order::TpCpEpDpPp,
        "tp-cp-pp-ep-dp" => Order::TpCpPpEpDp,
        other => panic!("order {other}"),
    };
    assert_eq!(order.to_string(), case["order"].as_str().unwrap());
    Layout {
        world: n("world"),
        tp: n("tp"),
        pp: n("pp"),
        cp: n("cp"),
        ep: n("ep"),
        etp: case["etp"].as_u64().unwrap_or(n("tp") as u64) as usize,
        order,
        optimizer_instances: n("num_distributed_optimizer_instances"),
    }
}

#[test]
fn groups_are_megatrons() {
    let (mut equal, mut refused) = (0, 0);
    for case in cases() {
        let l = layout(&case);
        if case.get("error").is_some() {
            assert!(Mesh::new(l).is_err(), "{l:?} should be refused");
            refused += 1;
            continue;
        }
        let mesh = Mesh::new(l).unwrap();
        for (name, want) in case["groups"].as_object().unwrap() {
            let kind = NAMES.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("unknown group {name}")).1;
            let want: Vec<Vec<usize>> = serde_json::from_value(want.clone()).unwrap();
            assert_eq!(mesh.groups(kind), want, "{name} of {l:?}");
            equal += 1;
        }
    }
    assert_eq!((equal, refused), (349, 3));
}

#[test]
fn every_rank_is_in_one_group_of_each_kind() {
    for case in cases() {
        let l = layout(&case);
        let Ok(mesh) = Mesh::new(l) else { continue };
        for kind in GroupKind::ALL {
            let mut members = mesh.groups(kind).concat();
            members.sort_unstable();
            let unique = members.windows(2).all(|w| w[0] < w[1]);
            assert!(unique, "{kind:?} of {l:?}");
            if !matches!(kind, GroupKind::Embedding | GroupKind::PositionEmbedding) {
                assert_eq!(members, (0..l.world).collect::<Vec<_>>(), "{kind:?} of {l:?}");
            }
        }
        for rank in 0..l.world {
            for kind in GroupKind::ALL {
                let listed = mesh.groups(kind).into_iter().find(|g| g.contains(&rank));
                assert_eq!(mesh.group_of(kind, rank), listed, "{kind:?} of rank {rank} in {l:?}");
            }
            let tensor = mesh.group_of(GroupKind::Tensor, rank).unwrap();
            assert_eq!(tensor[mesh.place(rank, Axis::Tp)], rank);
            let stages = mesh.group_of(GroupKind::Pipeline, rank).unwrap();
            assert_eq!(stages[mesh.place(rank, Axis::Pp)], rank);
            let experts = mesh.group_of(GroupKind::Expert, rank).unwrap();
            assert_eq!(experts[mesh.place(rank, Axis::Ep)], rank);
        }
    }
}

/// Megatron makes the groups across instances of the expert grid, and sums dense gradients over them too.
#[test]
fn dense_shards_meet_across_instances() {
    let mut several = 0;
    for case in cases() {
        let Ok(mesh) = Mesh::new(layout(&case)) else { continue };
        let parts = mesh.groups(GroupKind::PartialDataContext);
        let across = mesh.groups(GroupKind::AcrossInstances);
        let n = mesh.layout().optimizer_instances;
        for (group, parts) in mesh.groups(GroupKind::DataContext).iter().zip(parts.chunks(n)) {
            assert_eq!(*group, parts.concat());
            for place in 0..parts[0].len() {
                let owners: Vec<usize> = parts.iter().map(|p| p[place]).collect();
                assert!(across.contains(&owners), "{owners:?} of {:?}", mesh.layout());
            }
        }
        several += usize::from(n > 1);
    }
    assert!(several > 1, "{several}");
}

#[test]
fn impossible_layouts_say_why() {
    let l = Layout { world: 8, tp: 3, ..Layout::single() };
    let text = Mesh::new(l).unwrap_err().to_string();
    assert_eq!(text, "world size 8 is not a multiple of 3 = tp 3 x cp 1 x pp 1");
    assert_eq!(Mesh::new(Layout { cp: 0, ..l }), Err(MeshError::Zero("cp")));
    assert_eq!(Mesh::new(Layout { world: 0, tp: 1, ..l }), Err(MeshError::Zero("world size")));
    assert!(matches!(Mesh::new(Layout { tp: usize::MAX, cp: 2, ..l }), Err(MeshError::NotDivisible { .. })));
    let l = Layout { world: 16, tp: 2, pp: 2, cp: 2, etp: 2, order: Order::TpCpPpEpDp, ..Layout::single() };
    assert!(matches!(Mesh::new(l), Err(MeshError::DataSizes { dense: 2, expert: 4, .. })));
    let l = Layout { world: 32, pp: 4, ep: 2, ..l };
    assert!(matches!(Mesh::new(l), Err(MeshError::Pipelines { .. })));
    let l = Layout { world: 6, optimizer_instances: 4, ..Layout::single() };
    assert!(matches!(Mesh::new(l), Err(MeshError::Instances { instances: 4, size: 6, .. })));
}
