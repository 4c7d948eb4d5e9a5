//! The `Communicator` contract over HCCL: the program that every fabric runs gives the same bits here, between threads,
//! with late streams; an uneven all-gather composed of broadcasts; reports of ranks that are lost, late or in error.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;
#[path = "../../crates/comm/tests/common/mod.rs"]
mod program;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrotron_ascend::{Environment, HcclLinker, HcclOptions, Omit};
use ferrotron_comm::{Communicator, Fabric, Options, ReduceOp, ThreadWorld};
use ferrotron_device::{DType, Device, Pool, Result, StreamRole, host};
use program::{Place, expected, on_threads};

fn options(home: &Path, timeout: Duration, checked: bool) -> Options {
    let hccl = HcclOptions { buffer_mib: Some(64), deterministic: Some(1), ..HcclOptions::default() };
    let linker = Arc::new(HcclLinker::new(Environment::only(home), hccl));
    Options { timeout, checked, linker: Some(linker), ..Options::default() }
}

/// A rank's device of the mock: rank and device have one number.
fn place(home: &Path, rank: usize, omit: Option<Omit>) -> Place {
    let device: Arc<dyn Device> = Arc::new(common::open(home, rank, omit));
    let home = device.stream(StreamRole::Compute).unwrap();
    let pool = Pool::new(device.clone(), home.clone(), 64 << 20, true).unwrap();
    Place { device, home, pool }
}

/// Sums of more than two 16-bit numbers are rounded after each addition, by HCCL and by the mock.
fn is_rounded_on_the_wire(what: &str) -> bool {
    (what.contains("Sum") || what.contains("reduce_scatter")) && (what.contains("BF16") || what.contains("F16"))
}

#[test]
fn every_collective_gives_the_bits_of_the_other_fabrics() {
    let _alone = ferrotron_tests::alone();
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

#[test]
fn communicators_tell_hccl_and_the_report_what_they_take() {
    let _alone = ferrotron_tests::alone();
    let home = common::home("comms");
    let world = ThreadWorld::new(2, options(&home, Duration::from_secs(60), false));
    let seen = on_threads(2, |r| {
        let (rank, place) = (world.rank(r), place(&home, r, None));
        let made = ["tp", "dp"].map(|name| rank.group(&place.device, name, "test", &[0, 1]).unwrap());
        made[0].barrier().unwrap();
        let seen = (rank.links(), common::control().comms(r as u32));
        made[1].barrier().unwrap();
        seen
    });
    for (r, (links, comms)) in seen.iter().enumerate() {
        let lines: Vec<&str> = comms.lines().collect();
        assert_eq!(lines.len(), 2, "{comms}");
        let head = format!("ranks=2 rank={r} buffer=64 deterministic=1 name=");
        assert!(lines[0].starts_with(&format!("{head}dp_test_from0_of2_")), "{comms}");
        assert!(lines[1].starts_with(&format!("{head}tp_test_from0_of2_")), "{comms}");
        assert_eq!(links.iter().map(|l| l.bytes).sum::<usize>(), (2 * 2 * 64) << 20);
        assert_eq!((links[0].group.as_str(), links[0].ranks), ("tp/test", 2));
    }
    assert_eq!(common::control().comms(0), "", "all are destroyed");
    common::remove(&home);
}

#[test]
fn a_deterministic_device_asks_hccl_for_a_fixed_order_too() {
    let _alone = ferrotron_tests::alone();
    let home = common::home("comms-fixed");
    let linker = Arc::new(HcclLinker::new(Environment::only(&home), HcclOptions::default()));
    let world = ThreadWorld::new(2, Options { linker: Some(linker), ..Options::default() });
    let cann = Arc::new(ferrotron_ascend::Cann::load(&Environment::only(&home)).unwrap());
    let seen = on_threads(2, |r| {
        let how = ferrotron_ascend::Options { deterministic: true, ..Default::default() };
        let device: Arc<dyn Device> =
            Arc::new(ferrotron_ascend::AscendDevice::open_with(cann.clone(), r, how).unwrap());
        let made = world.rank(r).group(&device, "dp", "test", &[0, 1]).unwrap();
        let seen = common::control().comms(r as u32);
        made.barrier().unwrap();
        seen
    });
    assert!(seen.iter().all(|s| s.contains(" deterministic=1 ")), "{seen:?}");
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
        let g: Arc<dyn Communicator> = rank.group(&place.device, "dp", "test", &[0, 1]).unwrap();
        // The peer may have failed by now.
        let mut t = place.pool.alloc(DType::F32, [100])?;
        host::write_f32(&*place.device, &place.home, &[1.0; 100], &mut t)?;
        for _ in 0..3 {
            t = g.all_reduce(&place.home, t, ReduceOp::Sum)?.wait();
        }
        host::read_f32(&*place.device, &place.home, &t)
    });
    let took = began.elapsed();
    // SAFETY: null takes all faults away.
    unsafe { (control.ferrotronMockFaults)(1, std::ptr::null()) };
    [0, 1].iter().for_each(|d| drop(control.report(*d)));
    (got, world.rank(0).failure(), took)
}

