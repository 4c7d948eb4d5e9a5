//! The `Communicator` contract over NCCL: the program that every fabric runs gives the same bits here, between threads, with
//! late streams; reports of ranks that are lost, late or in error; and what is left out around collectives is noticed.

#![allow(clippy::unwrap_used)] // a test

mod common;

use std::time::Duration;

use ferrotron_comm::{Fabric, ThreadWorld};
use ferrotron_cuda::Omit;
use ferrotron_device::{DType, host};
use ferrotron_tests::mock::collectives;
use ferrotron_tests::mock::collectives::program::on_threads;
use ferrotron_tests::mock::collectives::{
    Sums, faults_end_all_ranks, omissions_are_noticed, options, place, same_bits,
};

#[test]
fn every_collective_gives_the_bits_of_the_other_fabrics() {
    common::with("communicator", same_bits);
}

/// The communicators of a set of ranks are split from the first, in whatever order each names the ranks, and sum as it does;
/// libraries before 2.18 and other sets of ranks take unique ids.
#[test]
fn communicators_of_the_same_ranks_are_split_from_the_first() {
    common::with("split", split_from_the_first);
}

fn split_from_the_first(gpu: &common::Gpu) {
    let control = common::control();
    let groups: [(&str, &[usize]); 5] =
        [("tp", &[0, 1]), ("all", &[0, 1, 2]), ("pp 0>1", &[0, 1]), ("pp 1>0", &[1, 0]), ("dp", &[0, 1, 2])];
    let made = |version: i32| {
        // SAFETY: a number.
        unsafe { (control.own.ferrotronMockNcclVersion)(version) };
        let world = ThreadWorld::new(3, options(gpu, Duration::from_secs(60), true));
        let got = on_threads(3, |r| {
            let (rank, place) = (world.rank(r), place(gpu, r));
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
        unsafe { (control.own.ferrotronMockNcclVersion)(22105) };
        (0..3).for_each(|d| assert_eq!(control.report(d), "", "device {d}"));
        let count = |told: &str, what: &str| told.lines().filter(|l| l.ends_with(what)).count();
        got.iter().map(|told| (count(told, "made=id"), count(told, "made=split"))).collect::<Vec<_>>()
    };
    assert_eq!(made(22105), [(2, 3), (2, 3), (1, 1)]);
    assert_eq!(made(21703), [(5, 0), (5, 0), (2, 0)]);
}

#[test]
fn faults_of_collectives_end_all_ranks_with_a_report() {
    let stuck = ["waited 2.", "dp #2 all_reduce of 100 F32 at ", "the link between them"];
    common::with("comm-faults", |gpu| {
        faults_end_all_ranks(
            gpu,
            "slow:ncclAllReduce#2=300",
            &[
                // a rank whose device never does its part: NCCL waits for ever, our deadline does not
                ("lost:ncclAllReduce#2=1", 2, &stuck),
                ("slow:ncclAllReduce#2=4000", 2, &stuck),
                // the library refuses the call at once
                ("ncclAllReduce#2=2", 30, &["ncclAllReduce in group dp/test: 2 ", "ulimit -l"]),
                // an error of the library that comes after the call, here while it joins
                (
                    "ncclCommGetAsyncError#1=6",
                    30,
                    &["6 remote process exited", "another rank has failed or its host is gone"],
                ),
                // an uncorrectable memory error while the communicator's stream works, whichever stream is asked first
                (
                    "task:ncclAllReduce#2=214",
                    30,
                    &["214 CUDA_ERROR_ECC_UNCORRECTABLE", "ncclAllReduce of 100 F32 in group dp/test"],
                ),
                // joining fails
                ("ncclCommInitRankConfig#1=3", 30, &["ncclCommInitRankConfig of group dp/test, rank 1 of 2: 3 "]),
                ("ncclCommSplit#1=3", 30, &["ncclCommSplit of group dp/more, rank 1 of 2: 3 "]),
            ],
        );
    });
}

#[test]
fn without_nccl_the_error_says_where_it_was_looked_for() {
    common::with("no-nccl", |gpu| {
        std::fs::remove_file(gpu.0.join("lib64/libnccl.so.2")).unwrap();
        let sums = Sums::with(gpu, Duration::from_secs(30), "");
        let (told, took) = (sums.told(), sums.took);
        let words = ["cannot load libnccl.so.2 or libnccl.so", "pip install nvidia-nccl-cu12", "searched "];
        assert!(words.iter().all(|w| told.contains(w)) && took < Duration::from_secs(5), "{took:?}: {told}");
    });
}

#[test]
fn a_group_that_is_not_joined_in_time_is_told() {
    common::with("comm-held-back", collectives::a_group_that_is_not_joined_in_time_is_told);
}

#[test]
fn what_is_left_out_around_collectives_is_noticed_and_nothing_else() {
    let context = "ncclCommInitRankConfig of group dp/grads, rank 0 of 2: 5 invalid usage";
    let omits = [(Omit::EventWait, "race at "), (Omit::Context, context)];
    common::with("comm-omissions", |gpu| {
        omissions_are_noticed(gpu, "slow:ncclBroadcast#1=50", " is finalized with ", &omits);
    });
}
