//! Training under launchers: `ferrotron launch` in torchrun's spellings, two nodes on loopback addresses, and environments
//! as srun and mpirun make them. All train the digits that threads of one process train. (`cargo xtask python-check` starts
//! ranks with the real torchrun, `netns-check` on two nodes.)
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;
#[path = "common/world.rs"]
mod world;

use std::process::Command;
use std::sync::OnceLock;

use common::losses;
use world::{LIMIT, Running, SMALL, clean, free_port, log_of, small, start};

const RUN: &str = "--global-batch-size 8 --train-iters 4 --use-distributed-optimizer --overlap-grad-reduce";

/// What `n` threads print.
fn threads(n: usize) -> Vec<String> {
    losses(&log_of(small(&format!("{RUN} --thread-ranks {n}"))))
}

/// What two threads print: made once.
fn two() -> &'static [String] {
    static TWO: OnceLock<Vec<String>> = OnceLock::new();
    TWO.get_or_init(|| threads(2))
}

/// `ferrotron launch` with these words, then the program and its command line.
fn launch(words: &str) -> Command {
    let mut c = clean(env!("CARGO_BIN_EXE_ferrotron"));
    c.arg("launch").args(words.split_whitespace()).arg(env!("CARGO_BIN_EXE_pretrain_gpt"));
    c.args(SMALL.split_whitespace()).args(RUN.split_whitespace());
    c
}

#[test]
fn under_ferrotron_launch() {
    for words in ["--standalone --nproc_per_node=2", "--nproc-per-node 2 --nnodes=1 --rdzv-id job", "--num_gpus 2"] {
        let got = losses(&log_of(launch(words)));
        assert_eq!(got, two(), "{words}");
    }
    assert_eq!(losses(&log_of(launch("--standalone --nproc_per_node=4"))), threads(4));
}

#[test]
fn the_launcher_that_is_a_subcommand_starts_the_trainer_that_is_one() {
    let mut c = clean(env!("CARGO_BIN_EXE_ferrotron"));
    c.args(["launch", "--standalone", "--nproc_per_node=2", env!("CARGO_BIN_EXE_ferrotron"), "pretrain_gpt"]);
    c.args(SMALL.split_whitespace()).args(RUN.split_whitespace());
    assert_eq!(losses(&log_of(c)), two());
}

#[test]
fn two_nodes_on_loopback_addresses() {
    let port = free_port();
    let node = |rank: usize, address: &str| {
        let words =
            format!("--nnodes 2 --node_rank {rank} --nproc_per_node 1 --master_addr 127.0.0.1 --master_port {port}");
        let mut c = launch(&words);
        c.env("GLOO_SOCKET_IFNAME", address).env("FERROTRON_TRANSPORT", "tcp");
        start(c)
    };
    let (first, second) = (node(0, "127.0.0.2"), node(1, "127.0.0.3"));
    first.end(LIMIT).well();
    assert_eq!(losses(&second.end(LIMIT).well().stdout), two());
}

/// Two processes with variables for each rank.
fn with_variables(of_rank: impl Fn(usize) -> Vec<(&'static str, String)>) -> Vec<String> {
    let rank = |r: usize| {
        let mut c = small(RUN);
        c.envs(of_rank(r));
        start(c)
    };
    let (first, second): (Running, Running) = (rank(0), rank(1));
    first.end(LIMIT).well();
    losses(&second.end(LIMIT).well().stdout)
}

#[test]
fn as_srun_and_mpirun_tell() {
    // The store's port comes from the job's name, which no other job on this host has.
    let job = std::process::id();
    let slurm = with_variables(|r| {
        let local = [("SLURM_PROCID", r), ("SLURM_LOCALID", r), ("SLURM_STEP_NUM_TASKS", 2), ("SLURM_NTASKS", 2)];
        let mut all: Vec<_> = local.iter().map(|(k, v)| (*k, v.to_string())).collect();
        let text = [("SLURM_STEP_NODELIST", "127.0.0.1"), ("SLURM_STEP_TASKS_PER_NODE", "2"), ("SLURM_STEP_ID", "0")];
        all.extend(text.map(|(k, v)| (k, v.to_string())));
        all.push(("SLURM_JOB_ID", job.to_string()));
        all
    });
    assert_eq!(slurm, two(), "srun");
    let open_mpi = with_variables(|r| {
        let rank = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"].map(|k| (k, r.to_string()));
        let size = ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"].map(|k| (k, "2".to_string()));
        [&rank[..], &size, &[("PMIX_NAMESPACE", format!("openmpi-{job}"))]].concat()
    });
    assert_eq!(open_mpi, two(), "Open MPI");
    let hydra = with_variables(|r| {
        let rank = ["PMI_RANK", "MPI_LOCALRANKID"].map(|k| (k, r.to_string()));
        let size = ["PMI_SIZE", "MPI_LOCALNRANKS"].map(|k| (k, "2".to_string()));
        [&rank[..], &size, &[("PMI_JOBID", format!("hydra-{job}"))]].concat()
    });
    assert_eq!(hydra, two(), "MPICH");
}

#[test]
fn without_python() {
    assert_eq!(losses(&log_of(launch("--standalone --nproc_per_node=2 --no_python"))), two());
}
