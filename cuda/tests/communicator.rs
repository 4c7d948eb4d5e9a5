//! The `Communicator` contract over NCCL: the program that every fabric runs gives the same bits here, between threads, with
//! late streams; reports of ranks that are lost, late or in error; and what is left out around collectives is noticed.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;
#[path = "../../crates/comm/tests/common/mod.rs"]
mod program;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrotron_comm::{Communicator, Fabric, Fault, Options, ReduceOp, ThreadRank, ThreadWorld, Wait};
use ferrotron_cuda::{Environment, NcclLinker, Omit};
use ferrotron_device::{DType, Device, Pool, Result, StreamRole, host};
use program::{Place, expected, on_threads};

fn options(home: &Path, timeout: Duration, checked: bool) -> Options {
    let linker = Arc::new(NcclLinker::new(Environment::only(home)));
    Options { timeout, checked, linker: Some(linker), ..Options::default() }
}

/// A rank's device of the mock: rank and device have one number.
fn place(home: &Path, rank: usize, omit: Option<Omit>) -> Place {
    let device: Arc<dyn Device> = Arc::new(common::open(home, rank, omit));
    let home = device.stream(StreamRole::Compute).unwrap();
    let pool = Pool::new(device.clone(), home.clone(), 64 << 20, true).unwrap();
    Place { device, home, pool }
}

/// Sums of more than two 16-bit numbers are rounded after each addition, by NCCL's rings and by the mock.
fn is_rounded_on_the_wire(what: &str) -> bool {
    (what.contains("Sum") || what.contains("reduce_scatter")) && (what.contains("BF16") || what.contains("F16"))
}

#[test]
fn every_collective_gives_the_bits_of_the_other_fabrics() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("communicator");
    for (size, checked) in [(2, false), (3, true)] {
        let world = ThreadWorld::new(size, options(&home, Duration::from_secs(60), checked));
        let got = on_threads(size, |r| program::program(&world.rank(r), &place(&home, r, None)));
        for (r, got) in got.iter().enumerate() {
            let want = expected(r, size);
            assert_eq!(got.len(), want.len());
            for ((what, got), (same, want)) in got.iter().zip(&want) {
                assert_eq!(what, same);
                let exact = size == 2 || !is_rounded_on_the_wire(what);
                assert!(!exact || got == want, "{what}: rank {r} of {size}, checked {checked}");
            }
        }
        for d in 0..size as u32 {
            assert_eq!(common::control().report(d), "", "device {d}");
        }
    }
    common::remove(&home);
}

/// The communicators of a set of ranks are split from the first, in whatever order each names the ranks, and sum as it does;
/// libraries before 2.18 and other sets of ranks take unique ids.
#[test]
fn communicators_of_the_same_ranks_are_split_from_the_first() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("split");
    let control = common::control();
    let groups: [(&str, &[usize]); 5] =
        [("tp", &[0, 1]), ("all", &[0, 1, 2]), ("pp 0>1", &[0, 1]), ("pp 1>0", &[1, 0]), ("dp", &[0, 1, 2])];
    let made = |version: i32| {
        // SAFETY: a number.
        unsafe { (control.ferrotronMockNcclVersion)(version) };
        let world = ThreadWorld::new(3, options(&home, Duration::from_secs(60), true));
        let got = on_threads(3, |r| {
            let (rank, place) = (world.rank(r), place(&home, r, None));
            let own = groups.iter().filter(|(_, ranks)| ranks.contains(&r));
            let mut all = vec![];
            for (name, ranks) in own {
                let g = rank.group(&place.device, name, "test", ranks).unwrap();
                let mut t = place.pool.alloc(DType::F32, [1]).unwrap();
                host::write_f32(&*place.device, &place.home, &[g.rank() as f32], &mut t).unwrap();
                // the rank that the library takes for the first is the first that was named, and calls may be under way
                let t = g.broadcast(&place.home, t, 0).unwrap();
                all.push((g, t));
            }
            let all: Vec<_> = all.into_iter().map(|(g, t)| (g, t.wait())).collect();
            assert!(all.iter().all(|(_, t)| host::read_f32(&*place.device, &place.home, t).unwrap() == [0.0]));
            let told = control.comms(r as u32);
            world.rank(r).group(&place.device, "end", "test", &[0, 1, 2]).unwrap();
            told
        });
        // SAFETY: a number.
        unsafe { (control.ferrotronMockNcclVersion)(22105) };
        (0..3).for_each(|d| assert_eq!(control.report(d), "", "device {d}"));
        let count = |told: &str, what: &str| told.lines().filter(|l| l.ends_with(what)).count();
        got.iter().map(|told| (count(told, "made=id"), count(told, "made=split"))).collect::<Vec<_>>()
    };
    assert_eq!(made(22105), [(2, 3), (2, 3), (1, 1)]);
    assert_eq!(made(21703), [(5, 0), (5, 0), (2, 0)]);
    common::remove(&home);
}

