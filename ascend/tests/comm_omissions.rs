//! Whatever is left out between compute and collectives is noticed: an event wait on either side, a buffer that lives
//! until the collective is done, the wait before a communicator goes. The mock names it; nothing depends on timing.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrotron_ascend::{Environment, HcclLinker, HcclOptions, Omit};
use ferrotron_comm::{Fabric, Fault, Options, ReduceOp, ThreadRank, ThreadWorld, Wait};
use ferrotron_device::{DType, Device, Pool, Result, StreamRole, host};

/// Compute before, beside and after collectives, as a step does. `Ok(false)`: a number is wrong.
fn workload(home: &Path, rank: &ThreadRank, omit: Option<Omit>) -> Result<bool> {
    let r = rank.rank();
    let device: Arc<dyn Device> = Arc::new(common::open(home, r, omit));
    let s = device.stream(StreamRole::Compute)?;
    let pool = Pool::new(device.clone(), s.clone(), 16 << 20, true)?;
    let g = rank.group(&device, "dp", "grads", &[0, 1])?;
    let n = 1000;
    let mut right = true;
    for round in 0..4 {
        let mut x = pool.alloc(DType::F32, [2 * n])?;
        device.ops().fill(&s, (round + r) as f32, &mut x)?;
        let out = pool.alloc(DType::F32, [n])?;
        let sum = g.reduce_scatter(&s, x, out)?;
        // the next op takes memory that may have been x's
        let mut beside = pool.alloc(DType::F32, [2 * n])?;
        device.ops().fill(&s, -1.0, &mut beside)?;
        let sum = sum.wait();
        right &= host::read_f32(&*device, &s, &sum)? == vec![(2 * round + 1) as f32; n];
        let all = g.all_reduce(&s, sum, ReduceOp::Max)?.wait();
        right &= host::read_f32(&*device, &s, &all)?[n - 1] == (2 * round + 1) as f32;
    }
    // a communicator that goes while its last call is under way
    let t = pool.alloc(DType::F32, [n])?;
    drop(g.broadcast(&s, t, 0)?);
    drop(g);
    s.synchronize()?;
    Ok(right)
}

/// What is noticed, or nothing.
fn noticed(home: &Path, omit: Option<Omit>, missing: Option<Wait>) -> Option<String> {
    let control = common::control();
    let linker = Arc::new(HcclLinker::new(Environment::only(home), HcclOptions::default()));
    let fault = missing.map(|missing| Fault { missing, group: Some("dp/grads".into()) });
    let timeout = Duration::from_secs(20);
    let world = ThreadWorld::new(2, Options { timeout, fault, linker: Some(linker), ..Options::default() });
    [0, 1].iter().for_each(|d| control.faults(*d, "slow:HcclBroadcast#1=50"));
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = |r: usize| {
            let world = &world;
            scope.spawn(move || workload(home, &world.rank(r), omit))
        };
        [0, 1].map(start).into_iter().map(|t| t.join()).collect()
    });
    let mut all = String::new();
    for (d, result) in results.into_iter().enumerate() {
        match result {
            Err(_) => all.push_str("a panic\n"),
            Ok(Err(e)) => all.push_str(&format!("{e}\n")),
            Ok(Ok(false)) => all.push_str("a wrong number\n"),
            Ok(Ok(true)) => {}
        }
        all.push_str(&control.report(d as u32));
        // SAFETY: null takes all faults away.
        unsafe { (control.ferrotronMockFaults)(d as u32, std::ptr::null()) };
    }
    (!all.is_empty()).then_some(all)
}

#[test]
fn what_is_left_out_around_collectives_is_noticed_and_nothing_else() {
    let home = common::home("comm-omissions");
    assert_eq!(noticed(&home, None, None), None);
    for (omit, missing, words) in [
        (None, Some(Wait::Home), "race at "),
        (None, Some(Wait::Result), "race at "),
        (None, Some(Wait::Input), "race at "),
        (None, Some(Wait::End), " is destroyed with "),
        (Some(Omit::EventWait), None, "race at "),
        (Some(Omit::Context), None, "no context is current on this thread"),
    ] {
        let found = noticed(&home, omit, missing).unwrap_or_default();
        println!("{omit:?} {missing:?}: {}", found.lines().next().unwrap_or_default());
        assert!(found.contains(words), "{omit:?}, {missing:?}: {found:?}");
    }
    assert_eq!(noticed(&home, None, None), None);
    common::remove(&home);
}
