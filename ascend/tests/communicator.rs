//! The `Communicator` contract over HCCL: the program that every fabric runs gives the same bits here, between threads,
//! with late streams; an uneven all-gather composed of broadcasts; reports of ranks that are lost, late or in error; and
//! what is left out around collectives is noticed.

#![allow(clippy::unwrap_used)] // a test

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Npu;
use ferrotron_ascend::{Environment, HcclLinker, HcclOptions, Omit};
use ferrotron_comm::{Fabric, Options, ReduceOp, ThreadWorld};
use ferrotron_device::{DType, Device, host};
use ferrotron_tests::mock::collectives;
use ferrotron_tests::mock::collectives::program::on_threads;
use ferrotron_tests::mock::collectives::{
    Sums, faults_end_all_ranks, omissions_are_noticed, options, place, same_bits,
};

#[test]
fn every_collective_gives_the_bits_of_the_other_fabrics() {
    common::with("communicator", same_bits);
}

#[test]
fn communicators_tell_hccl_and_the_report_what_they_take() {
    let _alone = ferrotron_tests::alone();
    let npu = Npu(common::home("comms"));
    let world = ThreadWorld::new(2, options(&npu, Duration::from_secs(60), false));
    let seen = on_threads(2, |r| {
        let (rank, place) = (world.rank(r), place(&npu, r));
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
    common::remove(&npu.0);
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

#[test]
fn faults_of_collectives_end_all_ranks_with_a_report() {
    let stuck = ["waited 2.", "dp #2 all_reduce of 100 F32 at ", "the link between them"];
    common::with("comm-faults", |npu| {
        faults_end_all_ranks(
            npu,
            "slow:HcclAllReduce#2=300",
            &[
                // a rank whose device never does its part: both wait in the call, and nobody is elsewhere
                ("lost:HcclAllReduce#2=1", 2, &stuck),
                ("slow:HcclAllReduce#2=20000", 2, &stuck),
                // the library refuses the call at once
                (
                    "HcclAllReduce#2=9",
                    30,
                    &["HcclAllReduce in group dp/test: 9 HCCL_E_TIMEOUT: not all ranks came in time"],
                ),
                // a kernel's error on the communicator's stream, whichever stream is asked first
                (
                    "task:HcclAllReduce#2=507015",
                    30,
                    &["507015 AICORE_EXCEPTION", "HcclAllReduce of 100 F32 in group dp/test"],
                ),
            ],
        );
        // HCCL's own time-out comes before ours: the error that came late is told in words
        // SAFETY: a number.
        let patience = |ms| unsafe { (common::control().own.ferrotronMockHcclPatience)(ms) };
        patience(700);
        let sums = Sums::with(npu, Duration::from_secs(30), "lost:HcclAllReduce#2=1");
        patience(20_000);
        let (failure, took) = (sums.failure.unwrap_or_default(), sums.took);
        println!("time-out: {failure}");
        assert!(sums.got.iter().all(|g| g.is_err()) && took < Duration::from_secs(10), "{took:?}");
        for words in ["dp #2 all_reduce of 100 F32 at ", "9 HCCL_E_TIMEOUT", "rank 1: last 3 collectives:"] {
            assert!(failure.contains(words), "{words} in {failure}");
        }
    });
}

#[test]
fn a_group_that_is_not_joined_in_time_is_told() {
    common::with("comm-held-back", collectives::a_group_that_is_not_joined_in_time_is_told);
}

#[test]
fn what_is_left_out_around_collectives_is_noticed_and_nothing_else() {
    let omits = [(Omit::EventWait, "race at "), (Omit::Context, "no context is current on this thread")];
    common::with("comm-omissions", |npu| {
        omissions_are_noticed(npu, "slow:HcclBroadcast#1=50", " is destroyed with ", &omits);
    });
}

/// A rank table in place of a negotiation: the file of ModelArts, with devices 4 to 6 of the host, which are the visible
/// ones; and what is said when the table is of another job.
#[test]
fn ranks_find_each_other_by_a_rank_table() {
    let _alone = ferrotron_tests::alone();
    let npu = Npu(common::home("comm-table"));
    let home = &npu.0;
    let table = home.join("jobstart_hccl.json");
    let devices: Vec<String> = (4..7).map(|d| format!("{{\"device_id\":\"{d}\",\"device_ip\":\"\"}}")).collect();
    let instances = format!("[{{\"server_id\":\"10.0.0.1\",\"devices\":[{}]}}]", devices.join(","));
    let json = format!("{{\"status\":\"completed\",\"group_list\":[{{\"instance_list\":{instances}}}]}}");
    std::fs::write(&table, json).unwrap();
    let by_table = |visible: Vec<u32>| {
        let (rank_table, visible) = (Some(table.clone()), Some(visible));
        let hccl = HcclOptions { rank_table, visible, buffer_mib: Some(32), ..HcclOptions::default() };
        let linker = Arc::new(HcclLinker::new(Environment::only(home), hccl));
        Options { timeout: Duration::from_secs(60), checked: true, linker: Some(linker), ..Options::default() }
    };
    let world = ThreadWorld::new(3, by_table(vec![4, 5, 6]));
    let sums = on_threads(3, |r| {
        let (rank, place) = (world.rank(r), place(&npu, r));
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
            let place = place(&npu, r);
            let everyone: Vec<usize> = (0..size).collect();
            world.rank(r).group(&place.device, "dp", "test", &everyone).map(|_| ()).map_err(|e| e.to_string())
        });
        assert!(
            errors.iter().all(|e| e.is_err())
                && errors.iter().flat_map(|e| e.as_ref().err()).any(|e| e.contains(words)),
            "{errors:?}"
        );
    }
    common::remove(home);
}
