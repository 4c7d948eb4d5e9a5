//! Command lines that are refused, all mistakes at once, and programs under their old names.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{Dir, finish};

/// The launcher in a folder of its own with a stand-in for our binary beside it.
fn installed(dir: &Dir) -> std::path::PathBuf {
    let launcher = dir.path("install/ferrotron");
    std::fs::create_dir_all(dir.path("install")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_launch-for-tests"), &launcher).unwrap();
    dir.script("install/pretrain_gpt", "echo pretrain $RANK of $WORLD_SIZE: \"$@\"");
    launcher
}

#[test]
fn old_script_names_run_our_binary_beside_the_launcher() {
    let dir = Dir::new("names");
    let launcher = installed(&dir);
    for line in [
        "--standalone pretrain_gpt.py",
        "--nproc_per_node 1 --nnodes 1 --node_rank 0 --master_addr localhost /some/where/Megatron-LM/pretrain_gpt.py",
        "--nnodes=1:1 --rdzv_backend=c10d --max_restarts 0 --monitor_interval 5 --use_env pretrain_gpt",
        "-m pretrain_gpt",
        "--no_python ./install/pretrain_gpt",
        "--worker_num 1 --local_worker_num 1 --join=True --cluster_time_out=300 --bind_core=True pretrain_gpt.py",
    ] {
        let words: Vec<&str> = ["launch"].into_iter().chain(line.split(' ')).chain(["--lr", "1e-4", "a b"]).collect();
        let done = finish(&dir, dir.program(&launcher, &words)).expect(0);
        assert_eq!(done.stdout, "pretrain 0 of 1: --lr 1e-4 a b\n", "{line}");
    }
}

#[test]
fn unknown_scripts_say_what_is_known() {
    let dir = Dir::new("unknown");
    let done = finish(&dir, dir.launch(&["--num_gpus=8", "train_qwen70b.py"])).expect(2);
    assert!(done.stderr.contains("no program stands for train_qwen70b.py"), "{}", done.stderr);
    assert!(done.stderr.contains("pretrain_gpt.py, preprocess_data.py"), "{}", done.stderr);
}

#[test]
fn all_mistakes_come_in_one_message_before_anything_starts() {
    let dir = Dir::new("mistakes");
    dir.script("rank", "touch $DIR/started");
    let words = "--nproc_per_node 0 --nnodes 2 --node_rank 2 --master_port 70000 --rdzv_backend etcd --max_restarts x \
        --tee 5 --elastic_training --nprc 3 ./missing";
    let done = finish(&dir, dir.launch(&words.split_whitespace().collect::<Vec<_>>())).expect(2);
    for what in [
        "the command line has ",
        "--elastic_training is not offered",
        "unknown flag --nprc",
        "--nproc-per-node '0' is not a whole number in range",
        "--node-rank '2' is not a whole number in range",
        "--master-port '70000'",
        "--rdzv-backend etcd is not offered",
        "2 nodes need --master-addr",
        "--max-restarts 'x'",
        "cannot find the program ./missing",
    ] {
        assert!(done.stderr.contains(what), "no '{what}' in:\n{}", done.stderr);
    }
    assert!(!dir.path("started").exists() && done.stdout.is_empty());
}

#[test]
fn one_mistake_each() {
    let dir = Dir::new("each");
    dir.script("rank", "");
    dir.write("hosts", "a slots=2\nb slots=2\n");
    for (line, what) in [
        ("--nnodes 1:4 ./rank", "a number of nodes that may change is not offered"),
        ("--nnodes 4 --master_addr a ./rank", "which of the 4 nodes is this?"),
        ("--nnodes 4 --node_rank 4 --master_addr a ./rank", "--node-rank '4' is not a whole number in range"),
        ("--nnodes 2 --node_rank /path/to/node_rank --master_addr a ./rank", "'/path/to/node_rank'"),
        ("--nnodes 2 --standalone --node_rank 0 ./rank", "--standalone with 2 nodes"),
        ("--nnodes 2 --num_nodes 3 ./rank", "--nnodes 2 and --num-nodes 3 disagree"),
        ("--nproc_per_node 2 --num_gpus 3 ./rank", "--nproc-per-node 2 and --num-gpus disagree"),
        ("--nproc_per_node= ./rank", "--nproc-per-node has an empty value"),
        ("--nproc_per_node npu ./rank", "this node shows no Ascend device"),
        ("--worker_num 9 --local_worker_num 2 ./rank", "--worker-num 9 is not a number of nodes times 2"),
        ("--rdzv_conf a ./rank", "--rdzv-conf: 'a' has no ="),
        (
            "--nnodes 2 --node_rank 1 --master_addr --nproc_per_node 2 ./rank",
            "--master_addr needs a value, got '--nproc",
        ),
        ("--nproc_per_node --nnodes 1 ./rank", "--nproc_per_node needs a value, got '--nnodes'"),
        ("--nnodes 2 --node_rank 1 --master_addr=-oX ./rank", "'-oX' is no name or address"),
        ("--tee 0:9 ./rank", "--tee: '9' is none of 0, 1, 2, 3"),
        ("--hostfile nowhere ./rank", "cannot read the hostfile nowhere"),
        ("--hostfile hosts --num_nodes 3 ./rank", "--num-nodes 3 asks for more hosts than the 2 there are"),
        ("--hostfile hosts --num_gpus 3 ./rank", "--num-gpus 3, but a has 2 slots"),
        ("--hostfile hosts --include c ./rank", "names the host c, which is not among the hosts"),
        ("--hostfile hosts --include a --exclude b ./rank", "given together"),
        ("--hostfile hosts --no_ssh --master_addr a ./rank", "which of the 2 nodes is this?"),
        (
            "--hostfile hosts --launcher openmpi ./rank --x",
            "mpirun -n 4 --host a:2,b:2 -x MASTER_ADDR=a -x MASTER_PORT=29500 ./rank --x",
        ),
        ("--hostfile hosts --launcher telnet ./rank", "--launcher telnet is not known"),
        (
            "--num_nodes=2 --master_addr=a --master_port=29500 ./rank",
            "--hostfile FILE, and all nodes are started from here",
        ),
        ("--nproc_per_node 2", "there is no program to run"),
        ("", "there is no program to run"),
    ] {
        let done = finish(&dir, dir.launch(&line.split_whitespace().collect::<Vec<_>>())).expect(2);
        assert!(done.stderr.contains("the command line has 1 mistake\n"), "{line}:\n{}", done.stderr);
        assert!(done.stderr.contains(what), "{line}: no '{what}' in:\n{}", done.stderr);
    }
}

#[test]
fn a_scheduler_or_kubernetes_says_which_node_this_is() {
    let dir = Dir::new("scheduler");
    dir.script("rank", "echo $RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT");
    let two = ["--nnodes=2", "--nproc_per_node=1"];
    for (words, env, said) in [
        (
            &two[..],
            &[("SLURM_NODEID", "1"), ("SLURM_NNODES", "2"), ("SLURM_JOB_NODELIST", "node[007-008]")][..],
            "1 2 node007 29500",
        ),
        (&two, &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("MASTER_ADDR", "m")], "1 2 m 29500"),
        (
            &two,
            &[("VC_TASK_INDEX", "1"), ("VC_NODE_HOSTS", "job-node-0.job,job-node-1.job"), ("MASTER_PORT", "2222")],
            "1 2 job-node-0.job 2222",
        ),
        (
            &[],
            &[("PET_NNODES", "2"), ("PET_NODE_RANK", "1"), ("PET_MASTER_ADDR", "m0"), ("PET_MASTER_PORT", "7")],
            "1 2 m0 7",
        ),
        (
            &["--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=[fd00::1]:6000", "--rdzv_conf=rank=1"],
            &[],
            "1 2 fd00::1 6000",
        ),
        (&["--nnodes=2", "--rdzv_endpoint=n1:6000", "--node_rank=1", "--master_port=7"], &[], "1 2 n1 6000"),
    ] {
        let mut command = dir.launch(&[words, &["./rank"]].concat());
        command.envs(env.iter().copied());
        let done = finish(&dir, command).expect(0);
        assert_eq!(done.stdout.trim(), said, "{words:?} {env:?}");
    }
}

#[test]
fn an_index_that_counts_something_else_is_not_taken() {
    let dir = Dir::new("other-index");
    dir.script("rank", "");
    for env in [
        &[("VC_TASK_INDEX", "0"), ("VC_MASTER_HOSTS", "m-0"), ("VC_WORKER_HOSTS", "w-0,w-1,w-2")][..],
        &[("SLURM_NODEID", "0"), ("SLURM_NNODES", "2")],
        &[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "32")],
    ] {
        let mut command = dir.launch(&["--nnodes=4", "--nproc_per_node=8", "--master_addr=m-0", "./rank"]);
        command.envs(env.iter().copied());
        let done = finish(&dir, command).expect(2);
        assert!(done.stderr.contains("which of the 4 nodes is this?"), "{env:?}\n{}", done.stderr);
    }
}

#[test]
fn help_lists_every_flag() {
    let dir = Dir::new("help");
    let done = finish(&dir, dir.launch(&["--help"])).expect(0);
    for flag in ["--nproc-per-node", "--include", "--worker-num", "--grace-seconds", "-t, --tee"] {
        assert!(done.stdout.contains(flag), "{flag}");
    }
}
