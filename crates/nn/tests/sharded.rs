//! Windows of sharded units, counted from inside a layer on the dry device: the next unit is on its way while one runs,
//! nothing stays longer than it must, and gradients leave when backward ends.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::sync::{Arc, Mutex};

use ferrotron_base::{DType, ShardSpec};
use ferrotron_comm::Fabric;
use ferrotron_comm::dry::DryRank;
use ferrotron_device::dry::Dry;
use ferrotron_device::{Device, Result};
use ferrotron_nn::Sharded;
use ferrotron_runtime::{
    Ctx, CtxOptions, Groups, Layer, Micro, MicroHost, ParamId, ParamSpec, ParamStore, ParamTable, StoreOptions,
    WeightGrads,
};

/// Blocks of the pool that are live, seen from inside: windows, but for what stands beside them.
type Seen = Arc<Mutex<Vec<usize>>>;

/// A layer with one matrix, whose gradient it takes in backward or later.
struct Probe {
    id: ParamId,
    seen: Seen,
}

impl Probe {
    fn look(&self, cx: &Ctx) {
        let weight = cx.weight(self.id).data;
        assert_eq!(weight.numel(), 300, "whole while the layer runs");
        self.seen.lock().unwrap().push(cx.pool.stats().live_blocks);
    }
}

impl Layer for Probe {
    type In = ();
    type Out = ();
    type Saved = ();
    type WGrad = ();

    fn forward(&self, cx: &mut Ctx, _: &Micro, (): ()) -> Result<((), ())> {
        self.look(cx);
        Ok(((), ()))
    }
    fn backward(&self, cx: &mut Ctx, mb: &Micro, (): (), (): ()) -> Result<((), ())> {
        self.look(cx);
        if cx.when == WeightGrads::Now {
            self.weight_grad(cx, mb, ())?;
        }
        Ok(((), ()))
    }
    fn weight_grad(&self, cx: &mut Ctx, _: &Micro, (): ()) -> Result<()> {
        cx.add_grad(self.id, |_, grad| {
            assert_eq!(grad.numel(), 300, "a whole gradient");
            Ok(())
        })
    }
}

/// Three units on rank 0 of 2, alone; and how many blocks of the pool a micro-batch takes.
fn three(seen: &Seen) -> (Ctx, Vec<Sharded<Probe>>, Micro, Arc<DryRank>) {
    let device: Arc<dyn Device> = Arc::new(Dry::new("dry:0", 1 << 30));
    let stream = Ctx::home_stream(&device).unwrap();
    let rank = Arc::new(DryRank::new(0, 2));
    let dp = |purpose| rank.group(&device, "dp", purpose, &[0, 1]).unwrap();
    let grads = dp("grads");
    let groups = Groups { dp: grads.clone(), instance: grads, instance_params: dp("params"), ..Groups::solo(&device) };
    let mut table = ParamTable::default();
    let units: Vec<_> = (0..3)
        .map(|i| {
            let unit = table.begin_unit();
            let id = table.add(ParamSpec::matrix(ShardSpec::whole(format!("w{i}"), &[30, 10]), 0.1));
            table.end_unit();
            let (before, after) = ((i > 0).then(|| unit - 1), (i < 2).then_some(unit + 1));
            Sharded { unit, before, after, inner: Probe { id, seen: seen.clone() } }
        })
        .collect();
    let store = StoreOptions {
        dtype: DType::F32,
        dp_size: 2,
        dp_rank: 0,
        expert_dp_size: 1,
        expert_dp_rank: 0,
        shard_optimizer: true,
        bucket_elements: 1,
        seed: 1,
    };
    let params = ParamStore::new(table, store, &*device, &stream).unwrap();
    let options = CtxOptions {
        dtype: DType::F32,
        seed: 1,
        sequence_parallel: false,
        pool_limit: 1 << 24,
        poison: false,
        sync: Default::default(),
    };
    let cx = Ctx::new(device, stream, groups, params, options).unwrap();
    let host = MicroHost { cu_seqlens: vec![0], ..MicroHost::default() };
    let mb = Micro::upload(&*cx.device, &cx.stream, &cx.pool, 0, &host).unwrap();
    (cx, units, mb, rank)
}

/// Live blocks from inside each layer, beside the micro-batch's, and after all.
fn windows(training: bool, when: WeightGrads) -> (Vec<usize>, usize, Vec<usize>) {
    let seen = Seen::default();
    let (mut cx, units, mb, rank) = three(&seen);
    let others = cx.pool.stats().live_blocks;
    cx.training = training;
    cx.begin_grads(1);
    for unit in &units {
        unit.forward(&mut cx, &mb, ()).unwrap();
    }
    let between = cx.pool.stats().live_blocks - others;
    if training {
        cx.when = when;
        for unit in units.iter().rev() {
            unit.backward(&mut cx, &mb, (), ()).unwrap();
        }
        if when == WeightGrads::Later {
            units.iter().rev().for_each(|unit| unit.weight_grad(&mut cx, &mb, ()).unwrap());
        }
        cx.finish_grads().unwrap();
    }
    assert_eq!(cx.pool.stats().live_blocks, others, "all windows are closed");
    let volumes = rank.trace().volumes();
    let calls = [("dp/params", "all_gather"), ("dp/grads", "reduce_scatter")]
        .map(|(group, kind)| volumes.get(&(group.to_string(), kind)).map_or(0, |v| v.calls));
    let seen = seen.lock().unwrap().iter().map(|n| n - others).collect();
    (seen, between, calls.to_vec())
}

#[test]
fn the_next_unit_is_on_its_way_and_nothing_stays() {
    // Forward: the unit and the next one; the last has none after it, and stays for backward. Backward: the unit and the
    // one before it, and from the second on the gradients that are leaving.
    let (seen, between, calls) = windows(true, WeightGrads::Now);
    assert_eq!((seen, between, calls), (vec![2, 2, 1, 2, 3, 2], 1, vec![5, 3]));
    // Gradients that come later have a window of their own then.
    let (seen, between, calls) = windows(true, WeightGrads::Later);
    assert_eq!((seen, between, calls), (vec![2, 2, 1, 2, 2, 1], 1, vec![5, 3]));
    // Evaluation keeps nothing.
    let (seen, between, calls) = windows(false, WeightGrads::Now);
    assert_eq!((seen, between, calls), (vec![2, 2, 1], 0, vec![3, 0]));
}