#[test]
fn faults_of_collectives_end_all_ranks_with_a_report() {
    let _alone = ferrotron_tests::alone();
    let home = common::home("comm-faults");
    let second = Duration::from_secs(1);
    let (got, failure, _) = sums(&home, second * 30, "");
    assert_eq!((got[0].as_ref().unwrap()[99], got[1].as_ref().unwrap()[99], failure), (8.0, 8.0, None));

    // a link that is slow, but within the deadline, is slow only
    let (got, failure, _) = sums(&home, second * 30, "slow:HcclAllReduce#2=300");
    assert!(got.iter().all(|g| g.as_ref().unwrap()[0] == 8.0) && failure.is_none());

    for (faults, deadline, words) in [
        // a rank whose device never does its part: both wait in the call, and nobody is elsewhere
        ("lost:HcclAllReduce#2=1", 2, &["waited 2.", "dp #2 all_reduce of 100 F32 at ", "the link between them"][..]),
        ("slow:HcclAllReduce#2=20000", 2, &["waited 2.", "dp #2 all_reduce of 100 F32 at ", "the link between them"]),
        // the library refuses the call at once
        ("HcclAllReduce#2=9", 30, &["HcclAllReduce in group dp/test: 9 HCCL_E_TIMEOUT: not all ranks came in time"]),
        // a kernel's error on the communicator's stream
        ("task:HcclAllReduce#2=507015", 30, &["507015 AICORE_EXCEPTION", "HcclAllReduce of 100 F32 in group dp/test"]),
    ] {
        let (got, failure, took) = sums(&home, second * deadline, faults);
        let failure = failure.unwrap_or_default();
        println!("{faults}: {took:?}: {failure}\n");
        assert!(got.iter().any(|g| g.is_err()), "{faults}");
        let told = format!(
            "{failure}{}",
            got.iter().filter_map(|g| g.as_ref().err()).map(|e| e.to_string()).collect::<String>()
        );
        assert!(words.iter().all(|w| told.contains(w)), "{faults}: {told}");
        assert!(took < second * 10, "{faults}: {took:?}");
    }

    // HCCL's own time-out comes before ours: the error that came late is told in words
    // SAFETY: a number.
    unsafe { (common::control().ferrotronMockHcclPatience)(700) };
    let (got, failure, took) = sums(&home, second * 30, "lost:HcclAllReduce#2=1");
    // SAFETY: as above.
    unsafe { (common::control().ferrotronMockHcclPatience)(20_000) };
    let failure = failure.unwrap_or_default();
    println!("time-out: {failure}");
    assert!(got.iter().all(|g| g.is_err()) && took < second * 10, "{took:?}");
    assert!(failure.contains("dp #2 all_reduce of 100 F32 at ") && failure.contains("9 HCCL_E_TIMEOUT"), "{failure}");
    assert!(failure.contains("rank 1: last 3 collectives:"), "{failure}");
    common::remove(&home);
}

/// A rank table in place of a negotiation: the file of ModelArts, with devices 4 to 6 of the host, which are the visible
/// ones; and what is said when the table is of another job.
#[test]
fn ranks_find_each_other_by_a_rank_table() {
    let _alone = ferrotron_tests::alone();
    let home = common::home("comm-table");
    let table = home.join("jobstart_hccl.json");
    let devices: Vec<String> = (4..7).map(|d| format!("{{\"device_id\":\"{d}\",\"device_ip\":\"\"}}")).collect();
    let instances = format!("[{{\"server_id\":\"10.0.0.1\",\"devices\":[{}]}}]", devices.join(","));
    let json = format!("{{\"status\":\"completed\",\"group_list\":[{{\"instance_list\":{instances}}}]}}");
    std::fs::write(&table, json).unwrap();
    let by_table = |visible: Vec<u32>| {
        let (rank_table, visible) = (Some(table.clone()), Some(visible));
        let hccl = HcclOptions { rank_table, visible, buffer_mib: Some(32), ..HcclOptions::default() };
        let linker = Arc::new(HcclLinker::new(Environment::only(&home), hccl));
        Options { timeout: Duration::from_secs(60), checked: true, linker: Some(linker), ..Options::default() }
    };
    let world = ThreadWorld::new(3, by_table(vec![4, 5, 6]));
    let sums = on_threads(3, |r| {
        let (rank, place) = (world.rank(r), place(&home, r, None));
        let mut t = place.tensor(DType::F32, &[r as f32 + 1.0; 5]);
        let groups = [&[0, 1, 2][..], &[2, 0][..]];
        for (i, ranks) in groups.into_iter().enumerate().filter(|(_, ranks)| ranks.contains(&r)) {
            let g = rank.group(&place.device, "dp", &format!("purpose {i}"), ranks).unwrap();
            t = g.all_reduce(&place.home, t, ReduceOp::Sum).unwrap().wait();
        }
        host::read_f32(&*place.device, &place.home, &t).unwrap()[4]
    });
    assert_eq!(sums, [12.0, 6.0, 12.0]);
    drop(world);
    assert_eq!(common::control().comms(0), "", "the communicator of all ranks is destroyed too");

    for (size, visible, words) in [
        (2, vec![4, 5], "has 3 ranks, the job has 2: start as many ranks as the table has, or unset RANK_TABLE_FILE"),
        (3, vec![4, 6, 5], "gives rank 1 device 5 of server 10.0.0.1, but it has physical device 6 (npu:1 of those"),
    ] {
        let world = ThreadWorld::new(size, by_table(visible));
        let errors = on_threads(size, |r| {
            let place = place(&home, r, None);
            let everyone: Vec<usize> = (0..size).collect();
            world.rank(r).group(&place.device, "dp", "test", &everyone).map(|_| ()).map_err(|e| e.to_string())
        });
        assert!(
            errors.iter().all(|e| e.is_err())
                && errors.iter().flat_map(|e| e.as_ref().err()).any(|e| e.contains(words)),
            "{errors:?}"
        );
    }
    common::remove(&home);
}
