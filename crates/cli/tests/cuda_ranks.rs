//! Several ranks on `--device cuda` as processes over the mock of the driver and NCCL: the losses of threads and of the CPU,
//! the end of all when one is killed, and how many communicators find each other by unique id.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/vendor.rs"]
mod vendor;
#[path = "common/world.rs"]
mod world;

use common::{TINY, Temp, clean};
use vendor::Vendor;

#[test]
fn processes_train_to_the_losses_of_the_cpu() {
    let t = Temp::new("cuda-processes");
    let Some(cuda) = Vendor::cuda(&t) else { return };
    vendor::processes_train_to_the_losses_of_the_cpu(&cuda, &t);
}

#[test]
fn a_killed_rank_ends_all_processes_in_time() {
    let t = Temp::new("cuda-killed");
    let Some(cuda) = Vendor::cuda(&t) else { return };
    vendor::a_killed_rank_ends_all_processes_in_time(&cuda, &t);
}

/// How many communicators were made by unique id, and how many by a split: those of all ranks are one.
fn made(t: &Temp, cuda: &Vendor, name: &str, nccl: &str) -> (usize, usize) {
    let words = format!(
        "{TINY} --train-iters 1 --lr-warmup-iters 0 --eval-iters 0 --tensor-model-parallel-size 2 --sequence-parallel \
         --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    );
    let file = t.path(name);
    clean(cuda.threads("cuda", 4, &words).env("FERROTRON_MOCK_COMMS", &file).env("FERROTRON_MOCK_NCCL", nccl));
    let told = std::fs::read_to_string(&file).unwrap();
    let count = |how: &str| {
        let ours = told.lines().filter(|l| l.ends_with(how));
        let share =
            |l: &str| 1.0 / l.strip_prefix("ranks=").unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
        ours.map(share).sum::<f64>().round() as usize
    };
    (count("made=id"), count("made=split"))
}

/// docs/cuda.md has these numbers.
#[test]
fn a_start_of_two_by_two_ranks_needs_few_unique_ids() {
    let t = Temp::new("cuda-ids");
    let Some(cuda) = Vendor::cuda(&t) else { return };
    let before = made(&t, &cuda, "before", "21703");
    let after = made(&t, &cuda, "after", "22105");
    assert_eq!((before, after), ((7, 0), (5, 2)));
}
