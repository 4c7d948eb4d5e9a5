//! Launchers' variables, a row each.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::sync::Arc;
use std::time::Duration;

use ferrotron_comm::env::{Launcher, RankEnv};

fn read(vars: &str) -> Result<RankEnv, String> {
    let set: Vec<(&str, &str)> = vars.split_whitespace().map(|v| v.split_once('=').unwrap()).collect();
    let get = |name: &str| set.iter().rev().find(|v| v.0 == name).map(|v| v.1.to_string());
    RankEnv::read(&get).map_err(|e| e.to_string())
}

/// What torchrun sets for worker 3 of node 1 of 2.
const TORCHRUN: &str = "RANK=7 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 \
    MASTER_ADDR=node0 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=job TORCHELASTIC_RESTART_COUNT=2 \
    TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_ERROR_FILE=/tmp/e.json";
const SRUN: &str = "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=7 SLURM_LOCALID=1 SLURM_NODEID=1 \
    SLURM_STEP_TASKS_PER_NODE=4,3 SLURM_STEP_NODELIST=gpu[07-08] SLURM_JOB_ID=4711 SLURM_STEP_ID=0";
const OMPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2";
const HYDRA: &str = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
const POD: &str = "PET_NNODES=4 PET_NPROC_PER_NODE=1 PET_NODE_RANK=3 PET_MASTER_ADDR=j-master-0 PET_MASTER_PORT=23456 \
    RANK=3 WORLD_SIZE=4 MASTER_ADDR=j-master-0 MASTER_PORT=23456";
const VOLCANO: &str = "VC_MASTER_HOSTS=j-master-0.j VC_MASTER_NUM=1 VC_WORKER_HOSTS=j-worker-0.j,j-worker-1.j \
    VC_TASK_INDEX=1 HOSTNAME=j-worker-1";

#[test]
fn launchers_are_understood() {
    use Launcher::*;
    let rows = [
        // variables, launcher, (rank, world), (local rank, local world), (host, port if fixed)
        (String::new(), None, (0, 1), (0, Some(1)), ("127.0.0.1", 29500)),
        ("WORLD_SIZE=1".into(), None, (0, 1), (0, Some(1)), ("127.0.0.1", 29500)),
        (TORCHRUN.into(), Torch, (7, 8), (3, Some(4)), ("node0", 29400)),
        ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h".into(), Torch, (1, 2), (0, Option::None), ("h", 29500)),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_SIZE=2 MASTER_ADDR=::1".into(),
            Torch,
            (0, 2),
            (0, Some(2)),
            ("::1", 29500),
        ),
        (SRUN.into(), Slurm, (5, 7), (1, Some(3)), ("gpu07", 0)),
        (format!("{SRUN} MASTER_ADDR=m MASTER_PORT=1234"), Slurm, (5, 7), (1, Some(3)), ("m", 1234)),
        // A torchrun inside an srun, one task a node.
        (format!("{SRUN} {TORCHRUN}"), Torch, (7, 8), (3, Some(4)), ("node0", 29400)),
        // A batch script without srun is one process.
        (
            "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEPID=4294967291".into(),
            None,
            (0, 1),
            (0, Some(1)),
            ("127.0.0.1", 29500),
        ),
        (format!("{OMPI} MASTER_ADDR=m"), OpenMpi, (2, 4), (0, Some(2)), ("m", 29500)),
        (
            format!("{OMPI} OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=x"),
            OpenMpi,
            (2, 4),
            (0, Some(4)),
            ("127.0.0.1", 0),
        ),
        (HYDRA.into(), Pmi, (1, 2), (1, Some(2)), ("127.0.0.1", 29500)),
        (
            "MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2 MASTER_ADDR=m".into(),
            Mvapich,
            (0, 2),
            (0, Option::None),
            ("m", 29500),
        ),
        (POD.into(), PyTorchJob, (3, 4), (0, Some(1)), ("j-master-0", 23456)),
        (VOLCANO.into(), Volcano, (2, 3), (0, Some(1)), ("j-master-0.j", 29500)),
        ("VC_WORKER_HOSTS=a,b VC_TASK_INDEX=1".into(), Volcano, (1, 2), (0, Some(1)), ("a", 29500)),
    ];
    for (vars, launcher, (rank, world), local, (host, port)) in rows {
        let e = read(&vars).unwrap_or_else(|e| panic!("{vars}: {e}"));
        assert_eq!((e.launcher, e.rank, e.world), (launcher, rank, world), "{vars}");
        assert_eq!((e.local_rank, e.local_world), local, "{vars}");
        assert_eq!(e.host, host, "{vars}");
        if port > 0 {
            assert_eq!(e.port, port, "{vars}");
        } else {
            assert!((20_000..30_000).contains(&e.port), "{vars}: {}", e.port);
        }
    }
}