/// Two ranks that sum a vector three times and read it; what each saw.
fn sums(home: &Path, timeout: Duration, faults: &str) -> (Vec<Result<Vec<f32>>>, Option<String>, Duration) {
    let control = common::control();
    control.faults(1, faults);
    let world = ThreadWorld::new(2, options(home, timeout, false));
    let began = Instant::now();
    let got = on_threads(2, |r| {
        let (rank, place) = (world.rank(r), place(home, r, None));
        let g: Arc<dyn Communicator> = rank.group(&place.device, "dp", "test", &[0, 1])?;
        let _split = rank.group(&place.device, "dp", "more", &[0, 1])?;
        // The peer may have failed by now.
        let mut t = place.pool.alloc(DType::F32, [100])?;
        host::write_f32(&*place.device, &place.home, &[1.0; 100], &mut t)?;
        for _ in 0..3 {
            t = g.all_reduce(&place.home, t, ReduceOp::Sum)?.wait();
        }
        host::read_f32(&*place.device, &place.home, &t)
    });
    let took = began.elapsed();
    control.no_faults(1);
    [0, 1].iter().for_each(|d| drop(control.report(*d)));
    (got, world.rank(0).failure(), took)
}

#[test]
fn faults_of_collectives_end_all_ranks_with_a_report() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("comm-faults");
    let second = Duration::from_secs(1);
    let (got, failure, _) = sums(&home, second * 30, "");
    assert_eq!((got[0].as_ref().unwrap()[99], got[1].as_ref().unwrap()[99], failure), (8.0, 8.0, None));

    // a link that is slow, but within the deadline, is slow only
    let (got, failure, _) = sums(&home, second * 30, "slow:ncclAllReduce#2=300");
    assert!(got.iter().all(|g| g.as_ref().unwrap()[0] == 8.0) && failure.is_none());

    for (faults, deadline, words) in [
        // a rank whose device never does its part: NCCL waits for ever, our deadline does not
        ("lost:ncclAllReduce#2=1", 2, &["waited 2.", "dp #2 all_reduce of 100 F32 at ", "the link between them"][..]),
        ("slow:ncclAllReduce#2=4000", 2, &["waited 2.", "dp #2 all_reduce of 100 F32 at ", "the link between them"]),
        // the library refuses the call at once
        ("ncclAllReduce#2=2", 30, &["ncclAllReduce in group dp/test: 2 ", "ulimit -l"]),
        // an error of the library that comes after the call, here while it joins
        ("ncclCommGetAsyncError#1=6", 30, &["6 remote process exited", "another rank has failed or its host is gone"]),
        // an uncorrectable memory error while the communicator's stream works, whichever stream is asked first
        (
            "task:ncclAllReduce#2=214",
            30,
            &["214 CUDA_ERROR_ECC_UNCORRECTABLE", "ncclAllReduce of 100 F32 in group dp/test"],
        ),
        // joining fails
        ("ncclCommInitRankConfig#1=3", 30, &["ncclCommInitRankConfig of group dp/test, rank 1 of 2: 3 "]),
        ("ncclCommSplit#1=3", 30, &["ncclCommSplit of group dp/more, rank 1 of 2: 3 "]),
    ] {
        let (got, failure, took) = sums(&home, second * deadline, faults);
        let failure = failure.unwrap_or_default();
        println!("{faults}: {took:?}: {failure}\n");
        assert!(got.iter().any(|g| g.is_err()), "{faults}");
        let errors = got.iter().filter_map(|g| g.as_ref().err()).map(|e| e.to_string());
        let told = format!("{failure}{}", errors.collect::<String>());
        assert!(words.iter().all(|w| told.contains(w)), "{faults}: {told}");
        assert!(took < second * 10, "{faults}: {took:?}");
    }
    common::remove(&home);
}

#[test]
fn without_nccl_the_error_says_where_it_was_looked_for() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("no-nccl");
    std::fs::remove_file(home.join("lib64/libnccl.so.2")).unwrap();
    let (got, _, took) = sums(&home, Duration::from_secs(30), "");
    let told: String = got.iter().filter_map(|g| g.as_ref().err()).map(|e| e.to_string()).collect();
    let words = ["cannot load libnccl.so.2 or libnccl.so", "pip install nvidia-nccl-cu12", "searched "];
    assert!(words.iter().all(|w| told.contains(w)) && took < Duration::from_secs(5), "{took:?}: {told}");
    common::remove(&home);
}

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
    let fault = missing.map(|missing| Fault { missing, group: Some("dp/grads".into()) });
    let world = ThreadWorld::new(2, Options { fault, ..options(home, Duration::from_secs(20), false) });
    [0, 1].iter().for_each(|d| control.faults(*d, "slow:ncclBroadcast#1=50"));
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
        control.no_faults(d as u32);
    }
    (!all.is_empty()).then_some(all)
}

#[test]
fn what_is_left_out_around_collectives_is_noticed_and_nothing_else() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let home = common::home("comm-omissions");
    assert_eq!(noticed(&home, None, None), None);
    for (omit, missing, words) in [
        (None, Some(Wait::Home), "race at "),
        (None, Some(Wait::Result), "race at "),
        (None, Some(Wait::Input), "race at "),
        (None, Some(Wait::End), " is finalized with "),
        (Some(Omit::EventWait), None, "race at "),
        (Some(Omit::Context), None, "ncclCommInitRankConfig of group dp/grads, rank 0 of 2: 5 invalid usage"),
    ] {
        let found = noticed(&home, omit, missing).unwrap_or_default();
        println!("{omit:?} {missing:?}: {}", found.lines().next().unwrap_or_default());
        assert!(found.contains(words), "{omit:?}, {missing:?}: {found:?}");
    }
    assert_eq!(noticed(&home, None, None), None);
    common::remove(&home);
}
