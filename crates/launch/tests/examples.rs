//! The launch examples of the repository, run with stand-ins for pretrain_gpt, ssh and Slurm.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::path::{Path, PathBuf};

use common::{Dir, finish};
use ferrotron_config::{Environment, Severity, Table, parse, read_file, validate};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/launch").join(name).canonicalize().unwrap()
}

/// A folder whose `bin` has the launcher and a pretrain_gpt that says its rank, the mark of node 1 and its last word.
fn installed(name: &str) -> Dir {
    let dir = Dir::new(name);
    std::fs::create_dir_all(dir.path("bin")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_launch-for-tests"), dir.path("bin/ferrotron")).unwrap();
    dir.script(
        "bin/pretrain_gpt",
        "for last in \"$@\"; do echo \"$last\"; done > $DIR/words.$RANK.$WORLD_SIZE; echo $RANK/$WORLD_SIZE $GROUP_RANK $MASTER_ADDR $last",
    );
    dir
}

/// Whether the real pretrain_gpt would take the words that each rank got.
#[track_caller]
fn words_are_valid(dir: &Dir) {
    let mut checked = 0;
    for entry in dir.0.read_dir().unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let Some((rank, world)) = name.strip_prefix("words.").and_then(|n| n.split_once('.')) else { continue };
        let words: Vec<String> = dir.read(&name).lines().filter(|w| *w != "--last").map(String::from).collect();
        let variable = |name: &str| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(world.to_string()),
            _ => None,
        };
        let (environment, faults) = Environment::from_vars(variable);
        let table = Table::pretrain();
        let parsed = parse(&table, &words, &read_file);
        assert!(faults.is_empty() && parsed.violations.is_empty(), "{:?}", parsed.violations);
        // A feature that is planned makes no example wrong.
        let refused = validate(&table, parsed.args, &environment, parsed.violations).err().map(|r| r.violations);
        let wrong: Vec<_> = refused.into_iter().flatten().filter(|v| v.severity != Severity::Planned).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        checked += 1;
    }
    assert!(checked > 0);
}

fn run(dir: &Dir, name: &str, env: &[(&str, &str)]) -> Vec<String> {
    let file = example(name).display().to_string();
    let mut command = dir.program(Path::new("/bin/bash"), &[&file, "--last"]);
    command.envs(env.iter().copied());
    let done = finish(dir, command).expect(0);
    words_are_valid(dir);
    let mut lines: Vec<String> = done.stdout.lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn single_node() {
    let dir = installed("example-single");
    let lines = run(&dir, "single_node.sh", &[("GPUS_PER_NODE", "2")]);
    assert_eq!(lines, ["0/2 0 127.0.0.1 --last", "1/2 0 127.0.0.1 --last"]);
}

#[test]
fn old_script() {
    let dir = installed("example-old");
    let lines = run(&dir, "old_script.sh", &[("MASTER_PORT", "0")]);
    assert_eq!(lines, ["0/2 0 localhost --last", "1/2 0 localhost --last"]);
}

#[test]
fn multi_node_ssh() {
    let dir = installed("example-ssh");
    dir.write("hosts", "n0 slots=1\nn1 slots=1\n");
    dir.script("bin/ssh", "for last in \"$@\"; do :; done; exec sh -c \"$last\"");
    let lines = run(&dir, "multi_node_ssh.sh", &[("HOSTFILE", "hosts"), ("MASTER_PORT", "29781")]);
    assert_eq!(lines, ["n0: 0/2 0 n0 --last", "n1: 1/2 1 n0 --last"]);
}

#[test]
fn slurm_requeues_what_is_not_finished() {
    let dir = installed("example-slurm");
    dir.script("bin/scontrol", "case $1 in show) printf 'n0\\nn1\\n';; requeue) echo $2 >> $DIR/requeued;; esac");
    dir.script("bin/srun", "shift; SLURM_NODEID=0 \"$@\" & SLURM_NODEID=1 \"$@\" && wait $!");
    let job = [("SLURM_JOB_NODELIST", "n[0-1]"), ("SLURM_NNODES", "2"), ("SLURM_JOB_ID", "77"), ("GPUS_PER_NODE", "1")];
    let lines = run(&dir, "pretrain_gpt.sbatch", &job);
    assert_eq!(lines, ["0/2 0 n0 --last", "1/2 1 n0 --last"]);
    assert_eq!(dir.read("requeued"), "77\n");
    dir.write("checkpoints/latest_checkpointed_iteration.txt", "200\n");
    run(&dir, "pretrain_gpt.sbatch", &job);
    assert_eq!(dir.read("requeued"), "77\n");
}

/// The words after `args:` in a pod's description, as the container gets them.
fn container_words(yaml: &str) -> Vec<String> {
    let after = yaml.lines().skip_while(|l| l.trim() != "args:").skip(1);
    after.map_while(|l| l.trim().strip_prefix("- ")).filter(|w| !w.starts_with("name:")).map(String::from).collect()
}

#[test]
fn kubernetes_pods_know_their_place() {
    let dir = installed("example-kubernetes");
    let kubeflow = [
        ("PET_NNODES", "2"),
        ("PET_NODE_RANK", "1"),
        ("PET_NPROC_PER_NODE", "1"),
        ("PET_MASTER_ADDR", "pretrain-gpt-master-0"),
        ("PET_MASTER_PORT", "23456"),
    ];
    let volcano = [
        ("VC_TASK_INDEX", "1"),
        ("VC_NODE_HOSTS", "pretrain-gpt-node-0.pretrain-gpt,pretrain-gpt-node-1.pretrain-gpt"),
    ];
    for (name, env, said) in [
        ("pytorchjob.yaml", &kubeflow[..], "1/2 1 pretrain-gpt-master-0 --save-interval=50"),
        ("volcano_job.yaml", &volcano[..], "8/16 1 pretrain-gpt-node-0.pretrain-gpt --save-interval=50"),
    ] {
        let words = container_words(&std::fs::read_to_string(example(name)).unwrap());
        assert!(words.len() > 15, "{name}: {words:?}");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = dir.program(&dir.path("bin/ferrotron"), &[&["launch"], &words[..]].concat());
        command.envs(env.iter().copied());
        let done = finish(&dir, command).expect(0);
        words_are_valid(&dir);
        assert!(done.stdout.lines().any(|l| l == said), "{name}: {}", done.stdout);
    }
}