#[test]
fn runs_and_stores_of_agents() {
    let e = read(TORCHRUN).unwrap();
    assert_eq!((e.served, e.run.as_str()), (true, "job/2"));
    assert_eq!(e.error_file.as_ref().unwrap().to_str(), Some("/tmp/e.json"));
    let o = e.rendezvous(Duration::from_secs(9), Arc::new(|_| {}));
    assert_eq!((o.rank, o.world, o.host.as_str(), o.port, o.served), (7, 8, "node0", 29400, true));
    assert_eq!(read("GLOO_SOCKET_IFNAME=eth0,lo").unwrap().interface.as_deref(), Some("eth0,lo"));
    let e = read(SRUN).unwrap();
    assert_eq!((e.served, e.run.as_str()), (false, "4711.0/0"));
    assert_eq!(read(&format!("{SRUN} SLURM_RESTART_COUNT=1")).unwrap().run, "4711.0/1");
    assert_ne!(read(SRUN).unwrap().port, read(&format!("{SRUN} SLURM_JOB_ID=4712")).unwrap().port);
    assert!(!read("RANK=0 WORLD_SIZE=1 TORCHELASTIC_USE_AGENT_STORE=true").unwrap().served, "torch says True");
}

#[test]
fn contradictions_are_named() {
    for (vars, part) in [
        ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=h", "rank 2 of a world of 2: ranks are 0 to 1"),
        ("RANK=0 WORLD_SIZE=0", "a world of 0 ranks"),
        ("RANK=x WORLD_SIZE=2", "RANK=x is not a number"),
        ("RANK=3", "RANK=3 is set without WORLD_SIZE"),
        ("WORLD_SIZE=8", "WORLD_SIZE=8 is set without RANK"),
        ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=0", "MASTER_PORT=0 is no port"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=70000", "MASTER_PORT=70000 is no port"),
        ("RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h", "local rank 2 of 2"),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h", "4 ranks on this host, but 2 in all"),
        (
            "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=h",
            "RANK=1 is not GROUP_RANK=1 x LOCAL_WORLD_SIZE=2 + LOCAL_RANK=1",
        ),
        (
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2",
            "OMPI_COMM_WORLD_RANK=0 of the same 2 ranks",
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 WORLD_SIZE=3 MASTER_ADDR=h",
            "WORLD_SIZE=3, but OpenMpi says 2",
        ),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", "MASTER_ADDR is not set"),
        ("PET_NNODES=2 PET_NPROC_PER_NODE=8 PET_NODE_RANK=0", "ferrotron launch"),
        ("PET_NNODES=2:4 PET_NODE_RANK=0", "PET_NNODES=2:4 is not one number"),
        (
            "VC_MASTER_HOSTS=a VC_WORKER_HOSTS=b,c VC_TASK_INDEX=0 HOSTNAME=z",
            "HOSTNAME=z is none of Volcano's hosts a, b, c",
        ),
        ("SLURM_PROCID=1 SLURM_STEP_ID=0", "without SLURM_NTASKS"),
    ] {
        let e = read(vars).expect_err(vars);
        assert!(e.contains(part), "{vars}: {e}");
    }
    let e = read("RANK=9 WORLD_SIZE=2 LOCAL_RANK=5 LOCAL_WORLD_SIZE=3").unwrap_err();
    assert_eq!(e.lines().count(), 5, "all at once: {e}");
}
